"""Cutting a document into segments, without losing a character.

Segments follow the text from left to right, and where a cut falls depends only on the text around
it, so a document that grew keeps its segments up to the first change.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Literal, NamedTuple

from memagent.reading.boundaries import grapheme_start, sentence_ends
from memagent.reading.tokens import Tokenizer
from memagent.records import Segment, stable_hash

Boundary = Literal["soft", "hard"]
CUTTING_VERSION = 2
"""Version of the rules by which texts are cut. A change of them must raise it: segments of two versions never mix, and
readings of them have different ids."""
_WINDOW = 200_000
"""Characters tokenised at once: a whole document of millions of tokens would need gigabytes."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_SPACE = re.compile(r"\s+")


def segment_key(content_hash: str, tokenizer: Tokenizer, segment_tokens: int, boundary: Boundary) -> str:
    """Return the id of a segmentation: a hash of all that determines a document's segments."""
    return stable_hash(content_hash, tokenizer.fingerprint, segment_tokens, boundary, CUTTING_VERSION)


def segments(
    content_hash: str, text: str, tokenizer: Tokenizer, segment_tokens: int, boundary: Boundary = "soft"
) -> Iterator[Segment]:
    """Yield the segments of `text`, each of at most `segment_tokens` tokens.

    With boundary ``soft`` a segment ends at the last paragraph end, else the last sentence end, in its last fifth; else
    at its last sentence end; else at white space. With ``hard``, or where there is none, it ends at the token limit.
    A cut is never within a grapheme cluster (Unicode Standard Annex 29), unless a single one has more tokens than a
    segment. Character offsets are in `text`; the segments' texts joined give `text` exactly.
    """
    index, start, size = 0, 0, _WINDOW
    while start < len(text):
        end = min(len(text), start + size)
        part = _Part.of(text, tokenizer, start, end)
        for low, high in part.pieces(segment_tokens, boundary, whole=end == len(text)):
            first, last = part.char(low), part.char(high)
            ids = part.ids[low:high]
            yield Segment(content_hash, index, first, char_end=last, text=text[first:last], token_ids=ids)
            index, start = index + 1, last
        # What is left of a window begins the next one, which is wider if it held no segment.
        size = _WINDOW if start > part.start else 2 * size


class _Part(NamedTuple):
    """The tokens of a stretch of a text."""

    text: str
    start: int
    end: int
    ids: list[int]
    offsets: list[tuple[int, int]]
    """Characters of each token, counted from `start`."""

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, start: int, end: int) -> "_Part":
        return cls(text, start, end, *tokenizer.encode_with_offsets(text[start:end]))

    def char(self, token: int) -> int:
        """Return the offset in the text at which a token begins; the first one, where the stretch does."""
        if token == len(self.ids):
            return self.end
        return self.start + (self.offsets[token][0] if token else 0)

    def pieces(self, size: int, boundary: Boundary, *, whole: bool) -> Iterator[tuple[int, int]]:
        """Yield first token and end of each segment; of a stretch that goes on (not `whole`), all but the last one."""
        first = 0
        while first + size < len(self.ids):
            end = self._cut(first, first + size, boundary)
            yield first, end
            first = end
        # A tokenizer that drops white space may give no token for a stretch of it.
        if whole and (first < len(self.ids) or not self.ids):
            yield first, len(self.ids)

    def _cut(self, first: int, limit: int, boundary: Boundary) -> int:
        """Return the token that ends a segment which begins at token `first`."""
        if boundary == "soft":
            fifth = limit - max(1, (limit - first) // 5)
            ways = (
                (partial(_ends, _PARAGRAPH), fifth),
                (sentence_ends, fifth),
                (sentence_ends, first),
                (partial(_ends, _SPACE), fifth),
                (partial(_ends, _SPACE), first),
            )
            for ends, earliest in ways:
                for end in reversed(list(ends(self.text, self.char(earliest), self.char(limit)))):
                    token = self._token_at(end)
                    if token is not None and max(earliest, first + 1) <= token <= limit:
                        return token
        return self._hard_cut(first, limit)

    def _token_at(self, end: int) -> int | None:
        """Return the token that begins at a place in the text, or in the white space before it."""
        while end > self.start:
            token = bisect_left(self.offsets, (end - self.start,))
            if token < len(self.offsets) and self.char(token) == end and self._may_begin(token):
                return token
            if not self.text[end - 1].isspace():
                break
            end -= 1
        return None

    def _hard_cut(self, first: int, limit: int) -> int:
        end = limit
        while end > first and not self._may_begin(end):
            place = grapheme_start(self.text, self.char(end)) - self.start
            end = min(end - 1, bisect_right(self.offsets, place, key=itemgetter(0)) - 1)
        if end > first:
            return end
        # A single cluster has more tokens: cut it between two of its characters.
        ends = chain(range(limit, first, -1), range(limit + 1, len(self.ids)))
        return next((end for end in ends if self._begins_character(end)), len(self.ids))

    def _may_begin(self, token: int) -> bool:
        place = self.char(token)
        return self._begins_character(token) and grapheme_start(self.text, place) == place

    def _begins_character(self, token: int) -> bool:
        # Byte-level tokens can share one character.
        return self.offsets[token][0] >= self.offsets[token - 1][1]


def _ends(pattern: re.Pattern[str], text: str, start: int, stop: int) -> Iterator[int]:
    return (match.end() for match in pattern.finditer(text, start, stop))
