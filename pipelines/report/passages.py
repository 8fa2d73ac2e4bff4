"""Passages of documents: what of a text stands in the report, within an allowance."""

from dataclasses import dataclass
from typing import Any

_CONTEXTS = (2_000, 800, 300, 120)
"""Characters on either side of a place, widest first."""
_WHOLE = 400_000
"""Characters of a document that is embedded whole at most: the browser lays all of it out."""
_LONGEST = 2_000
"""Characters of one place at most; evidence is a sentence or two, a segment can be a chapter."""


@dataclass(frozen=True, slots=True)
class Place:
    """A run of characters of a document that the report points at."""

    start: int
    end: int


def excerpt(text: str, places: list[Place], allowance: int) -> dict[str, Any] | None:
    """Choose what of `text` to show.

    Args:
        text: the document.
        places: what must be seen, most important first.
        allowance: bytes at most, in UTF-8.

    Returns:
        ``chars`` (of the document) and ``pieces``, a list of (first character, text); the whole
        document where it fits, else windows around the places, as wide as the allowance lets them
        be. None where not even one place fits.
    """
    if len(text) <= min(_WHOLE, allowance) and _size(text) <= allowance:
        return {"chars": len(text), "pieces": [[0, text]] if text else []}
    wanted = [Place(max(0, p.start), min(p.end, p.start + _LONGEST, len(text))) for p in places]
    for context in _CONTEXTS:
        pieces = _cut(text, wanted, context)
        if pieces and sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
    while wanted:
        pieces = _cut(text, wanted, _CONTEXTS[-1])
        if sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
        wanted = wanted[: len(wanted) // 2]
    return None


def _cut(text: str, places: list[Place], context: int) -> list[tuple[int, str]]:
    spans: list[list[int]] = []
    for place in sorted(places, key=lambda p: p.start):
        low, high = _low(text, place.start - context), _high(text, place.end + context)
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(high, spans[-1][1])
        else:
            spans.append([low, high])
    return [(low, text[low:high]) for low, high in spans]


def _low(text: str, at: int) -> int:
    """Move to where a word begins."""
    if at <= 0:
        return 0
    space = text.find(" ", at, at + 40)
    return at if space < 0 else space + 1


def _high(text: str, at: int) -> int:
    """Move to where a word ends."""
    if at >= len(text):
        return len(text)
    space = text.rfind(" ", at - 40, at)
    return at if space < 0 else space


def _size(text: str) -> int:
    return len(text.encode("utf-8"))
