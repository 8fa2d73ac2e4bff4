"""The `runs` table: a row per run from its first second, with configuration and summary as JSON. Its only writer."""

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NotRequired, TypedDict, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import one_of
from infra.store.claims import is_alive
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import Ended, RunRow, now
from memagent.errors import UsageError
from memagent.evaluation.stats import Paired, ScoreDict
from memagent.quality.quality_checks import Breach
from memagent.records import Json


class ReadingCounts(TypedDict):
    """Counts of a run's readings."""

    total: int
    answered_before: int
    read_now: int
    continued: int
    failed: int
    found: int
    unread: NotRequired[int]
    """Left because the run's budget was spent."""
    withheld: NotRequired[int]
    """Answered, but the answers are shown to nobody (`infra.store.runs`)."""


class ChangedAnswer(TypedDict):
    """A document whose answer changed since the last digest that had one."""

    document: str
    before: str
    now: str
    corrected: NotRequired[bool]
    """Whether people had said `before`, of a text that has changed: what they said does not count for the new one."""


class Changes(TypedDict):
    """What changed in the answers to a question since the digest before."""

    changed: list[ChangedAnswer]
    """At most a thousand."""
    changed_count: int
    new_documents: list[str]
    """Documents without an answer in the last digests; at most a thousand."""
    new_count: int
    gone: list[str]
    """Documents that the question is no longer about: deleted ones, as a rule; at most a thousand."""
    gone_count: int


def no_changes() -> Changes:
    """Return that nothing changed."""
    return {"changed": [], "changed_count": 0, "new_documents": [], "new_count": 0, "gone": [], "gone_count": 0}


class QuestionRollup(Changes):
    """A default question in a digest: how often each answer was given, and what changed."""

    question_id: str
    question: str
    documents: int
    found: int
    unanswered: int
    """Documents whose reading failed, or for which a budget did not last."""
    answers: list[tuple[str, int]]
    """The twenty most frequent ones, with their counts."""
    distinct: int
    corrected: NotRequired[int]
    """Answers that people have corrected."""


class ComparedRun(TypedDict, total=False):
    """The other run of a comparison."""

    run_id: str
    policy_id: str
    failed: int
    """Readings of it that failed."""


class IngestSummary(TypedDict):
    """Summary of an ingest. Sources: new + changed + unchanged + failed are all that were seen."""

    corpus: str
    run_id: str
    sources: int
    """Sources seen."""
    new: int
    changed: int
    unchanged: int
    failed: int
    """Sources of which not all could be read, now or when they were last parsed: one that has failed is not parsed
    again until it, or how it is parsed, changes. Those that could be read before keep their documents."""
    unread: int
    """Of these, sources of which nothing could be read; without folders that became empty."""
    deleted: int
    """Sources that are gone."""
    hidden: int
    """Hidden files, and those that systems and programs keep beside documents, passed over."""
    empty: int
    """Sources that were opened, and rows of these, with nothing to read in them: no failures."""
    excluded: int
    """Sources that were dismissed, and sources and rows whose text was forgotten: no failures."""
    quarantined: dict[str, int]
    """Sources and rows that became no document, by reason."""
    documents: int
    """Documents written: new ones and new versions."""
    with_warnings: int
    """Of these, documents of which a part was not read, or by OCR."""
    bytes: int
    """Bytes of the sources that were opened."""
    chars: int
    """Characters of the documents written."""
    seconds: float


class SegmentSummary(TypedDict):
    """Counts of a segment job."""

    documents: int
    segments: int
    tokens: int
    failed: int


NOTHING_SEGMENTED: SegmentSummary = {"documents": 0, "segments": 0, "tokens": 0, "failed": 0}


class ScoreLine(TypedDict):
    """A metric of one task and length, with its 95% interval."""

    task: str
    length: int
    metric: str
    value: float
    low: float
    high: float
    n: int
    failed: int


class QualityResult(TypedDict):
    """What the quality checks found (`memagent.quality.quality_checks`)."""

    breaches: list[Breach]
    withheld: list[str]
    """The withheld runs that gave answers which this one counts, itself among them."""


class HeldAnswers(TypedDict):
    """Answers that a run counts though they are of withheld runs (`infra.store.runs`)."""

    runs: dict[str, int]
    """How many, by the run that gave them."""
    says: str
    """That they are withheld, and what can be done."""


class DigestReader(TypedDict):
    """Which model and configuration a digest read with, and what it asked."""

    policy_id: str
    config_hash: str
    since: str
    """ISO time of its start: older answers of its reader come before older ones of others."""
    questions: list[str]
    """Texts of its questions."""


