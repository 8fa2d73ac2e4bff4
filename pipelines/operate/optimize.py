"""Compaction of a corpus's small files; `optimize` also sorts them by content hash and deletes replaced ones."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import TypedDict

import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.cluster.session import lazy_ray, ray_runs
from infra.store.buckets import FEW
from infra.store.claims import alone, is_alive, used
from infra.store.delta import MANY, Table
from infra.store.documents import check_documents
from infra.store.location import Corpus, Store
from infra.store.plans import delete_work
from infra.store.runs import closed_runs, new_run_id
from infra.store.schemas import TABLES
from infra.store.turns import compact, logged_runs, small_parts
from memagent.config import Config
from memagent.errors import UsageError
from memagent.records import Progress
from pipelines.views.counts import corpus_counts

RETENTION_DAYS = 7.0
_LONGEST = 36_500
"""Days."""
_KEPT = ("qa", "policies")
"""Tables whose versions are kept: policies refer to the version of `qa` that they were trained on."""


class OptimizeSummary(TypedDict):
    """Summary of an optimisation."""

    corpus: str
    files_before: int
    files_after: int
    tables: list[str]
    """Tables whose files were compacted."""
    runs: int
    """Runs whose turn logs were compacted."""


def optimize(
    name: str, config: Config, *, retention_days: float = RETENTION_DAYS, show: Progress | None = None
) -> OptimizeSummary:
    """Compact the files of a corpus.

    Safe beside runs, and to interrupt. Files that were replaced stay for `retention_days`, for queries that read them;
    0 deletes them at once. It waits for a run that has the whole store for itself.

    Raises:
        UsageError: there is no such corpus, or the retention is no number of days.
        RunningError: a run is using the store, which a retention of 0 needs for itself; or `wait` is off, and a run has
            the whole store for itself.
    """
    corpus = Corpus(Store(config.store), name)
    store = corpus.store
    if not 0 <= retention_days <= _LONGEST:
        raise UsageError(f"a retention of {retention_days} days: give 0 to {_LONGEST:,}")
    check_documents(corpus)
    before = len(store.list(suffix=""))
    with lazy_ray(config.ray), _held(corpus, config, retention_days, show):
        runs = _compact_runs(corpus, show)
        tables = []
        for table in (Table(store, name) for name in TABLES if name not in _KEPT):
            if show:
                show({"stage": table.name})
            if table.cluster(corpus.name, timedelta(days=retention_days)):
                tables.append(table.name)
    corpus_counts(corpus)  # for `memagent status`: the tables have new versions
    return {
        "corpus": name,
        "files_before": before,
        "files_after": len(store.list(suffix="")),
        "tables": tables,
        "runs": runs,
    }


def _held(corpus: Corpus, config: Config, retention_days: float, show: Progress | None) -> AbstractContextManager[None]:
    """Keep others from deleting what is used here; and with a retention of 0 all others from using what is deleted."""
    run_id = new_run_id()
    if not retention_days:
        return alone(corpus.store, run_id)
    return used(corpus, run_id, wait=config.wait, show=show)


def _compact_runs(corpus: Corpus, show: Progress | None) -> int:
    """Compact the turn logs of the runs that are over, and delete their work; return how many logs were compacted."""
    store, closed = corpus.store, closed_runs(corpus)
    runs = 0
    for run_id in logged_runs(corpus):
        if run_id in closed or not is_alive(store, run_id):
            if show:
                show({"stage": "turn log", "run": run_id})
            runs += bool(compact_turns(corpus, run_id))
            delete_work(store, run_id)
    # Of runs that ended before their end: what they left between two stages is nobody's, and they may have no turn log.
    rows = Table(store, "runs").read(corpus.name, ["run_id"], pc.field("status").isin(["running", "stopped"]))
    for run_id in rows["run_id"].to_pylist():
        if not is_alive(store, run_id):
            delete_work(store, run_id)
    return runs


def compact_turns(corpus: Corpus, run_id: str) -> int:
    """Compact the small parts of a run's turn log; return the number of new parts.

    It takes some hundred megabytes, which the driver is spared where Ray runs already.
    """
    groups, work = small_parts(corpus, run_id), partial(compact, corpus=corpus, run_id=run_id)
    return sum(run_job(work, groups, corpus.store, local=len(groups) <= 1 and not ray_runs()))


def compact_tables(corpus: Corpus, names: Sequence[str]) -> None:
    """Compact the small files of some tables, if there are many (`Table.compact`)."""
    for table in (Table(corpus.store, name) for name in names):
        if table.small_files(corpus.name) >= MANY:
            few = table.count(corpus.name) <= FEW
            list(run_job(partial(Table.compact, corpus=corpus.name), [table], corpus.store, local=few))
