"""Cutting a document into segments, without losing a character.

Segments follow the text from left to right, and where a cut falls depends only on the text around
it, so a document that grew keeps its segments up to the first change.
"""

import re
from collections.abc import Iterator
from typing import Literal

from memagent.reading.tokens import Tokenizer
from memagent.records import Segment, stable_hash

Boundary = Literal["soft", "hard"]
_WINDOW = 200_000
"""Characters tokenised at once: a whole document of millions of tokens would need gigabytes."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_SENTENCE = re.compile(r"(?:[.!?;:][\"')\]\u201d\u2019]*\s+|\n\s*)")


def segment_key(content_hash: str, tokenizer: Tokenizer, segment_tokens: int, boundary: Boundary) -> str:
    """Return the id of a segmentation: a hash of all that determines a document's segments."""
    return stable_hash(content_hash, tokenizer.fingerprint, segment_tokens, boundary)


def segments(
    content_hash: str, text: str, tokenizer: Tokenizer, segment_tokens: int, boundary: Boundary = "soft"
) -> Iterator[Segment]:
    """Yield the segments of `text`, each of at most `segment_tokens` tokens.

    With boundary ``soft`` a segment ends at the last paragraph end, else the last sentence or line
    end, that lies in its last fifth; with ``hard``, or where there is none, at the token limit.
    Character offsets are in `text`; the segments' texts joined give `text` exactly.
    """
    index = 0
    start = 0
    while start < len(text):
        window = text[start : _window_end(text, start)]
        ids, offsets = tokenizer.encode_with_offsets(window)
        first_token = 0
        while first_token < len(ids):
            end = _cut(window, offsets, first_token, size=segment_tokens, boundary=boundary)
            first = 0 if first_token == 0 else offsets[first_token][0]
            last = len(window) if end == len(ids) else offsets[end][0]
            yield Segment(
                content_hash,
                index,
                start + first,
                char_end=start + last,
                text=window[first:last],
                token_ids=ids[first_token:end],
            )
            index += 1
            first_token = end
        if not ids:  # a tokenizer that drops white space may give nothing for a window of it
            yield Segment(content_hash, index, start, char_end=start + len(window), text=window, token_ids=[])
            index += 1
        start += len(window)


def _window_end(text: str, start: int) -> int:
    end = start + _WINDOW
    if end >= len(text):
        return len(text)
    for mark in ("\n\n", "\n", " "):
        boundary = text.rfind(mark, start + _WINDOW // 2, end)
        if boundary >= 0:
            return boundary + len(mark)
    return end


def _cut(window: str, offsets: list[tuple[int, int]], start: int, size: int, boundary: Boundary) -> int:
    limit = start + size
    if limit >= len(offsets):
        return len(offsets)
    if boundary == "soft":
        soft = _soft_cut(window, offsets, start, limit)
        if soft is not None:
            return soft
    end = limit
    # Byte-level tokens can share one character; a segment begins only where a new character does.
    while end > start + 1 and not _starts_character(offsets, end):
        end -= 1
    if not _starts_character(offsets, end):
        end = limit
        while end < len(offsets) and not _starts_character(offsets, end):
            end += 1
    return end


def _soft_cut(window: str, offsets: list[tuple[int, int]], start: int, limit: int) -> int | None:
    earliest = limit - max(1, (limit - start) // 5)
    low, high = offsets[earliest][0], offsets[limit][0]
    tail = window[low:high]
    for pattern in (_PARAGRAPH, _SENTENCE):
        ends = [low + match.end() for match in pattern.finditer(tail)]
        for boundary in reversed(ends):
            for end in range(limit, max(earliest, start + 1) - 1, -1):
                if offsets[end][0] < boundary - 1:
                    break
                # A token may begin with the white space that ends the sentence.
                if offsets[end][0] in (boundary, boundary - 1) and _starts_character(offsets, end):
                    return end
    return None


def _starts_character(offsets: list[tuple[int, int]], i: int) -> bool:
    return i >= len(offsets) or offsets[i][0] >= offsets[i - 1][1]
