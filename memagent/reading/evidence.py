"""Evidence: the segments in which the memory gained the answer, and the quote in the document."""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from memagent.evaluation.metrics import containment, normalise
from memagent.records import Evidence, Segment

_WORD = re.compile(r"\w+")
_QUOTE_CHARS = 400
_MOST = 5


class _Stream(Protocol):
    def read(self, start: int, stop: int) -> AsyncIterator[Segment]: ...


@dataclass(frozen=True, slots=True)
class Note:
    """A memory that a segment changed: the segment's position in the stream, the memory after it."""

    position: int
    memory: str


def gained(answer: str, notes: list[Note]) -> list[int]:
    """Return the positions at which the memory gained the answer, best first.

    The degree to which a memory holds the answer is the share of the answer's words in it; positions at which that
    share rises are returned. A gain that was lost again counts less than the last one.
    """
    words = {word.lower() for word in _WORD.findall(answer)}
    if not words:
        return []
    rises: list[tuple[float, int]] = []
    before = 0.0
    for note in sorted(notes, key=lambda note: note.position):
        share = len(words & {word.lower() for word in _WORD.findall(note.memory)}) / len(words)
        if share > before:
            rises.append((share, note.position))
        before = share
    rises.sort(key=lambda rise: (-rise[0], -rise[1]))
    return [position for share, position in rises if share >= rises[0][0] / 2]


def locate(needle: str, text: str) -> tuple[int, int] | None:
    """Find `needle` in `text`, ignoring case and white space; return (start, end) or None."""
    words = needle.split()
    if not words:
        return None
    pattern = r"\s+".join(re.escape(word) for word in words)
    edge_left = r"(?<!\w)" if words[0][0].isalnum() else ""
    edge_right = r"(?!\w)" if words[-1][-1].isalnum() else ""
    match = re.search(edge_left + pattern + edge_right, text, flags=re.IGNORECASE)
    return match.span() if match else None


def says(text: str, answers: Sequence[str]) -> bool:
    """Whether a text contains one of some answers as whole words, as it is or normalised ("2008's" says "2008")."""
    given = [answer for answer in answers if normalise(answer)]
    return containment(text, given) > 0 or any(locate(answer, text) for answer in given)


async def gather_evidence(answer: str, notes: list[Note], stream: _Stream) -> list[Evidence]:
    """Return the evidence of an answer, best first, at most five places."""
    memories = {note.position: note.memory for note in notes}
    evidence: list[Evidence] = []
    for position in gained(answer, notes)[:_MOST]:
        async for segment in stream.read(position, position + 1):
            evidence.append(_in_segment(answer, memories[position], segment))
    return evidence


def _in_segment(answer: str, memory: str, segment: Segment) -> Evidence:
    # Prefer the place of the memory's note: the bare answer may also occur elsewhere.
    for line in [memory, *sorted(memory.splitlines(), key=len, reverse=True)]:
        span = locate(line, segment.text) if locate(answer, line) else None
        if span:
            break
    else:
        span = locate(answer, segment.text)
    quote, start, end = "", -1, -1
    if span:
        start, end = _sentence(segment.text, *span)
        quote = segment.text[start:end]
        start, end = segment.char_start + start, segment.char_start + end
    return Evidence(
        segment.content_hash,
        segment.index,
        segment.char_start,
        char_end=segment.char_end,
        quote=quote,
        quote_start=start,
        quote_end=end,
    )


def _sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """Widen a span to the sentence or line around it, within limits."""
    room = max(0, _QUOTE_CHARS - (end - start)) // 2
    before = text[max(0, start - room) : start]
    after = text[end : end + room]
    left = [m.end() for m in re.finditer(r"[.!?]\s+|\n\s*", before)]
    low = max(0, start - room) + (left[-1] if left else 0)
    right = re.search(r"[.!?](?=\s|$)|\n", after)
    high = end + (right.end() if right else len(after))
    return low, len(text[:high].rstrip())
