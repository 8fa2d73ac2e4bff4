"""Counts of a run while it runs: every worker counts its own work, and the sum is what people see."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

from memagent.records import Json, Turn

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
