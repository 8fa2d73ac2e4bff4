"""Evidence: the segments in which the memory gained the answer, and the sentences of the document that say it."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import regex

from memagent.evaluation.metrics import containment, normalise
from memagent.reading.boundaries import grapheme_start, sentence_ends
from memagent.reading.folding import UNSPACED, FoldedText, locate, places_of
from memagent.records import Evidence, Segment

if TYPE_CHECKING:
    from memagent.reading.conversations import Stream

_JOINED = rf"{UNSPACED}\p{{Hangul}}"
_WORD = regex.compile(
    rf"(?V1)(?P<joined>[{_JOINED}][{_JOINED}\p{{M}}]*)|[[\w\p{{M}}]--[{_JOINED}]]+|[\p{{So}}\p{{Sc}}\p{{Sm}}]"
)
_OUTER = regex.compile(r"(?V1)^[\s\p{P}]+|[[\s\p{P}]--[%‰)\]]]+$")
_STEM = 5
"""Letters of a longer word that are compared: the rest is often an ending."""
_QUOTE_CHARS = 1_000
_MOST = 5
_MOST_SENTENCES = 3
"""Of one segment, where no one sentence has all of an answer that does not stand there word for word."""
_SUPPORT = 0.5
_MORE_SUPPORT = 0.3
"""Share of the answer's words, by weight, that a further sentence must add."""


@dataclass(frozen=True, slots=True)
class Note:
    """A memory that a segment changed: the segment's position in the stream, the memory after it."""

    position: int
    memory: str


def gained(answer: str, notes: list[Note]) -> list[int]:
    """Return the positions at which the memory gained the answer, best first.

    The degree to which a memory holds the answer is the share of the answer's words in it (`terms`); positions at which
    that share rises are returned. A gain that was lost again counts less than the last one.
    """
    words = terms(answer)
    if not words:
        return []
    rises: list[tuple[float, int]] = []
    before = 0.0
    for note in sorted(notes, key=lambda note: note.position):
        share = len(words & terms(note.memory)) / len(words)
        if share > before:
            rises.append((share, note.position))
        before = share
    rises.sort(key=lambda rise: (-rise[0], -rise[1]))
    return [position for share, position in rises if share >= rises[0][0] / 2]


def contradicted(answer: str, notes: Sequence[Note]) -> str:
    """Return the sentence of an earlier memory that the last one says otherwise; empty: there is none.

    It has most of its words in common with the last memory, but neither the answer nor some of what it said: a number,
    say. Texts that correct themselves read so, and texts that try to change the memory.
    """
    ordered = sorted(notes, key=lambda note: note.position)
    wanted, last = terms(answer), terms(ordered[-1].memory) if ordered else frozenset()
    if not wanted <= last:
        return ""
    for note in reversed(ordered[:-1]):
        for start, end in pairwise(_ends(note.memory)):
            said = terms(note.memory[start:end])
            if not wanted <= said and 0 < len(said - last) < len(said & last):
                return note.memory[start:end].strip()
    return ""


def terms(text: str) -> frozenset[str]:
    """Return what texts are compared by: words, folded and without endings, and signs (✓, €).

    Where words are joined (Chinese, Japanese, Korean, Thai), it is each two characters in a row, as in Lucene's
    CJKBigramFilter.
    """
    found = set[str]()
    for match in _WORD.finditer(FoldedText(text).folded):
        word = match[0]
        if not word.isascii() and match["joined"] and len(word) > 1:
            found.update(map("".join, pairwise(word)))
        else:
            found.add(word[:_STEM] if word.isalpha() else word)
    return frozenset(found)


def says(text: str, answers: Sequence[str]) -> bool:
    """Whether a text contains one of some answers as whole words, as it is or normalised ("2008's" says "2008")."""
    given = [answer for answer in answers if normalise(answer)]
    return containment(text, given) > 0 or any(locate(answer, text) for answer in given)


