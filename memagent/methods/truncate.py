"""Truncation: the text is cut in the middle to what fits one conversation (LongBench, arXiv 2308.14508)."""

from memagent.methods.window import WindowReading
from memagent.records import Segment


class Truncate(WindowReading):
    """One reading of a stream's first and last segments. Made and run as `Reading` is."""

    async def choose(self, window_tokens: int) -> list[Segment]:
        """Take segments from both ends in turn until the next one does not fit."""
        head: list[Segment] = []
        tail: list[Segment] = []
        low, high = 0, len(self._stream)
        while low < high:
            side, position = (head, low) if len(head) <= len(tail) else (tail, high - 1)
            async for segment in self._stream.read(position, position + 1):
                window_tokens -= len(segment.token_ids)
                side.append(segment)
            if window_tokens < 0:
                side.pop()
                break
            low, high = len(head), len(self._stream) - len(tail)
        return head + tail[::-1]
