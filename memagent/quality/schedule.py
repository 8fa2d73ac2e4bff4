"""Scheduled runs: which scheduled run a digest belongs to, by when it must be done, and what became of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal, Self
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, field_validator, model_validator

from memagent.settings import Section

_DUE = time(6)
"""Where nothing is due: scheduled runs are named by the morning that they end in."""
_HALF_DAY = timedelta(hours=12)
_DAY = timedelta(days=1)
RunState = Literal[
    "completed", "completed with warnings", "running", "missing", "half-answered", "failed", "withheld", "to come"
]
Problem = Literal["late", "failed", "half-answered", "withheld"]


class ScheduleConfig(Section):
    """By when a scheduled run must be done, and who hears of one that is not."""

    due: str = Field("", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$")
    """Time of day by which a corpus's digest must have ended, as in 06:00. Empty: no scheduled run is late."""
    timezone: str = "UTC"
    """Of `due`, and of the dates of scheduled runs."""
    notify: str = ""
    """Prefect block that is told of scheduled runs which are late, failed, half-answered or withheld, by type and name,
    as in slack-webhook/archive. Empty: only events are emitted."""

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in available_timezones():
            raise ValueError(f"{name!r} is no time zone; write one as in Europe/Berlin")
        return name

    @model_validator(mode="after")
    def _block(self) -> Self:
        if self.notify and self.notify.count("/") != 1:
            raise ValueError(f"schedule.notify = {self.notify!r}: write type/name, as in slack-webhook/archive")
        return self

    def of(self, at: datetime) -> date:
        """Return the scheduled run that a moment belongs to: that of the nearest time at which one is due."""
        local, due = at.astimezone(self._zone).replace(tzinfo=None), self._due
        return (local - timedelta(hours=due.hour, minutes=due.minute) + _HALF_DAY).date()

    def window(self, day: date) -> tuple[datetime, datetime]:
        """Return from when and until when moments belong to a scheduled run."""
        first = datetime.combine(day, self._due) - _HALF_DAY
        return first.replace(tzinfo=self._zone), (first + _DAY).replace(tzinfo=self._zone)

    def due_at(self, day: date) -> datetime | None:
        """Return by when a scheduled run must be done; None: nothing is due."""
        return datetime.combine(day, self._due, self._zone) if self.due else None

    @property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def _due(self) -> time:
        return time.fromisoformat(self.due) if self.due else _DUE


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest as its row and the quarantine tell of it."""

    run_id: str
    started_at: datetime
    ended_at: datetime | None
    """None: it has not ended, or another run did the rest."""
    status: Literal["running", "completed", "completed with warnings", "failed", "paused", "stopped"]
    """As its row has it, without the failed readings that have an answer since; stopped: its process is gone."""
    readings: int = 0
    failed: int = 0
    """Readings that failed in it and have no answer yet."""
    unread: int = 0
    withheld: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end."""
        return self.status not in ("running", "paused", "stopped")


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """What became of a scheduled run."""

    day: date
    state: RunState
    late: bool
    """Not done by the time at which it was due."""
    digest: Digest | None = None
    """The last one that came to its end since one that began in time and did not; else its last one."""

    @property
    def problems(self) -> list[Problem]:
        """What somebody should hear of."""
        told: list[Problem] = ["late"] if self.late else []
        if self.state in ("failed", "half-answered", "withheld"):
            told.append(self.state)
        return told


def scheduled_runs(
    digests: Sequence[Digest], config: ScheduleConfig, now: datetime, first: date | None = None
) -> Iterator[ScheduledRun]:
    """Yield all scheduled runs since the first digest, the newest first.

    `digests` are those of a corpus, in any order, none of scheduled runs that are not asked for; `first` is the
    scheduled run of the first digest, if it may not be among them.
    """
    by_day: dict[date, list[Digest]] = {}
    for digest in sorted(digests, key=lambda digest: digest.started_at):
        by_day.setdefault(config.of(digest.started_at), []).append(digest)
    today = config.of(now)
    # One whose machine's clock was wrong may lie in the future: it must not hide what is due.
    day = max([today, *(each for each in by_day if each <= today + _DAY)])
    first = min([first, *by_day] if first else by_day, default=None)
    while first is not None and day >= first:
        yield _of_day(day, by_day.get(day, []), config, now)
        day -= _DAY


def _of_day(day: date, digests: Sequence[Digest], config: ScheduleConfig, now: datetime) -> ScheduledRun:
    due = config.due_at(day)
    if not digests:
        over = now >= (due or config.window(day)[1])
        return ScheduledRun(day, "missing" if over else "to come", late=due is not None and now >= due)
    in_time = [each for each in digests if due is None or each.started_at < due]
    begun = max((place for place, each in enumerate(in_time, 1) if not each.has_ended), default=0)
    ended = [digest for digest in digests[begun:] if digest.has_ended]
    digest = (ended or digests)[-1]
    # The first one that was done counts: a second digest at noon makes no scheduled run late.
    done = min((each.ended_at for each in ended if each.ended_at and not each.unread), default=None)
    late = due is not None and (done or now) > due
    return ScheduledRun(day, _state(digest), late, digest)


def _state(digest: Digest) -> RunState:
    if digest.status == "running":
        return "running"
    if digest.status == "paused" or digest.status == "stopped" or digest.unread:
        return "half-answered"
    return "withheld" if digest.withheld else digest.status
