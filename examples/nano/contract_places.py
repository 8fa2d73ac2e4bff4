"""Where contracts state what a reader should note: places of answers within the annotated clauses."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from memagent.evaluation.contracts import DATE, Category, Contract, spaced
from memagent.records import Segment

_LAW_REACH = 120
_CLAUSE = re.compile(r"(?i)\b(?:governed|construed|interpreted|controlled)\b[^.]{0,150}\blaws?\b")
_LATE = 20_000
"""Characters from the start beyond which a title or a date in passing is another document's."""


@dataclass(frozen=True, slots=True)
class NeedlePlace:
    """Where a text states a fact: characters of the note in the document, and the answer in the note."""

    start: int
    end: int
    note: str
    value: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A question and all places of the document that answer it; none means "not found"."""

    question: str
    places: tuple[NeedlePlace, ...] = ()

    def update(self, segment: Segment, noted: NeedlePlace | None) -> NeedlePlace | None:
        """Return the place to note after this segment, or None to leave the memory as it is.

        `noted` is the place that the memory holds. A place that the segment's edge cuts does not count.
        """
        if noted in self.places and noted is not None:
            return None
        for place in sorted(self.places, key=lambda place: place.start):
            if segment.char_start <= place.start and place.end <= segment.char_end:
                return place
        return None

    def answer(self, noted: NeedlePlace | None) -> str:
        """Return the answer from the noted place; empty for "not found"."""
        return noted.value if noted is not None and noted in self.places else ""


def note_places(contract: Contract, category: Category) -> tuple[NeedlePlace, ...]:
    """Return where a reader should note the answer of a category; none where it is not verbatim."""
    return tuple(_notes(category, contract.text, contract.spans[category], contract.answers[category]))


def _notes(category: Category, text: str, spans: tuple[tuple[int, int], ...], answer: str) -> list[NeedlePlace]:
    if not answer:
        return []
    if category == "Governing Law":
        return [place for start, end in spans for place in law_places(text, start, end, answer)]
    places: list[NeedlePlace] = []
    for start, end in spans:
        if start < _LATE or not places:
            while end > start and text[end - 1] in " .,;:(\n\t":
                end -= 1
            if category == "Agreement Date" and (date := DATE.search(text, start, end)):
                start, end = date.span()
            places.append(_place(text, start, end, start))
    return places


def law_places(text: str, start: int, end: int, answer: str) -> list[NeedlePlace]:
    """Return where a clause names its law: "laws of the State of Nevada", answered by "Nevada"."""
    clause = text[start:end]
    for match in _law_names(clause, answer):
        reach = max(0, match.start() - _LAW_REACH)
        laws = list(re.finditer(r"(?i)\blaws?\b", clause[reach : match.start()]))
        low = reach + laws[-1].start() if laws else match.start()
        return [_place(text, start + low, start + match.end(), start + match.start())]
    return []


def _law_names(clause: str, answer: str) -> list[re.Match[str]]:
    # Gold may say more than the clause does: "England, United Kingdom; Wales, United Kingdom".
    parts = [part.split(",")[0].strip() for part in answer.split(";")]
    for name in (answer, " and ".join(parts), parts[0]):
        if name and (matches := list(spaced(name).finditer(clause))):
            return matches
    return []


def _place(text: str, start: int, end: int, value: int) -> NeedlePlace:
    return NeedlePlace(start, end, led(text, start, end), led(text, value, end))


def led(text: str, start: int, end: int) -> str:
    """Return a piece of `text` with the space before it, so that the note has the same tokens as the text."""
    return (" " if text[max(0, start - 1) : start] == " " else "") + text[start:end]


def other_laws(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return clauses outside of the gold `spans` that read like a governing law: unfit as negatives."""
    gold = list(spans)
    return [
        match.span()
        for match in _CLAUSE.finditer(text)
        if not any(start < match.end() and match.start() < end for start, end in gold)
    ]
