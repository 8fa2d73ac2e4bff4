"""Parallel spans: spans of a stream that are read in parallel (after PI-Mem, arXiv 2608.03048), and where each resumes.

A turn's position is (span, step): the span's number and the segment's place in it. Merges of the spans' memories form
one more span after the others.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from memagent.records import Turn

T = TypeVar("T")
Position = tuple[int, int]
"""Span and step."""


def span_ranges(segments: int, spans: int) -> list[range]:
    """Cut `segments` positions into at most `parallel_spans` spans of nearly equal length, in order.

    There is always at least one span, and no span is empty unless the stream is.
    """
    count = max(1, min(spans, segments))
    size, longer = divmod(segments, count)
    result = []
    start = 0
    for span in range(count):
        stop = start + size + (span < longer)
        result.append(range(start, stop))
        start = stop
    return result


class ParallelSpans:
    """The spans of one reading, with their turns in the log.

    `past` are all turns that changed the memory, and the last turn of every span.
    """

    def __init__(self, segments: int, spans: int, past: Iterable[Turn]) -> None:
        self.ranges = span_ranges(segments, spans)
        self.count = len(self.ranges)
        self.past = sorted(past, key=lambda turn: (turn.span, turn.step))
        self._segments = segments

    def resume(self, span: int, no_memory: list[int]) -> tuple[list[int], int]:
        """Return the memory from which a span resumes, and its next step."""
        logged = [turn for turn in self.past if turn.span == span and turn.kind != "answer"]
        return (logged[-1].memory_ids, logged[-1].step + 1) if logged else (no_memory, 0)

    @property
    def logged_answer(self) -> Turn | None:
        """The answer's turn in the log."""
        answers = [turn for turn in self.past if turn.kind == "answer"]
        return answers[-1] if answers else None

    @property
    def answer_position(self) -> Position:
        """Position of the answer's turn: after the last segment, or after the last merge."""
        return (0, self._segments) if self.count == 1 else (self.count, self.count)

    def index(self, position: Position) -> int:
        """Return a turn's place in the stream."""
        span, step = position
        return (self.ranges[span].start if span < self.count else 0) + step

    def remaining(self, position: Position) -> int:
        """Return the number of segments that a span has yet to read, including this one."""
        span, step = position
        return (len(self.ranges[span]) if span < self.count else self.count) - step


async def gather_all(parts: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; if one fails, cancel the others and wait for them before its error is raised."""
    if len(parts) == 1:
        return [await parts[0]]
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
