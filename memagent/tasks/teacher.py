"""The teacher: a scripted reader that knows where the answers are, and writes the ideal notes.

It plays a reading by the same rules as the policy it teaches: a segment that adds nothing leaves the
memory as it is; one that holds the fact is noted in its own words; a wrong note gives way to the right one.
"""

from dataclasses import dataclass

from memagent.records import Segment


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
