"""Counts of a run while it runs. Every worker counts its own work; the sum is what people see."""

from dataclasses import asdict, dataclass, fields


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
    """The sum over workers. Runs as a Ray actor; workers report totals, so that a repeated report adds nothing."""

    def __init__(self) -> None:
        self._by_worker: dict[str, dict[str, int]] = {}

    def report(self, worker: str, counts: dict[str, int]) -> None:
        """Take a worker's totals."""
        self._by_worker[worker] = counts

    def total(self) -> dict[str, int]:
        """Return the sum over all workers, dead ones included: what they logged is done."""
        return {
            field.name: sum(counts.get(field.name, 0) for counts in self._by_worker.values())
            for field in fields(Counters)
        }
