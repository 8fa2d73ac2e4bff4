"""Judge a night before people are shown it, and publish one that was held."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Corpus, Store
from infra.tables.claims import is_alive
from infra.tables.delta import Table
from infra.tables.runs import QuestionRollup, RunSummary, release, run_ids
from memagent.errors import UsageError
from memagent.gates import GatesConfig, Quality, QuestionQuality, Standing, breaches
from pipelines.run_names import resolve
from pipelines.stages.summarise import NightRuns

_NIGHTS = 30
"""Good nights that a night is compared with at most; fewer where they have `_ENOUGH` answers."""
_ENOUGH = 1_000


def night_runs(corpus: Corpus, run_id: str, policy_id: str) -> NightRuns:
    """Return the runs that matter to a digest that has read everything.

    Args:
        corpus: whose digest.
        run_id: its name.
        policy_id: that read. Held runs of this policy that are dead were broken off before they were judged: their
            answers are judged with its own.
    """
    rows = Table(corpus.store, "runs").read(
        corpus.name, ["run_id", "summary"], (pc.field("status") == "running") & pc.field("held")
    )
    policies = {row["run_id"]: json.loads(row["summary"]).get("policy_id") for row in rows.to_pylist()}
    broken_off = {
        name
        for name, policy in policies.items()
        if name != run_id and policy == policy_id and not is_alive(corpus.store, name)
    }
    good, fresh = run_ids(corpus, ["digest"]), frozenset({run_id} | broken_off)
    return NightRuns(good[-1] if good else "", fresh)


def quality_of(fresh: Mapping[str, QuestionQuality], counts: Mapping[str, int], failed: int) -> Quality:
    """Return what a night's new answers are like.

    Args:
        fresh: sums over them, by question text.
        counts: of its pass (`infra.cluster.progress.Counters`).
        failed: readings that failed.
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
    corpus: Corpus, summary: RunSummary, night: NightRuns, config: GatesConfig, held_before: Mapping[str, int]
) -> bool:
    """Return whether a digest is held, and put what the gates found into its summary.

    It is held if it breaches a limit, or if answers that it counts are of a held night.

    Args:
        corpus: whose digest.
        summary: of it, complete but for this.
        night: the runs that matter to it.
        config: the limits.
        held_before: the readings whose answers are of held runs, by run.
    """
    readings, own = summary["readings"], Quality.from_dict(summary["quality"])
    found = []
    if night.previous:
        before, last = _good_nights(corpus)
        unread = readings.get("unread", 0)
        found = breaches(
            own, before, config, standing=Standing() if unread else _standing(summary), standing_before=last
        )
    if not found and not held_before:
        return False
    held = bool(config.hold and found) or bool(held_before)
    names = [*held_before, *(sorted(night.fresh) if held and config.hold else ())]
    summary["gates"] = {"breaches": found, "held": names if held else []}
    if not held:
        return False
    readings["held"] = sum(held_before.values()) + (own.answers if found and config.hold else 0)
    return True


def publish(store: Store, run: str) -> tuple[Corpus, list[str]]:
    """Show the answers of a held digest, and of held ones whose answers it counts; return its corpus and their ids.

    Raises:
        UsageError: there is no such run, or it is not held.
    """
    rows = Table(store, "runs").read(None, ["run_id", "corpus", "summary"], pc.field("held")).to_pylist()
    if not rows:
        raise UsageError(f"no run is held in {store.url}")
    run_id = resolve(run, [row["run_id"] for row in rows], store.url, what="held run")
    row = next(row for row in rows if row["run_id"] == run_id)
    others = (json.loads(row["summary"] or "{}").get("gates") or {}).get("held", [])
    corpus = Corpus(store, row["corpus"])
    return corpus, release(corpus, {run_id, *others})


def _good_nights(corpus: Corpus) -> tuple[Quality, Standing]:
    """Return what the new answers of the last good nights were like, and what stands after the last of them."""
    names = run_ids(corpus, ["digest"])[-_NIGHTS:]
    chosen = pc.field("run_id").isin(pa.array(names, pa.string()))
    rows = Table(corpus.store, "runs").read(corpus.name, ["run_id", "summary"], chosen).to_pylist()
    by_id = {row["run_id"]: row["summary"] for row in rows}
    before, standing = Quality(), None
    for name in reversed(names):
        summary = json.loads(by_id[name])
        standing = standing or _standing(summary)
        if summary.get("quality"):
            before += Quality.from_dict(summary["quality"])
        if before.answers >= _ENOUGH:
            break
    return before, standing or Standing()


def _standing(summary: RunSummary) -> Standing:
    rollups: list[QuestionRollup] = summary.get("rollup") or []
    return Standing({rollup["question"]: rollup["documents"] - rollup["failed"] for rollup in rollups})
