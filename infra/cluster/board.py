"""The board of a job: what its workers and its driver tell each other while it runs.

Workers report counts and log lines, and say which item they begin. The driver says when to stop. Since workers may end
at any time, the board also knows how often an item was begun, and which items their workers did not survive.
"""

import asyncio
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

from infra.system.logs import LogLine
from memagent.reading.engine import CUT
from memagent.records import Turn


@dataclass(slots=True)
class Counters:
    """Cumulative counts. Tokens and conversations are counted where the turn is logged, once."""

    readings: int = 0
    documents: int = 0
    segments: int = 0
    conversations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    failures: int = 0
    memories_cut: int = 0
    """Memory updates whose response was cut off at `reading.memory_tokens`, repeated itself or held no text."""
    engine_deaths: int = 0
    engine_milliseconds: int = 0
    """Time that engines were up, summed over engines."""
    engines: int = 0
    """Engines that are up."""
    empty_memories: int = 0
    """Answers that were given from an empty memory."""
    in_flight: int = 0
    """Readings that were begun and have not ended."""

    def add_turn(self, turn: Turn, no_memory: Sequence[int] = ()) -> None:
        """Count a conversation; `no_memory` is what a reading begins with."""
        self.conversations += 1
        self.segments += turn.kind == "update"
        self.memories_cut += turn.kind == "update" and turn.finish_reason in CUT
        self.empty_memories += turn.kind == "answer" and turn.is_empty(no_memory)
        self.prompt_tokens += turn.prompt_tokens
        self.cached_tokens += turn.cached_tokens
        self.output_tokens += len(turn.response_ids)

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


NOW = ("engines", "in_flight")
"""Counts that say how it is now: they fall, too."""


class Totals:
    """The sum of the workers' own totals: repeated or late reports change nothing of what only rises."""

    def __init__(self) -> None:
        self._by_worker: dict[str, dict[str, int]] = {}

    def take(self, worker: str, counts: dict[str, int]) -> None:
        """Take a worker's totals."""
        known = self._by_worker.setdefault(worker, {})
        for name, count in counts.items():
            known[name] = count if name in NOW else max(known.get(name, 0), count)

    def sum(self) -> dict[str, int]:
        """Return the sum over all workers, including dead ones: what they logged is done."""
        by_worker = self._by_worker.values()
        return {counter.name: sum(counts.get(counter.name, 0) for counts in by_worker) for counter in fields(Counters)}


_SILENT_SECONDS = 60.0
"""A worker reports twice a second; one that has not for so long is gone, and nothing is in progress there."""
_LINES = 2_000
"""Log lines of a job that wait for the driver; of more the newest."""
_LOOK_SECONDS = 10.0
_LONE_DEATHS = 4
"""Worker deaths in a row, beyond those that the pool allows, in the search for an item that kills its workers."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the board knows of an item when a worker begins it."""

    item: int = 0
    """Its number in the job."""
    number: int = 0
    """How often it was begun before."""
    killers: tuple[int, ...] = ()
    """Its parts (as given to `Board.note`) during which a worker ended that did nothing else."""
    stopped: bool = False
    """Whether the job is to end: nothing new is begun."""
    broken: str = ""
    """Why the job cannot go on, since workers end one after another; empty: it can."""


@dataclass(slots=True)
class _Job:
    reports: dict[str, tuple[float, dict[str, int]]] = field(default_factory=dict)
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=_LINES))
    workers: set[str] = field(default_factory=set)
    begun: Counter[int] = field(default_factory=Counter)
    noted: dict[int, int] = field(default_factory=dict)
    killers: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    starts: int = 0
    """Workers that have begun since the last result."""
    given_up: int = 0
    """Engines that have given up since the last result."""
    stopped: bool = False


class BoardActor:
    """The boards of a session's jobs: a Ray actor, or an object of this process."""

    def __init__(self) -> None:
        self._jobs: defaultdict[str, _Job] = defaultdict(_Job)

    def report(self, job: str, worker: str, counts: dict[str, int], lines: Sequence[LogLine] = ()) -> bool:
        """See `Board.report`; returns whether the job is to stop."""
        self._jobs[job].reports[worker] = (time.monotonic(), counts)
        self._jobs[job].lines.extend(lines)
        return self._jobs[job].stopped

    def begin(self, job: str, item: int, worker: str, most_deaths: int) -> Attempt:
        """See `Board.begin`."""
        state = self._jobs[job]
        if worker not in state.workers:
            state.workers.add(worker)
            state.starts += 1
        part = state.noted.pop(item, None)
        if part is not None:
            state.killers[item].append(part)
        state.begun[item] += 1
        broken = state.starts > most_deaths + _LONE_DEATHS
        words = f"engine processes keep crashing: {state.starts - 1} in a row without a result" if broken else ""
        return Attempt(item, state.begun[item] - 1, tuple(state.killers[item]), stopped=state.stopped, broken=words)

    def note(self, job: str, item: int, part: int | None) -> None:
        """See `Board.note`."""
        state = self._jobs[job]
        if part is not None:
            state.noted[item] = part
        elif state.noted.pop(item, None) is not None:
            state.starts = 0

    def done(self, job: str, item: int) -> None:
        """See `Board.done`."""
        state = self._jobs[job]
        state.starts = state.given_up = 0
        state.begun[item] = 1  # should its result be lost with a node, what was logged of it is looked for

    def give_up(self, job: str, engines: int) -> bool:
        """See `Board.give_up`."""
        self._jobs[job].given_up += 1
        return self._jobs[job].given_up >= engines

    def stop(self, job: str) -> None:
        """See `Board.stop`."""
        self._jobs[job].stopped = True

    def reports(self, job: str) -> tuple[dict[str, dict[str, int]], list[LogLine]]:
        """See `Board.reports`."""
        silent, gone = time.monotonic() - _SILENT_SECONDS, dict.fromkeys(NOW, 0)
        state = self._jobs[job]
        lines = [state.lines.popleft() for _ in range(len(state.lines))]
        reports = list(state.reports.items())
        return {worker: counts | gone if at < silent else counts for worker, (at, counts) in reports}, lines


