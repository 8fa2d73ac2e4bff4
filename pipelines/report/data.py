"""Load a run and its readings from the tables."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.dataset as ds

from infra.store.delta import Table
from infra.store.documents import quarantined
from infra.store.feedback import Reviews
from infra.store.location import Corpus, Store
from infra.store.plans import plan_parts, read_plan
from infra.store.runs import ENDED
from infra.store.schemas import AnswerRow, DocumentRow, FailureRow, PlannedReading, reading_item
from memagent.errors import UsageError
from memagent.evaluation.metrics import containment
from memagent.quality.verdicts import Review
from memagent.records import Json
from pipelines.runs import run_answers
from pipelines.views.visible_answers import Citations, CitedEvidence

READINGS = 20_000
"""Most readings in a report; more do not fit a file that opens quickly."""
_COUNTS = ("segments", "prompt_tokens", "output_tokens", "cached_tokens")
_POINTS = 240
"""Most points of a curve; more cannot be distinguished on a screen."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A finished run: a row of table ``runs``."""

    corpus: Corpus
    run_id: str
    kind: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    config: Json
    summary: Json

    def forgotten(self, rows: Sequence[object]) -> int:
        """Return how many of its readings `load_rows` no longer has, because their documents were forgotten."""
        total = (self.summary.get("readings") or {}).get("total") or 0
        return total - len(rows) if len(rows) < total <= READINGS else 0


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A planned reading of the run, with its answer or its failure."""

    plan: PlannedReading
    answer: AnswerRow | None
    failure: FailureRow | None
    review: Review | None = None
    """What people said of the answer."""
    evidence: list[CitedEvidence] = field(default_factory=list)
    """Of the answer that is shown; empty without an answer."""

    @property
    def reading_id(self) -> str:
        """Id of the reading that has the answer."""
        return str(self.plan["answered_by"] or self.plan["reading_id"])

    @property
    def state(self) -> str:
        """One of ``reused``, ``continued``, ``read``, ``failed``, ``unread``."""
        if self.answer is None:
            return "failed" if self.failure else "unread"
        return {"answered": "reused", "continued": "continued"}.get(self.plan["state"], "read")

    @property
    def found(self) -> bool:
        """Whether the document says an answer, as people are shown it."""
        given = bool(self.answer and self.answer["found"])
        return self.review.found(given) if self.review else given

    @property
    def right(self) -> bool | None:
        """Whether the answer, as people are shown it, contains a gold answer; None without gold. A failure is wrong."""
        gold = self.plan["gold"]
        if gold is None:
            return None
        if self.answer is None:
            return False if self.failure else None
        return containment(self.review.answer if self.review else self.answer["answer"], gold) == 1.0


def load_run(store: Store, run_id: str) -> ReportedRun:
    """Return a run. Raises UsageError: there is no finished run of this id."""
    rows = Table(store, "runs").read(filters=(ds.field("run_id") == run_id) & ENDED).to_pylist()
    if not rows:
        raise UsageError(
            f"the store has no finished run {run_id!r}: see `memagent status CORPUS`, or start the same command again "
            "to finish a run that was interrupted"
        )
    row = rows[-1]
    told = {name: json.loads(row[name] or "{}") for name in ("config", "summary")}
    facts = {name: row[name] for name in ("run_id", "kind", "status", "started_at", "ended_at")}
    return ReportedRun(corpus=Corpus(store, row["corpus"]), **facts, **told)


def load_rows(run: ReportedRun, failures: list[FailureRow]) -> list[ReportRow]:
    """Return the run's readings in the order of its plan; a run without a plan has none.

    Of a run with more than `READINGS`, the failed and then the first other readings.
    """
    reasons = {failure["item"]: failure for failure in failures if failure["stage"] == "read"}
    plan = _plan(run, failed=[item.partition(" ? ")[0] for item in reasons])
    answers = run_answers(run.corpus, plan)
    rows, reviews, citations = [], Reviews(run.corpus), Citations(run.corpus, answers.values())
    for entry in plan:
        if (answer := answers.get(entry["reading_id"])) is None:
            rows.append(ReportRow(entry, None, reasons.get(reading_item(entry))))
        else:
            review = reviews.of(answer)
            evidence = citations.cite(answer, review, entry["doc_id"])
            rows.append(ReportRow(entry, answer, None, review, evidence))
    return rows


def load_failures(run: ReportedRun) -> list[FailureRow]:
    """Return the run's quarantine rows, followed by those of earlier ingests that are still in quarantine."""
    mine = ds.field("run_id") == run.run_id
    failures: list[FailureRow] = Table(run.corpus.store, "quarantine").read(run.corpus.name, filters=mine).to_pylist()
    current = quarantined(run.corpus).to_pylist()
    earlier = [row for row in current if row["stage"] in ("ingest", "segment") and row["run_id"] != run.run_id]
    return failures + earlier


