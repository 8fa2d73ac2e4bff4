"""The records of a run in the store: progress curve and summary."""

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Unpack, cast

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.plans import delete_work, repeat_plan
from infra.store.runs import (
    NOTHING_SEGMENTED,
    IngestSummary,
    QuestionRollup,
    ReadingCounts,
    RunExtras,
    RunSummary,
    mark_released,
    no_changes,
    withheld_runs,
    write_run,
)
from infra.store.schemas import AnswerRow, PlannedReading, now
from memagent.quality.quality_checks import Quality
from memagent.records import Progress, ProgressCounts
from pipelines.operate.optimize import compact_tables, compact_turns
from pipelines.operate.release import digest_runs, judged, quality_of
from pipelines.stages.plan import Plan
from pipelines.stages.read import PassResult, ReadingPass
from pipelines.stages.summarise import Summary, summarise
from pipelines.views.counts import counting
from pipelines.views.formatting import says_withheld, status_of
from pipelines.views.visible_answers import AnswerRule

_log = logging.getLogger("memagent.run")
_POINTS_EVERY = 1.0
_SAVE_EVERY = 10.0
"""Seconds between two writes of the curve at most; at first a tenth of the run's time so far, but at least a second."""
_MOST_POINTS = 2_000
_READ_NOW = (
    *("segments", "conversations", "prompt_tokens", "cached_tokens", "output_tokens", "documents_read"),
    *("memories_cut", "engine_deaths", "carried_segments"),
)
"""Counts in a summary of what its run has read."""
WITHHELD = "withheld: its digest has not passed the quality checks"
_COMPACTED = ("answers", "segmented", "quarantine", "runs")


class Recorder:
    """Receives the counts of a run, passes them to the display and keeps a curve of them."""

    def __init__(self, store: Store, run_id: str, show: Progress | None) -> None:
        self._store, self._run_id, self.show = store, run_id, show
        self._began = time.monotonic()
        self._saved = self._began
        self._points: list[ProgressCounts] = []
        self._fixed: ProgressCounts = {}
        self._entered = self._began
        self.seconds: dict[str, float] = {}
        """Seconds by stage."""

    def stage(self, name: str, **fixed: Unpack[ProgressCounts]) -> None:
        """Enter a stage; `fixed` are totals that its snapshots carry."""
        time_now = time.monotonic()
        before = self._fixed.get("stage", "start")
        self.seconds[before] = round(self.seconds.get(before, 0.0) + time_now - self._entered, 2)
        self._entered = time_now
        _log.info("stage %s", name)
        self._fixed = {"stage": name, **fixed}
        self({})

    def __call__(self, counts: ProgressCounts) -> None:
        """Take a snapshot."""
        time_now = time.monotonic()
        snapshot: ProgressCounts = {"t": round(time_now - self._began, 2), **self._fixed, **counts}
        if self.show:
            self.show(snapshot)
        if self._fixed.get("stage") != "read":
            return
        if self._points and snapshot["t"] - self._points[-1]["t"] < _POINTS_EVERY:
            self._points[-1] = snapshot
        else:
            self._points.append(snapshot)
        if len(self._points) > _MOST_POINTS:
            self._points = self._points[::2]
        if time_now - self._saved > min(_SAVE_EVERY, max(_POINTS_EVERY, (time_now - self._began) / 10)):
            self.save()

    def save(self) -> None:
        """Write the curve."""
        self._saved = time.monotonic()
        lines = "".join(json.dumps(point) + "\n" for point in self._points)
        with suppress(OSError):  # whatever the run writes next says what is wrong with the store
            self._store.write_bytes(lines.encode(), "runs", self._run_id, "progress.jsonl")


def kept_ingest(store: Store, run_id: str) -> IngestSummary | None:
    """Return the summary of a run's ingest; None: it had none, or that did not finish."""
    try:
        kept: IngestSummary = json.loads(store.read_bytes("runs", run_id, "ingest.json"))
    except FileNotFoundError:
        return None
    return kept


def run_answers(corpus: Corpus, plan_rows: Sequence[PlannedReading]) -> dict[str, AnswerRow]:
    """Return the answers that count for a plan's rows, by the row's reading_id; those that failed are absent.

    Answers of withheld digests have a warning that says so, wherever they are shown.
    """
    wanted = {row["answered_by"] or row["reading_id"] for row in plan_rows}
    table = Table(corpus.store, "answers").read(
        corpus.name, filters=pc.field("reading_id").isin(pa.array(sorted(wanted), pa.string()))
    )
    answers: dict[str, AnswerRow] = {row["reading_id"]: row for row in table.to_pylist()}
    withheld = withheld_runs(corpus)
    for row in answers.values():
        row["warnings"] = [*([WITHHELD] if row["run_id"] in withheld else ()), *(row["warnings"] or ())]
    counted = {row["reading_id"]: answers.get(row["answered_by"] or row["reading_id"]) for row in plan_rows}
    return {reading: answer for reading, answer in counted.items() if answer is not None}