class Board:
    """A job's board as its workers and its driver see it. This one is of a job that this process runs itself."""

    is_local = True
    """Whether worker and driver are the same process."""
    stopped = False
    """Whether the job was told to stop, as of this worker's last report."""

    def __init__(self) -> None:
        self._board = BoardActor()

    def report(self, worker: str, counts: dict[str, int], lines: Sequence[LogLine] = ()) -> None:
        """Tell a worker's totals, and what it has logged since its last report. Does not wait."""
        self._board.report("", worker, counts, lines)

    async def begin(self, item: int, worker: str, most_deaths: int) -> Attempt:
        """Say that a worker begins an item; `most_deaths` workers in a row may end without a result.

        What is begun again here is begun by another process, which has a board of its own.
        """
        return Attempt(item, stopped=self.stopped)

    async def note(self, item: int, part: int | None) -> None:
        """Say which part of an item a worker begins while it does nothing else; None: it has survived the last one."""

    async def done(self, item: int) -> None:
        """Say that an item's result is on its way to the driver."""

    async def give_up(self, engines: int) -> bool:
        """Say that an engine cannot be started any more; return whether the job should end, as all its engines have."""
        return True

    def stop(self) -> None:
        """Have all workers begin nothing any more, and return what they have."""
        self.stopped = True

    def reports(self) -> tuple[dict[str, dict[str, int]], list[LogLine]]:
        """Return the workers' newest totals, and the log lines since the last call.

        Raises ConnectionError: the board is away.
        """
        return self._board.reports("")


class RemoteBoard(Board):
    """The board of a job in Ray: sent to workers by value, it finds its actor by name.

    The actor is restarted where it dies, and gets the counts with the workers' next reports.
    """

    is_local = False

    def __init__(self, actor: str, job: str = "") -> None:
        """Name the actor (`infra.cluster.session.board_name`)."""
        self._actor, self._job = actor, job or uuid.uuid4().hex
        self._sent: list[Any] = []

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return RemoteBoard, (self._actor, self._job)

    def report(self, worker: str, counts: dict[str, int], lines: Sequence[LogLine] = ()) -> None:
        """See `Board.report`."""
        import ray

        with suppress(ValueError):  # raised by Ray for an unknown actor name
            self._sent.append(_actor(self._actor).report.remote(self._job, worker, counts, lines))
        answered, self._sent = ray.wait(self._sent, num_returns=len(self._sent), timeout=0) if self._sent else ([], [])
        with suppress(ray.exceptions.RayError):
            self.stopped |= any(ray.get(answered))

    async def begin(self, item: int, worker: str, most_deaths: int) -> Attempt:
        """See `Board.begin`."""
        attempt = await self._ask("begin", item, worker, most_deaths)
        self.stopped |= attempt is not None and attempt.stopped
        return attempt or Attempt(item)

    async def note(self, item: int, part: int | None) -> None:
        """See `Board.note`."""
        await self._ask("note", item, part)

    async def done(self, item: int) -> None:
        """See `Board.done`."""
        await self._ask("done", item)

    async def give_up(self, engines: int) -> bool:
        """See `Board.give_up`."""
        return bool(await self._ask("give_up", engines))

    def stop(self) -> None:
        """See `Board.stop`."""
        self.stopped = True
        with suppress(ValueError):
            _actor(self._actor).stop.remote(self._job)

    def reports(self) -> tuple[dict[str, dict[str, int]], list[LogLine]]:
        """See `Board.reports`."""
        import ray

        try:
            reports: tuple[dict[str, dict[str, int]], list[LogLine]] = ray.get(
                _actor(self._actor).reports.remote(self._job), timeout=_LOOK_SECONDS
            )
        except (ray.exceptions.RayError, ValueError) as error:
            raise ConnectionError(f"no counts now: {type(error).__name__}") from error
        return reports

    async def _ask(self, method: str, *arguments: object) -> Any:
        """Call the actor; None: it is gone."""
        import ray

        try:
            call = getattr(_actor(self._actor), method).remote(self._job, *arguments)
            return await asyncio.wrap_future(call.future())
        except (ray.exceptions.RayError, ValueError):
            return None


@lru_cache(maxsize=4)
def _actor(name: str) -> Any:
    import ray

    return ray.get_actor(name)