def load_titles(corpus: Corpus, hashes: Iterable[str]) -> dict[tuple[str, str], DocumentRow]:
    """Return doc_id, title, source, chars and warnings of documents by content hash and doc_id, from the newest row.

    With an empty doc_id: of any document with the text.
    """
    columns = ["doc_id", "title", "source", "chars", "warnings", "content_hash", "seen_at"]
    selected = ds.field("content_hash").isin(pa.array(sorted(set(hashes)), pa.string()))
    present = ds.field("state") == "present"  # the row of a deleted document has no text
    table = Table(corpus.store, "documents").read(corpus.name, columns, selected & present).sort_by("seen_at")
    rows: list[DocumentRow] = table.to_pylist()
    return {(row["content_hash"], doc_id): row for row in rows for doc_id in ("", row["doc_id"])}


def load_progress(store: Store, run_id: str) -> list[Json]:
    """Return the run's speed over time as ``chart.js`` draws it, a point per interval.

    `t` is in seconds since the start, `segments`, `prompt` and `output` (tokens) are per second; `cached` is the share
    of the prompt tokens from the prefix cache, 0 to 1.
    """
    try:
        lines = store.read_bytes("runs", run_id, "progress.jsonl").decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    samples = []
    for line in lines:
        try:
            samples.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the last line of a run that was killed
    step = max(1, -(-len(samples) // _POINTS))
    points = samples[::step] + ([samples[-1]] if samples and (len(samples) - 1) % step else [])
    return [_speed(a, b) for a, b in pairwise(points) if b["t"] > a["t"]]


def _plan(run: ReportedRun, failed: list[str]) -> list[PlannedReading]:
    total = (run.summary.get("readings") or {}).get("total") or 0
    try:
        if total <= READINGS:
            plan: list[PlannedReading] = read_plan(run.corpus, run.run_id).to_pylist()
            return plan
        failed_ids = pa.array(failed[:READINGS], pa.string())
        plan = read_plan(run.corpus, run.run_id, filters=ds.field("doc_id").isin(failed_ids)).to_pylist()
        listed = {row["reading_id"] for row in plan}
        for _, part in plan_parts(run.corpus, run.run_id):
            if len(plan) >= READINGS:
                break
            rows: list[PlannedReading] = part.slice(0, READINGS - len(plan)).to_pylist()
            plan += [row for row in rows if row["reading_id"] not in listed]
    except FileNotFoundError:
        return []
    return plan


def _speed(a: Mapping[str, float], b: Mapping[str, float]) -> Json:
    seconds = b["t"] - a["t"]
    # A restarted run counts from zero again: a negative difference is no speed.
    gain = {key: max(0.0, b.get(key, 0) - a.get(key, 0)) for key in _COUNTS}
    prompt = gain["prompt_tokens"]
    return {
        "t": round(b["t"], 2),
        "segments": round(gain["segments"] / seconds, 3),
        "prompt": round(prompt / seconds, 1),
        "output": round(gain["output_tokens"] / seconds, 1),
        "cached": round(min(1.0, gain["cached_tokens"] / prompt), 4) if prompt else 0.0,
    }
