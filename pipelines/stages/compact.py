"""Compact: the small files of a run's turn log are put together, a task for each group of them."""

from functools import partial

from infra.cluster.tasks import run_tasks
from infra.store import Corpus
from infra.tables.turns import compact, small_parts


def compact_turns(corpus: Corpus, run_id: str) -> int:
    """Put the small parts of a run's turn log together; return how many parts came of them."""
    groups = small_parts(corpus, run_id)
    return sum(run_tasks(partial(compact, corpus=corpus, run_id=run_id), groups, small=True))
