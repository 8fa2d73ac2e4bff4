"""Lanes: spans of a stream that are read in parallel (after PI-Mem, arXiv 2608.03048), and where each resumes.

A turn's position is (lane, step): the span's number and the segment's place in it. Merges of the lanes' memories form
one more lane after the others.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from memagent.records import Turn

T = TypeVar("T")
Position = tuple[int, int]
"""Lane and step."""


def spans(segments: int, lanes: int) -> list[range]:
    """Cut `segments` positions into at most `lanes` spans of nearly equal length, in order.

    There is always at least one span, and no span is empty unless the stream is.
    """
    count = max(1, min(lanes, segments))
    size, longer = divmod(segments, count)
    result = []
    start = 0
    for lane in range(count):
        stop = start + size + (lane < longer)
        result.append(range(start, stop))
        start = stop
    return result


class Lanes:
    """The spans of one reading, with their turns in the log.

    `past` are all turns that changed the memory, and the last turn of every lane.
    """

    def __init__(self, segments: int, lanes: int, past: Iterable[Turn]) -> None:
        self.spans = spans(segments, lanes)
        self.count = len(self.spans)
        self.past = sorted(past, key=lambda turn: (turn.lane, turn.step))
        self._segments = segments

    def resume(self, lane: int, no_memory: list[int]) -> tuple[list[int], int]:
        """Return the memory from which a lane resumes, and its next step."""
        logged = [turn for turn in self.past if turn.lane == lane and turn.kind != "answer"]
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
        lane, step = position
        return (self.spans[lane].start if lane < self.count else 0) + step

    def remaining(self, position: Position) -> int:
        """Return the number of segments that a lane has yet to read, including this one."""
        lane, step = position
        return (len(self.spans[lane]) if lane < self.count else self.count) - step


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
