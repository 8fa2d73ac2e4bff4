"""Judge a digest before people are shown it, and release one that was withheld."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import one_of
from infra.store.claims import is_alive, used
from infra.store.delta import Table
from infra.store.documents import column_rows
from infra.store.location import Corpus, Store
from infra.store.runs import QuestionRollup, RunSummary, mark_released, new_run_id, resolve, run_ids
from memagent.errors import UsageError
from memagent.quality.quality_checks import LiveCounts, Quality, QualityConfig, QuestionQuality, breaches
from pipelines.stages.summarise import DigestRuns, PastRun

_DIGESTS = 30
"""Good digests that a digest is compared with at most; fewer where they have `_ENOUGH` answers."""
_ENOUGH = 1_000


def digest_runs(corpus: Corpus, run_id: str) -> DigestRuns:
    """Return the runs that matter to a digest that has read everything.

    Withheld runs of its reader and questions that are dead were broken off before they were judged: their answers are
    judged with its own.
    """
    columns, running = ["run_id", "summary", "withheld"], pc.field("status") == "running"
    rows = Table(corpus.store, "runs").read(corpus.name, columns, running).to_pylist()
    work = {row["run_id"]: set(json.loads(row["summary"]).get("work", ())) for row in rows}
    unjudged = {row["run_id"] for row in rows if row["withheld"] and work[row["run_id"]] & work.get(run_id, set())}
    broken_off = {name for name in unjudged - {run_id} if not is_alive(corpus.store, name)}
    good = run_ids(corpus, ["digest"])[: -_DIGESTS - 1 : -1]
    ended = Table(corpus.store, "runs").read(corpus.name, ["run_id", "ended_at"], one_of("run_id", good))
    ends = dict(column_rows(ended, "run_id", "ended_at"))
    return DigestRuns([PastRun(name, ends[name]) for name in good], frozenset({run_id} | broken_off))


def quality_of(fresh: Mapping[str, QuestionQuality], counts: Mapping[str, int], failed: int) -> Quality:
    """Return what a digest's new answers are like, by sums over them by question text (`fresh`) and the counts of its
    pass (`infra.cluster.board.Counters`).
    """
    return Quality(
        failed=failed,
        readings=failed + sum(question.answers for question in fresh.values()),
        empty=counts["empty_memories"],
        updates=counts["segments"],
        cut=counts["memories_cut"],
        questions=dict(fresh),
    )


def judged(
    corpus: Corpus, summary: RunSummary, digest: DigestRuns, config: QualityConfig, withheld_before: Mapping[str, int]
) -> bool:
    """Return whether a digest is withheld, and put what the checks found into its summary, which is complete but for
    this.

    It is withheld if it breaches a limit, or if answers that it counts are of a withheld digest: `withheld_before` has
    how many, by run.
    """
    readings, own = summary["readings"], Quality.from_dict(summary["quality"])
    found = []
    if digest.before:
        before, last = _good_digests(corpus)
        unread = readings.get("unread", 0)
        found = breaches(own, before, config, live={} if unread else _live_counts(summary), live_before=last)
    if not found and not withheld_before:
        return False
    withheld = bool(config.withhold and found) or bool(withheld_before)
    names = [*withheld_before, *(sorted(digest.fresh) if withheld and config.withhold else ())]
    summary["checks"] = {"breaches": found, "withheld": names if withheld else []}
    if not withheld:
        return False
    readings["withheld"] = sum(withheld_before.values()) + (own.answers if found and config.withhold else 0)
    return True


def release(store: Store, run: str) -> tuple[Corpus, list[str]]:
    """Release the answers of a digest, and of others that it counts; return its corpus and the run IDs.

    Raises UsageError: there is no such run, or it is not withheld.
    """
    rows = Table(store, "runs").read(None, ["run_id", "corpus", "summary"], pc.field("withheld")).to_pylist()
    if not rows:
        raise UsageError(f"no run is withheld in {store.url}")
    run_id = resolve(run, [row["run_id"] for row in rows], store.url, what="withheld run")
    row = next(row for row in rows if row["run_id"] == run_id)
    others = (json.loads(row["summary"] or "{}").get("checks") or {}).get("withheld", [])
    corpus = Corpus(store, row["corpus"])
    with used(corpus, new_run_id(), wait=True, show=None):  # a forgetting takes single answers out of the same rows
        return corpus, mark_released(corpus, {run_id, *others})


def _good_digests(corpus: Corpus) -> tuple[Quality, LiveCounts]:
    """Return what the new answers of the last good digests were like, and what stands after the last of them."""
    names = run_ids(corpus, ["digest"])[-_DIGESTS:]
    chosen = pc.field("run_id").isin(pa.array(names, pa.string()))
    rows = Table(corpus.store, "runs").read(corpus.name, ["run_id", "summary"], chosen).to_pylist()
    by_id = {row["run_id"]: row["summary"] for row in rows}
    before = Quality()
    live: LiveCounts | None = None
    for name in reversed(names):
        summary = json.loads(by_id[name])
        live = _live_counts(summary) if live is None else live
        if summary.get("quality"):
            before += Quality.from_dict(summary["quality"])
        if before.answers >= _ENOUGH:
            break
    return before, live or {}


def _live_counts(summary: RunSummary) -> LiveCounts:
    rollups: list[QuestionRollup] = summary.get("rollup") or []
    return {rollup["question"]: rollup["documents"] - rollup["unanswered"] for rollup in rollups}
