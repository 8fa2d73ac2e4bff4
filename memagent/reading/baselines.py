"""Baselines to compare segment-by-segment reading with, on the same engine, prompts and turn log.

A baseline takes the arguments of `Reading`, its `run` returns a `ReadingResult`, and its conversations are `Turn`s, so
a worker can run any of them instead of a reading. Turns of two baselines must not have the same reading id: see
`config_hash`.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

from memagent.config import METHODS
from memagent.errors import ConfigError, UsageError
from memagent.reading.conversations import Generate, ReadingRequest, ReadingSpec, Record
from memagent.reading.loop import Reading
from memagent.records import Evidence, ReadingResult, Segment, stable_hash


def widened(spec: ReadingSpec, window_tokens: int | None) -> ReadingSpec:
    """Return the spec of conversations over `window_tokens` of text; None: as much as a segment has.

    Its `check_window` tells whether a policy's context window has room for that.

    Raises:
        ConfigError: not even one segment fits.
    """
    size = spec.config.segment_tokens
    if window_tokens is None or window_tokens == size:
        return spec
    if window_tokens < size:
        raise ConfigError(
            f"a window of {window_tokens} tokens holds no segment of {size}. Raise it to at least that, or lower "
            "reading.segment_tokens."
        )
    return replace(spec, config=spec.config.model_copy(update={"segment_tokens": window_tokens}))


class WindowReading(ABC):
    """Reads the part of a stream that fits one conversation; subclasses select it in `choose`.

    The conversation is logged under the first chosen segment.
    """

    def __init__(
        self,
        request: ReadingRequest,
        spec: ReadingSpec,
        generate: Generate,
        record: Record,
        *,
        window_tokens: int | None = None,
    ) -> None:
        """Take what `Reading` takes, and the tokens of text that one conversation holds at most.

        Raises:
            ConfigError: the window holds no segment.
        """
        self._request = request
        self._question = request.question
        self._stream = request.stream
        self._spec = widened(spec, window_tokens)
        self._generate = generate
        self._record = record

    @abstractmethod
    async def choose(self, window_tokens: int) -> list[Segment]:
        """Return the segments to read, in the order of the stream, of `window_tokens` at most."""

    async def run(self) -> ReadingResult:
        """Choose, read and answer. Raises what `generate` raises."""
        began = time.monotonic()
        chosen = await self.choose(self._spec.config.segment_tokens)
        joined = _Joined(chosen)
        result = await Reading(replace(self._request, stream=joined), self._spec, self._generate, self._record).run()
        return replace(
            result,
            evidence=[piece for evidence in result.evidence for piece in joined.places(evidence)],
            segments=result.segments * len(chosen),
            seconds=time.monotonic() - began,
        )


class _Joined:
    """A stream of one segment: the chosen ones joined. Its offsets count from the start of the joined text."""

    def __init__(self, parts: list[Segment]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part.text) for part in parts)]

    def __len__(self) -> int:
        return min(1, len(self._parts))

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        for _ in range(start, min(stop, len(self))):
            first = self._parts[0]
            yield Segment(
                first.content_hash,
                first.index,
                0,
                char_end=self._starts[-1],
                text="".join(part.text for part in self._parts),
                token_ids=[token for part in self._parts for token in part.token_ids],
            )

    def places(self, evidence: Evidence) -> list[Evidence]:
        """Map evidence in the joined text back to its document.

        A quote that crosses a segment boundary is cut there; without a quote the segment is unknown.
        """
        pieces = []
        for part, start in zip(self._parts, self._starts, strict=False):
            if start <= evidence.quote_start < start + len(part.text):
                low, high = evidence.quote_start - start, min(evidence.quote_end - start, len(part.text))
                pieces.append(
                    Evidence(
                        part.content_hash,
                        part.index,
                        part.char_start,
                        char_end=part.char_end,
                        quote=part.text[low:high],
                        quote_start=part.char_start + low,
                        quote_end=part.char_start + high,
                        verbatim=evidence.verbatim,
                    )
                )
        return pieces


class Truncate(WindowReading):
    """Reads a stream's first and last segments."""

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


_OTHER = ""
"""Stands for every word that is not in the question: it counts towards a segment's length only."""


