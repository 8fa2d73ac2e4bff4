"""Reading chosen segments of a stream as one text, in one conversation."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from itertools import accumulate

from memagent.errors import ConfigError
from memagent.reading import Generate, Reading, Record, Scheme, Stream
from memagent.records import Evidence, Outcome, Segment, Turn


def widened(scheme: Scheme, window_tokens: int | None) -> Scheme:
    """Return the scheme of conversations over `window_tokens` of text; None: as much as a segment has.

    Its `check_window` tells whether a policy's context window has room for that.

    Raises:
        ConfigError: not even one segment fits.
    """
    size = scheme.config.segment_tokens
    if window_tokens is None or window_tokens == size:
        return scheme
    if window_tokens < size:
        raise ConfigError(
            f"a window of {window_tokens} tokens holds no segment of {size}. Raise it to at least that, or lower "
            "reading.segment_tokens."
        )
    return replace(scheme, config=scheme.config.model_copy(update={"segment_tokens": window_tokens}))


class WindowReading(ABC):
    """One reading of the part of a stream that fits one conversation; which part, a method says in `choose`.

    The conversation is logged under the first chosen segment. Made and run as `Reading` is.
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
        """Take what `Reading` takes, and the tokens of text that one conversation holds at most.

        Raises:
            ConfigError: the window holds no segment.
        """
        self.reading_id = reading_id
        self._question = question
        self._stream = stream
        self._scheme = widened(scheme, window_tokens)
        self._generate = generate
        self._record = record
        self._past = past

    @abstractmethod
    async def choose(self, window_tokens: int) -> list[Segment]:
        """Return the segments to read, in the order of the stream, of `window_tokens` at most."""

    async def run(self) -> Outcome:
        """Choose, read and answer. Raises what `generate` raises."""
        began = time.monotonic()
        chosen = await self.choose(self._scheme.config.segment_tokens)
        joined = _Joined(chosen)
        reading = Reading(
            self.reading_id, self._question, joined, self._scheme, self._generate, self._record, self._past
        )
        outcome = await reading.run()
        return replace(
            outcome,
            evidence=[place for said in outcome.evidence for place in joined.places(said)],
            segments=outcome.segments * len(chosen),
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
                self._starts[-1],
                "".join(part.text for part in self._parts),
                [token for part in self._parts for token in part.token_ids],
            )

    def places(self, said: Evidence) -> list[Evidence]:
        """Return where a place of the joined text stands in the documents.

        A quote that runs on into another segment ends with its own. Where nothing is quoted, no segment among the
        chosen can be named.
        """
        found = []
        for part, start in zip(self._parts, self._starts, strict=False):
            if start <= said.quote_start < start + len(part.text):
                low, high = said.quote_start - start, min(said.quote_end - start, len(part.text))
                found.append(
                    Evidence(
                        part.content_hash,
                        part.index,
                        part.char_start,
                        part.char_end,
                        part.text[low:high],
                        part.char_start + low,
                        part.char_start + high,
                    )
                )
        return found
