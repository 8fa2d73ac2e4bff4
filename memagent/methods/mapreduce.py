"""Map and reduce: every segment is read on its own, then what was noted is read once more in order."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from memagent.methods.window import widened
from memagent.reading import Generate, Reading, Record, Scheme, Stream
from memagent.records import Turn

_AT_ONCE = 32
"""Segments of one reading in memory at once: it must not grow with the document."""


class MapReduce(Reading):
    """A reading with a lane for every segment, whose notes are read in conversations of a window each.

    An "update" turn a segment, a "merge" turn a window of notes, the answer. Made and run as `Reading` is.
    """

    def __init__(
        self,
        reading_id: str,
        question: str,
        stream: Stream,
        scheme: Scheme,
        generate: Generate,
        record: Record,
        past: Iterable[Turn] = (),
        *,
        window_tokens: int | None = None,
    ) -> None:
        """Take what `Reading` takes, and the tokens of notes that one conversation holds at most.

        Raises:
            ConfigError: the window holds no segment.
        """
        self._window = widened(scheme, window_tokens).config.segment_tokens
        lanes = replace(scheme, config=scheme.config.model_copy(update={"lanes": max(1, len(stream))}))
        super().__init__(reading_id, question, stream, lanes, generate, record, past)
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def _read_lane(self, lane: int) -> list[int]:
        async with self._room:
            return await super()._read_lane(lane)

    async def _merge(self, memories: list[list[int]]) -> list[int]:
        notes = [memory for memory in memories if memory != self._prompts.no_memory]
        return await super()._merge(packed(notes, self._prompts.tokenizer.encode("\n"), self._window))


def packed(notes: list[list[int]], between: list[int], window_tokens: int) -> list[list[int]]:
    """Join notes in order, `between` them, to texts of at most `window_tokens`; a longer note stands alone."""
    texts: list[list[int]] = []
    for note in notes:
        if texts and len(texts[-1]) + len(between) + len(note) <= window_tokens:
            texts[-1] += between + note
        else:
            texts.append(list(note))
    return texts
