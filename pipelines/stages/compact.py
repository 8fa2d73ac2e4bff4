"""Compact: the small files of a run's turn log and of the tables are put together, by tasks where they are many."""

from collections.abc import Sequence
from functools import partial

from infra.cluster.tasks import run_tasks
from infra.store import Corpus
from infra.tables.buckets import FEW
from infra.tables.delta import MANY, Table
from infra.tables.turns import compact, small_parts


def compact_turns(corpus: Corpus, run_id: str) -> int:
    """Put the small parts of a run's turn log together; return how many parts came of them."""
    groups = small_parts(corpus, run_id)
    return sum(run_tasks(partial(compact, corpus=corpus, run_id=run_id), groups, small=True))


def compact_tables(corpus: Corpus, names: Sequence[str]) -> None:
    """Put the small files of some tables together, where they are many (`Table.compact`)."""
    for table in (Table(corpus.store, name) for name in names):
        if table.small_files(corpus.name) >= MANY:
            few = table.count(corpus.name) <= FEW
            list(run_tasks(partial(_compact_table, corpus=corpus), [table.name], small=few))


def _compact_table(name: str, corpus: Corpus) -> int:
    return Table(corpus.store, name).compact(corpus.name)
