"""Counts of a run while it runs. Every worker counts its own work; the sum is what people see."""

import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any


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
    engine_deaths: int = 0
    engines: int = 0
    """Engines that are up."""

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class Board:
    """The sums over the workers of passes. One Ray actor for all passes of a session, since each costs a process.

    Workers report totals, so that a repeated report adds nothing.
    """

    def __init__(self) -> None:
        self._passes: dict[str, dict[str, dict[str, int]]] = {}

    def report(self, pass_id: str, worker: str, counts: dict[str, int]) -> None:
        """Take a worker's totals."""
        self._passes.setdefault(pass_id, {})[worker] = counts

    def total(self, pass_id: str) -> dict[str, int]:
        """Return the sum over all workers, dead ones included: what they logged is done."""
        by_worker = self._passes.get(pass_id, {}).values()
        return {one.name: sum(counts.get(one.name, 0) for counts in by_worker) for one in fields(Counters)}


@dataclass(frozen=True, slots=True)
class Tally:
    """One pass on the board."""

    board: Any
    """The actor."""
    pass_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def report(self, worker: str, counts: dict[str, int]) -> None:
        """Send a worker's totals."""
        self.board.report.remote(self.pass_id, worker, counts)

    def total(self) -> Any:
        """Ask for the sum over all workers; returns a reference to it."""
        return self.board.total.remote(self.pass_id)