async def gather_evidence(answer: str, notes: list[Note], stream: "Stream") -> list[Evidence]:
    """Return the evidence of an answer, best first and word for word first, at most five places."""
    memories = {note.position: note.memory for note in notes}
    evidence: list[Evidence] = []
    for position in gained(answer, notes)[:_MOST]:
        async for segment in stream.read(position, position + 1):
            evidence += _in_segment(answer, memories[position], segment)
    return sorted(evidence, key=lambda piece: (not piece.quote, not piece.verbatim))[:_MOST]


def _in_segment(answer: str, memory: str, segment: Segment) -> Iterator[Evidence]:
    """Yield the sentence that says an answer word for word, else those that support it best, else the segment."""
    text = segment.text
    places = places_of(answer, text) or places_of(_OUTER.sub("", answer), text)
    # Where the answer stands at one place alone, as it does most often, the note decides nothing.
    noted = frozenset[str]() if len(places) == 1 else _noted(answer, memory)
    quotes = [_sentence_with(text, places, noted)] if places else _supporting(text, terms(answer), noted)
    place = (segment.content_hash, segment.index, segment.char_start, segment.char_end)
    for start, end in quotes:
        at = segment.char_start
        yield Evidence(*place, text[start:end], at + start, at + end, verbatim=bool(places))
    if not quotes:
        yield Evidence(*place, "", verbatim=False)


def _noted(answer: str, memory: str) -> frozenset[str]:
    """Return the terms of the sentence of a memory that holds most of an answer."""
    wanted, ends = terms(answer), _ends(memory)
    sentences = (terms(memory[start:end]) for start, end in pairwise(ends))
    return max(sentences, key=lambda sentence: len(sentence & wanted), default=frozenset())


def _ends(text: str) -> list[int]:
    return [0, *sentence_ends(text, whole=True), len(text)]


def _sentence_with(text: str, places: Sequence[tuple[int, int]], noted: frozenset[str]) -> tuple[int, int]:
    """Return the sentence around a place that has most of a note: a text may say more than once what was noted."""
    ends = _ends(text)
    around = {
        (ends[bisect_right(ends, start) - 1], ends[bisect_left(ends, end)]): (start, end) for start, end in places
    }
    low, high = next(iter(around))
    if len(around) > 1:
        low, high = max(around, key=lambda sentence: len(terms(text[slice(*sentence)]) & noted))
    return _trimmed(text, (low, high), around[low, high])


def _supporting(text: str, answer: frozenset[str], noted: frozenset[str]) -> list[tuple[int, int]]:
    """Return the sentences that have most of an answer and of its note, rare words first; best first."""
    sentences = {place: terms(text[slice(*place)]) for place in pairwise(_ends(text))}
    seen = Counter(term for words in sentences.values() for term in words)

    def weight(words: frozenset[str]) -> float:
        return sum(math.log1p(len(sentences) / max(seen[word], 0.5)) for word in words)

    whole, whole_note = weight(answer) or 1.0, weight(noted) or 1.0

    def support(place: tuple[int, int]) -> float:
        return weight(sentences[place] & answer) / whole + weight(sentences[place] & noted) / whole_note

    best = max(sentences, key=support)
    if support(best) < _SUPPORT:
        return []
    chosen, missing = [best], answer - sentences[best]
    while missing and len(chosen) < _MOST_SENTENCES:
        best = max(sentences, key=lambda place: weight(sentences[place] & missing))
        if weight(sentences[best] & missing) < _MORE_SUPPORT * whole:
            break
        chosen, missing = [*chosen, best], missing - sentences[best]
    return [_trimmed(text, place, (place[0], place[0])) for place in chosen]


def _trimmed(text: str, sentence: tuple[int, int], inside: tuple[int, int]) -> tuple[int, int]:
    """Return a sentence without white space around it; of a very long one the words near a place in it."""
    (low, high), (start, end) = sentence, inside
    room = max(_QUOTE_CHARS, end - start)
    if high - low > room:
        first = max(low, min(start - (room - (end - start)) // 2, high - room))
        last = min(high, first + room)
        if first > low:
            low = next((i for i in range(first, start) if text[i].isspace()), grapheme_start(text, first))
        if last < high:
            high = next((i for i in range(last, end, -1) if text[i].isspace()), grapheme_start(text, last))
    said = text[low:high]
    return high - len(said.lstrip()), low + len(said.rstrip())
