"""Counts of a run while it runs. Every worker counts its own work; the sum is what people see."""

import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

from infra.logs import LogLine
from memagent.records import Json, Turn

_SILENT_SECONDS = 60.0
"""A worker reports twice a second; one that has not for so long is gone, and nothing is in progress there."""
_LINES = 2_000
"""Log lines of a pass that wait for the driver; of more the newest."""

Progress = Callable[[Json], None]
"""Is called with the counts of a run as they come: the keys of ``progress.jsonl``, those that its stage has."""


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
    """Memory updates that ended at `reading.memory_tokens`, not where the model would have ended them."""
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
        self.memories_cut += turn.kind == "update" and turn.finish_reason == "length"
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


class ProgressActor:
    """Collects the workers' totals and log lines. One Ray actor for all passes of a session."""

    def __init__(self) -> None:
        self._passes: dict[str, dict[str, tuple[float, dict[str, int]]]] = {}
        self._lines: dict[str, deque[LogLine]] = {}

    def report(self, pass_id: str, worker: str, counts: dict[str, int], lines: Sequence[LogLine] = ()) -> None:
        """Take a worker's totals, and what it has logged since its last report."""
        if lines:
            self._lines.setdefault(pass_id, deque(maxlen=_LINES)).extend(lines)
        self._passes.setdefault(pass_id, {})[worker] = (time.monotonic(), counts)

    def reports(self, pass_id: str) -> dict[str, dict[str, int]]:
        """Return the newest totals by worker."""
        silent, gone = time.monotonic() - _SILENT_SECONDS, dict.fromkeys(NOW, 0)
        reports = self._passes.get(pass_id, {})
        return {worker: counts | gone if at < silent else counts for worker, (at, counts) in reports.items()}

    def lines(self, pass_id: str) -> list[LogLine]:
        """Return the log lines since the last call."""
        return list(self._lines.pop(pass_id, ()))


@dataclass(frozen=True, slots=True)
class ProgressReporter:
    """Reports the totals of one pass to the `ProgressActor`. Plain data, passed to workers by value."""

    board: str
    """The actor's name."""
    pass_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def report(self, worker: str, counts: dict[str, int], lines: Sequence[LogLine] = ()) -> None:
        """Send a worker's totals and log lines. If the actor is gone the totals still arrive with the answers."""
        with suppress(ValueError):  # raised by Ray for an unknown actor name
            _actor(self.board).report.remote(self.pass_id, worker, counts, lines)

    def reports(self) -> tuple[Any, Any]:
        """Ask for the workers' newest totals and new log lines; returns references to them.

        Raises:
            ValueError: the actor is gone.
        """
        board = _actor(self.board)
        return board.reports.remote(self.pass_id), board.lines.remote(self.pass_id)


@lru_cache(maxsize=4)
def _actor(name: str) -> Any:
    import ray

    return ray.get_actor(name)
