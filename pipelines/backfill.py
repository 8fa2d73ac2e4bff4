"""Backfill: the standing questions again, for documents of past nights whose answers are missing or failed.

Which documents belong to a night is told by when their present version was taken in. What is answered is not read
again, so the same backfill again does nothing; `every` reads again what only other versions of the policy answered.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

from infra.cluster.progress import Progress
from infra.store import Corpus, Store
from infra.tables.corpora import check_known
from infra.tables.runs import RunSummary
from memagent.config import Config
from memagent.errors import UsageError
from memagent.nights import NightConfig
from pipelines.ask import Request, run_readings, standing_of
from pipelines.stages.planned_readings import Chosen, Missing


@dataclass(frozen=True, slots=True)
class Nights:
    """Whose documents a backfill reads."""

    first: date | None = None
    """None: however old."""
    last: date | None = None
    """Included; None: however new."""

    def chosen(self, only: Collection[Missing], config: NightConfig) -> Chosen:
        """Return what a plan is asked for.

        Raises:
            UsageError: the last night is before the first.
        """
        if self.first and self.last and self.last < self.first:
            raise UsageError(f"--to {self.last} is before --from {self.first}")
        since = config.window(self.first)[0] if self.first else None
        until = config.window(self.last)[1] if self.last else None
        return Chosen(since, until, frozenset(only))


def backfill(
    name: str,
    config: Config,
    nights: Nights,
    only: Collection[Missing] = ("missing", "failed"),
    *,
    every: bool = False,
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Answer a corpus's standing questions where answers are missing; return the run's summary.

    Args:
        name: of the corpus.
        config: store, model, reading, engines, and when nights are.
        nights: whose documents.
        only: readings that failed, those that are missing otherwise, or both.
        every: besides, what another version of the policy has answered.
        run_id: of the run; a new one by default.
        show: receives the progress counts.

    Raises:
        UsageError: there is no such corpus, it has no standing questions, or the nights are in the wrong order.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    request = Request(
        name,
        standing_of(corpus, None),
        config,
        kind="backfill",
        reread=every,
        chosen=nights.chosen(only, config.night),
        run_id=run_id,
    )
    return run_readings(request, show)