class RunExtras(TypedDict, total=False):
    """Keys that only some kinds of runs have."""

    ingest: IngestSummary
    segmented: SegmentSummary
    stage_seconds: dict[str, float]
    model_changed: str
    """A digest by another model than the one before: ``a -> b``."""
    inputs: dict[str, str]
    """A digest: hashes of what it depends on. A later one with the same inputs has nothing to do."""
    reader: DigestReader
    """A digest; one that repeats another has that one's."""
    rollup: list[QuestionRollup]
    outside_scope: list[str]
    """Texts of questions that the reader declares not to be trained for (`memagent.reading.scope`)."""
    suite: dict[str, object]
    method: str
    evaluation: list[ScoreLine]
    overall: ScoreDict
    against: ComparedRun
    """An evaluation: the one that it was compared with."""
    paired: Paired
    report: str
    quality: Json
    """A digest: what its new answers are like (`memagent.quality.quality_checks.Quality`)."""
    checks: QualityResult
    """A digest that breached limits, or whose answers are withheld."""
    withheld_answers: HeldAnswers
    """Any other run that found readings answered by withheld digests."""
    work: list[str]
    """A run whose budget was spent: what it had claimed (`infra.store.claims`)."""


class RunSummary(RunExtras):
    """Summary of a run of `ask`, `digest` or `evaluate`."""

    run_id: str
    corpus: str
    kind: str
    documents: int
    readings: ReadingCounts
    segments: int
    conversations: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    documents_read: int
    """Documents of which a reading was done now."""
    memories_cut: int
    """Memory updates that were cut off at `reading.memory_tokens`, repeated themselves or were empty."""
    failures_by_reason: dict[str, int]
    engine_deaths: int
    carried_segments: int
    seconds: float
    engine_seconds: float
    """From the first running engine to the last answer."""
    engine_uptime: float
    """Seconds that engines were up, summed over engines; times `pool.gpus` they are GPU seconds."""
    policy: str
    policy_id: str
    engine: str
    scores: list[ScoreDict] | None
    config: Json


def write_run(
    store: Store,
    summary: Mapping[str, Any],
    started: datetime,
    config: Json,
    *,
    status: Ended = "completed",
    withheld: bool = False,
    replace: bool = False,
) -> None:
    """Write the row of a run that ended, unless it has one: a repeated run has nothing to do.

    Args:
        summary: has at least run_id, corpus and kind.
        config: as plain data, without secrets.
        withheld: whether its answers are shown to nobody.
        replace: replace the row of a run that had ended and was then continued.
    """
    row: RunRow = {
        "corpus": summary["corpus"],
        "run_id": summary["run_id"],
        "kind": summary["kind"],
        "status": status,
        "started_at": started,
        "ended_at": now(),
        "config": json.dumps(config),
        "summary": json.dumps(summary),
        "withheld": withheld,
    }
    table = Table(store, "runs")
    ended = table.read(summary["corpus"], ["run_id"], _is(summary["run_id"]) & ENDED).num_rows
    if replace or not ended:
        table.upsert([row])


ENDED = pc.field("status").isin(get_args(Ended))
"""Filter for runs that came to their end, or to that of their budget."""
SHOWN = pc.is_null(pc.field("withheld")) | pc.invert(pc.field("withheld"))
"""Filter for runs that are not withheld."""
_CLOSED = pc.invert(pc.field("status").isin(["running", "paused"]))
"""Filter for runs without work left to resume."""


def begin_run(
    corpus: Corpus,
    run_id: str,
    kind: str,
    config: Json,
    work: Sequence[str],
    *,
    policy_id: str = "",
    withheld: bool = False,
) -> None:
    """Write the row of a run that begins or resumes.

    Args:
        kind: ask, digest or evaluate.
        config: as plain data, without secrets.
        work: what it reads, as it claims it (`infra.store.claims`).
        withheld: whether its answers are shown to nobody until it has ended well.
    """
    row: RunRow = {
        "corpus": corpus.name,
        "run_id": run_id,
        "kind": kind,
        "status": "running",
        "started_at": now(),
        "ended_at": None,
        "config": json.dumps(config),
        "summary": json.dumps({"work": sorted(work), "policy_id": policy_id}),
        "withheld": withheld,
    }
    table = Table(corpus.store, "runs")
    earlier = table.read(corpus.name, ["status"], _is(run_id))["status"].to_pylist()
    if not earlier:
        table.append([row])
    elif earlier in (["stopped"], ["paused"]):
        table.upsert([row])


def close_runs(corpus: Corpus, work: Collection[str]) -> list[str]:
    """Mark dead runs as stopped, and paused ones as completed, if all their work has been done since.

    Their turn logs are no longer searched for interrupted readings. Returns their ids.
    """
    table = Table(corpus.store, "runs")
    rows: list[RunRow] = table.read(corpus.name, filters=pc.invert(_CLOSED)).to_pylist()
    done = [
        row
        for row in rows
        if not is_alive(corpus.store, row["run_id"])
        and (claimed := json.loads(row["summary"]).get("work")) is not None
        and set(claimed) <= set(work)
    ]
    table.upsert(
        {**row, "status": "completed"} if row["status"] == "paused" else {**row, "status": "stopped", "ended_at": now()}
        for row in done
    )
    return [row["run_id"] for row in done]


def mark_released(corpus: Corpus, run_ids: Collection[str]) -> list[str]:
    """Show the answers of withheld runs; return the runs that were withheld."""
    table = Table(corpus.store, "runs")
    chosen = one_of("run_id", run_ids) & pc.field("withheld")
    rows: list[RunRow] = table.read(corpus.name, filters=chosen).to_pylist()
    table.upsert({**row, "withheld": False} for row in rows)
    return [row["run_id"] for row in rows]


