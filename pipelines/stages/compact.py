"""Compact the small files of a run's turn log and of the tables, by tasks if there are many."""

from collections.abc import Sequence
from functools import partial

from infra.cluster.tasks import run_tasks
from infra.store import Corpus
from infra.tables.buckets import FEW
from infra.tables.delta import MANY, Table
from infra.tables.turns import compact, small_parts


def compact_turns(corpus: Corpus, run_id: str) -> int:
    """Compact the small parts of a run's turn log; return the number of new parts."""
    groups = small_parts(corpus, run_id)
    return sum(run_tasks(partial(compact, corpus=corpus, run_id=run_id), groups, small=True))


def compact_tables(corpus: Corpus, names: Sequence[str]) -> None:
    """Compact the small files of some tables, if there are many (`Table.compact`)."""
    for table in (Table(corpus.store, name) for name in names):
        if table.small_files(corpus.name) >= MANY:
            few = table.count(corpus.name) <= FEW
            list(run_tasks(partial(_compact_table, corpus=corpus), [table.name], small=few))


def _compact_table(name: str, corpus: Corpus) -> int:
    return Table(corpus.store, name).compact(corpus.name)
