"""What the memory updates of a rollout did, beside the segments that held something: what gates are paid by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryUpdate:
    """One update of a rollout."""

    changed: bool
    """The memory is another one after it: the update gate was open."""
    whole: bool
    """The policy ended its response itself."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The updates of one rollout, read in one span."""

    updates: tuple[MemoryUpdate, ...]
    """In the order of the segments; fewer than these after an early exit."""
    segments: int
    """Segments of the task."""
    evidence: tuple[bool, ...] | None
    """Of each segment, whether it holds what the question asks for; None: unknown."""

    @property
    def enough(self) -> int | None:
        """Segments up to the last with evidence, after which nothing more is to be read; None: unknown.

        Where there is nothing to find, all must be read to know it.
        """
        if self.evidence is None:
            return None
        return max((i for i, holds in enumerate(self.evidence, 1) if holds), default=self.segments)