def finish(
    reading: ReadingPass, kind: str, started: datetime, plan: Plan, result: PassResult, extra: RunExtras
) -> RunSummary:
    """Close a run: compact its turn log and its tables, judge and write its row, and return its summary."""
    corpus, run_id = reading.corpus, reading.run_id
    compact_turns(corpus, run_id)
    delete_work(corpus.store, run_id)
    compact_tables(corpus, _COMPACTED)
    digest = digest_runs(corpus, run_id) if kind == "digest" else None
    quarantine = Table(corpus.store, "quarantine")
    earlier = (pc.field("stage") == "read") & (pc.field("run_id") != run_id)
    fresh = digest.fresh if digest is not None else frozenset[str]()
    with counting(corpus, AnswerRule.of(corpus, fresh, extra.get("reader"))):
        answers = summarise(
            corpus,
            run_id,
            plan,
            failed_before=quarantine.read(corpus.name, ["item"], earlier)["item"].to_pylist(),
            digest=digest,
            withheld=frozenset(withheld_runs(corpus) - fresh),
        )
    quarantine.delete(corpus.name, stage=["read"], item=answers.answered)
    if kind == "digest":
        extra["rollup"] = answers.rollup
        if "inputs" in extra:  # compared by the next digest, which begins with the answers of this one
            extra["inputs"] = {**extra["inputs"], "answers": Table(corpus.store, "answers").fingerprint(corpus.name)}
        extra["quality"] = quality_of(answers.fresh, result.counts, failed=result.failed.total()).as_dict()
    elif answers.withheld:
        extra["withheld_answers"] = {
            "runs": dict(answers.withheld),
            "says": says_withheld(corpus.name, run_id, answers.withheld),
        }
    if "ingest" not in extra and (ingested := kept_ingest(corpus.store, run_id)):
        extra["ingest"] = ingested
    summary = _summary(reading, kind, started, plan, result=result, answers=answers, extra=extra)
    withheld = digest is not None and judged(corpus, summary, digest, reading.config.quality, answers.withheld)
    write_run(corpus.store, summary, started, summary["config"], status=status_of(summary), withheld=withheld)
    if digest is not None and not withheld:
        mark_released(corpus, fresh)
    return summary


def _summary(
    reading: ReadingPass,
    kind: str,
    started: datetime,
    plan: Plan,
    *,
    result: PassResult,
    answers: Summary,
    extra: RunExtras,
) -> RunSummary:
    reader, planned, counts = reading.reader, plan.counts, result.counts
    reasons = result.failed + Counter({"no-document": len(plan.missing), "segment": planned["unsegmented"]})
    readings: ReadingCounts = {
        "total": planned["readings"],
        "answered_before": planned["answered"],
        "read_now": result.answered,
        "continued": planned["continued"],
        "failed": reasons.total(),
        "found": answers.found,
    }
    if result.unread:
        readings["unread"] = result.unread
    if "withheld_answers" in extra:
        readings["withheld"] = answers.withheld.total()
    return {
        "run_id": reading.run_id,
        "corpus": reading.corpus.name,
        "kind": kind,
        "documents": planned["documents"],
        "readings": readings,
        "segments": counts["segments"],
        "conversations": counts["conversations"],
        "prompt_tokens": counts["prompt_tokens"],
        "cached_tokens": counts["cached_tokens"],
        "output_tokens": counts["output_tokens"],
        "documents_read": counts["documents"],
        "memories_cut": counts["memories_cut"],
        "failures_by_reason": dict(+reasons),
        "engine_deaths": counts["engine_deaths"],
        "carried_segments": planned["carried_segments"],
        "seconds": round((now() - started).total_seconds(), 2),
        "engine_seconds": round(result.engine_seconds, 2),
        "engine_uptime": counts["engine_milliseconds"] / 1000,
        "policy": reader.policy.name,
        "policy_id": reader.policy.policy_id,
        "engine": reading.config.engine.kind,
        "scores": None if answers.scores is None else [score.as_dict() for score in answers.scores],
        "config": {**reading.config.public(), "reading": reader.reading.model_dump()},
        **extra,
    }


def repeat(reading: ReadingPass, previous: RunSummary, started: datetime, extra: RunExtras) -> RunSummary:
    """Close a run that has nothing to do: an earlier run has answered all of it."""
    corpus, total = reading.corpus, previous["readings"]["total"]
    repeat_plan(corpus.store, reading.run_id, previous["run_id"])
    unchanged: list[QuestionRollup] = [{**rollup, **no_changes()} for rollup in previous.get("rollup", [])]
    summary: RunSummary = {
        **previous,
        **cast(RunSummary, dict.fromkeys(_READ_NOW, 0)),
        "run_id": reading.run_id,
        "readings": {**previous["readings"], "answered_before": total, "read_now": 0, "continued": 0},
        "seconds": round((now() - started).total_seconds(), 2),
        "engine_seconds": 0.0,
        "engine_uptime": 0.0,
        "engine": reading.config.engine.kind,
        "config": {**reading.config.public(), "reading": reading.reader.reading.model_dump()},
        "segmented": NOTHING_SEGMENTED,
        "stage_seconds": {},
        "rollup": unchanged,
        "quality": Quality().as_dict(),
        **extra,
    }
    summary.pop("checks", None)  # of a digest that was published in spite of them
    write_run(corpus.store, summary, started, summary["config"], status=status_of(summary))
    return summary