def forget_rollups(corpus: Corpus) -> None:
    """Take out of all summaries of a corpus what they say of single documents and answers."""
    table = Table(corpus.store, "runs")
    changed = []
    for row in table.read(corpus.name).to_pylist():
        summary = json.loads(row["summary"] or "{}")
        if summary.pop("rollup", None) is not None:
            summary.pop("inputs", None)  # a digest that would repeat this one computes its rollup anew
            changed.append({**row, "summary": json.dumps(summary)})
    table.upsert(changed)


def _is(run_id: str) -> pc.Expression:
    return pc.field("run_id") == run_id


def read_summary(store: Store, run_id: str, corpus: str | None = None) -> Json | None:
    """Return the summary of a run that ended; None: there is none of this name, or it has not ended."""
    rows = Table(store, "runs").read(corpus, ["run_id", "summary"], _is(run_id) & ENDED).to_pylist()
    return dict(json.loads(rows[0]["summary"])) if rows else None


def last_digest(corpus: Corpus) -> RunSummary | None:
    """Return the summary of a corpus's last digest that is not withheld; None: there is none."""
    digests = run_ids(corpus, ["digest"])
    return cast(RunSummary | None, read_summary(corpus.store, digests[-1], corpus.name) if digests else None)


def last_snapshot(store: Store, run_id: str) -> Json:
    """Return the last counts of a run's progress curve; nothing where it has not come to reading."""
    try:
        lines = store.read_bytes("runs", run_id, "progress.jsonl").splitlines()
    except FileNotFoundError:
        return {}
    return dict(json.loads(lines[-1])) if lines else {}


def closed_runs(corpus: Corpus) -> set[str]:
    """Return the ids of a corpus's runs that finished, or whose work another run has done."""
    return _ids(corpus, _CLOSED)


def run_ids(corpus: Corpus, kinds: Sequence[str]) -> list[str]:
    """Return the ids of a corpus's runs of some kinds that are not withheld, sorted by their end."""
    chosen = pc.field("kind").isin(list(kinds)) & ENDED & SHOWN
    runs = Table(corpus.store, "runs").read(corpus.name, ["run_id", "ended_at"], chosen)
    return by_end(runs)


def by_end(runs: pa.Table) -> list[str]:
    """Return the ids of runs that ended (`run_id`, `ended_at`), the last one last.

    One that ended in the future, by a clock that was wrong, comes first: each run until then would be compared with it.
    """
    ahead = pc.greater(runs["ended_at"], pa.scalar(now(), runs["ended_at"].type))
    ordered = runs.append_column("ahead", ahead).sort_by([("ahead", "descending"), ("ended_at", "ascending")])
    return list(ordered["run_id"].to_pylist())


_SAMPLED = pc.field("kind") == "agreement"


def hidden_runs(corpus: Corpus) -> set[str]:
    """Return the runs whose answers nobody is shown."""
    return _ids(corpus, _SAMPLED | pc.invert(SHOWN))


def withheld_runs(corpus: Corpus) -> set[str]:
    """Return the withheld runs. Answers of theirs count only for the very readings that they did."""
    return _ids(corpus, pc.invert(SHOWN))


def sampled_runs(corpus: Corpus) -> set[str]:
    """Return the runs whose answers were sampled for a harvest."""
    return _ids(corpus, _SAMPLED)


def _ids(corpus: Corpus, chosen: pc.Expression) -> set[str]:
    return set(Table(corpus.store, "runs").read(corpus.name, ["run_id"], chosen)["run_id"].to_pylist())


_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 5


def new_run_id() -> str:
    """Return a run id that sorts by time."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def run_id_or_new(given: str | None) -> str:
    """Return the run id that was given, or a new one.

    Raises UsageError: it is no plain word: it becomes part of paths.
    """
    if given is None:
        return new_run_id()
    if not _RUN_ID.fullmatch(given):
        raise UsageError(f"run id {given!r}: use at most 128 letters, digits, '.', '_', '-', as in digest-2026-11-24")
    return given


def resolve(given: str, known: Sequence[str], where: str, what: str = "run") -> str:
    """Return the id of the run that is meant.

    Args:
        given: an id, the beginning of one, or ``last``.
        known: the ids that there are, oldest first.
        where: they are, for the message.
        what: a run of which kind.

    Raises:
        UsageError: there is none, or several begin so; the message names the nearest ones.
    """
    if given == "last" and known:
        return known[-1]
    if given in known:
        return given
    begins = [name for name in dict.fromkeys(known) if given and name.startswith(given)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        newest = f", the newest {_SHOWN}" if len(begins) > _SHOWN else ""
        raise UsageError(f"{what} {given!r}: {len(begins)} begin so{newest}: {', '.join(begins[-_SHOWN:])}")
    near = get_close_matches(given, known, n=1, cutoff=0.8)
    advice = f"did you mean {near[0]!r}?" if near else f"the newest are: {', '.join(known[-_SHOWN:]) or 'none'}"
    raise UsageError(f"no {what} {given!r} in {where}; {advice}")
