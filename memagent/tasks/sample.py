"""A sample: a text, a question, the gold answers, and the facts in the text that they come from.

Every suite of the evaluation makes samples; readings, controls, scores and reports all work on them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from memagent.records import Json

Match = Literal["all", "part", "f1", "exact", "contract"]
"""How an answer is scored: share of the gold texts that it holds (RULER's string_match_all), whether it holds any
(string_match_part), best token F1 (LongBench), exact match after normalisation, or by the contract category in
`about`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One question over one text.

    `pieces` gives the text piece by piece, the same at every call: a text of millions of tokens is never a list.
    """

    sample_id: str
    """Differs within a suite; the same samples have the same ids in every run, so that runs can be paired."""
    task: str
    """Name of the task, for example ``niah_multikey_1`` or ``Governing Law``."""
    length: int
    """Tokens of the text that were asked for; 0 where the text is as long as it is."""
    pieces: Callable[[], Iterator[str]]
    question: str
    answers: tuple[str, ...]
    """Gold. A single empty text: the text does not say."""
    match: Match
    facts: tuple[str, ...] = ()
    """Sentences of the text, verbatim, that hold what is asked; without them it cannot be answered."""
    depth: float | None = None
    """Where the (first) fact stands, 0 (start) to 1 (end); None where that has no meaning."""
    about: Json = field(default_factory=dict)
    """Further attributes that reports group by: category, documents, variant."""

    def text(self) -> str:
        """Return the whole text."""
        return "".join(self.pieces())