class BM25(WindowReading):
    """Reads the segments nearest to the question (BM25), in stream order."""

    async def choose(self, window_tokens: int) -> list[Segment]:
        """Rank all segments (ties: the earlier first), and take from the top until the next one does not fit."""
        asked = _words(self._question)
        texts: list[list[str]] = []
        tokens: list[int] = []
        async for segment in self._stream.read(0, len(self._stream)):
            # The text of a long document is not kept: all words that are not in the question become one.
            texts.append([word if word in asked else _OTHER for word in _words(segment.text)])
            tokens.append(len(segment.token_ids))
        scores = await asyncio.to_thread(_scores, texts, sorted(set(asked)))
        best: list[int] = []
        for position in sorted(range(len(texts)), key=lambda number: (-scores[number], number)):
            window_tokens -= tokens[position]
            if window_tokens < 0:
                break
            best.append(position)
        return [segment for position in sorted(best) async for segment in self._stream.read(position, position + 1)]


def _words(text: str) -> list[str]:
    words: list[list[str]] = _library().tokenize([text], return_ids=False, show_progress=False)
    return words[0]


def _scores(texts: list[list[str]], asked: list[str]) -> list[float]:
    if not asked or not any(texts):
        return [0.0] * len(texts)  # the library divides by the mean length and takes no empty query
    ranker = _library().BM25()
    ranker.index(texts, show_progress=False)
    return [float(score) for score in ranker.get_scores(asked)]


def _library() -> Any:
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG, whatever the program has set
    return bm25s


_AT_ONCE = 32
"""Segments of one reading in memory at once: it must not grow with the document."""


class MapReduce:
    """Reads every segment in a span of its own, then the notes in windows.

    Logs an "update" turn per segment, a "merge" turn per window of notes, and the answer.
    """

    def __init__(
        self,
        request: ReadingRequest,
        spec: ReadingSpec,
        generate: Generate,
        record: Record,
        *,
        window_tokens: int | None = None,
    ) -> None:
        """Take what `WindowReading` takes; one conversation holds at most `window_tokens` of notes."""
        self._window = widened(spec, window_tokens).config.segment_tokens
        self._prompts = spec.prompts
        spans = spec.config.model_copy(update={"parallel_spans": max(1, len(request.stream))})
        self._reading = Reading(request, replace(spec, config=spans), generate, record)

    async def run(self) -> ReadingResult:
        """Read every segment by itself, then the notes. Raises what `generate` raises."""
        if self._reading.answered:
            return await self._reading.finish([])
        memories = await self._reading.read_spans(_AT_ONCE)
        if len(memories) == 1:
            return await self._reading.finish(memories[0])
        notes = [memory for memory in memories if memory != self._prompts.no_memory]
        texts = packed(notes, self._prompts.tokenizer.encode("\n"), self._window)
        return await self._reading.finish(await self._reading.merge(texts))


def packed(notes: list[list[int]], between: list[int], window_tokens: int) -> list[list[int]]:
    """Join notes in order, `between` them, to texts of at most `window_tokens`; a longer note stands alone."""
    texts: list[list[int]] = []
    for note in notes:
        if texts and len(texts[-1]) + len(between) + len(note) <= window_tokens:
            texts[-1] += between + note
        else:
            texts.append(list(note))
    return texts


class Readable(Protocol):
    """What a worker runs: a reading or a baseline."""

    async def run(self) -> ReadingResult:
        """Read to the end and answer."""


Method = Callable[..., Readable]
"""Takes request, spec, generate and record, as `Reading` does."""


def method(name: str, window_tokens: int | None = None) -> Method:
    """Return the method of that name, reading at most `window_tokens` of text in one conversation.

    The window defaults to ``segment_tokens`` of the reading configuration; ``memagent`` itself takes no other.

    Raises:
        UsageError: no such method, or a window for the reading itself.
    """
    registered: Method = METHODS.find(name)
    if window_tokens is None:
        return registered
    if name == "memagent":
        raise UsageError("the window of the reading itself is reading.segment_tokens: set that in place of a window.")
    return partial(registered, window_tokens=window_tokens)


def config_hash(name: str, window_tokens: int | None, reading_config_hash: str) -> str:
    """Return the hash that names a method's readings; for the reading itself it is the configuration's own."""
    return reading_config_hash if name == "memagent" else stable_hash(name, window_tokens, reading_config_hash)
