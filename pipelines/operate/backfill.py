"""Backfill: the default questions again, for documents of past scheduled runs whose answers are missing or failed.

Which documents belong to a scheduled run is told by when their present version was taken in. What is answered is not
read again, so the same backfill again does nothing; `every` reads again what only other versions of the policy
answered.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

from infra.store.corpora import check_known
from infra.store.location import Corpus, Store
from infra.store.runs import RunSummary
from memagent.config import Config
from memagent.errors import UsageError
from memagent.quality.schedule import ScheduleConfig
from memagent.records import Progress
from pipelines.ask import AskRequest, questions_or_default, run_readings
from pipelines.stages.planned_readings import Chosen, Missing


@dataclass(frozen=True, slots=True)
class Dates:
    """Whose documents a backfill reads."""

    first: date | None = None
    """None: however old."""
    last: date | None = None
    """Included; None: however new."""

    def chosen(self, only: Collection[Missing], config: ScheduleConfig) -> Chosen:
        """Return what a plan is asked for. Raises UsageError: the last scheduled run is before the first."""
        if self.first and self.last and self.last < self.first:
            raise UsageError(f"--to {self.last} is before --from {self.first}")
        since = config.window(self.first)[0] if self.first else None
        until = config.window(self.last)[1] if self.last else None
        return Chosen(since, until, frozenset(only))


def backfill(
    name: str,
    config: Config,
    dates: Dates,
    only: Collection[Missing] = ("missing", "failed"),
    *,
    every: bool = False,
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Answer a corpus's default questions where answers are missing; return the run's summary.

    Args:
        name: of the corpus.
        config: store, model, reading, engines, and when scheduled runs are.
        dates: of the scheduled runs whose documents are asked about.
        only: readings that failed, those that are missing otherwise, or both.
        every: besides, what another version of the policy has answered.
        run_id: of the run; a new one by default.
        show: receives the progress counts.

    Raises:
        UsageError: there is no such corpus, it has no default questions, or the scheduled runs are in the wrong order.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    request = AskRequest(
        name,
        questions_or_default(corpus, None),
        config,
        kind="backfill",
        reread=every,
        chosen=dates.chosen(only, config.schedule),
        run_id=run_id,
    )
    return run_readings(request, show)
