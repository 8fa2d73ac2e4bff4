"""Haystacks: texts of any length in units, generated as they are read, with known token counts.

A unit is a sentence or a line with the separator before it, so that a needle fits between any two.
"""

import random
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import accumulate, chain
from typing import Protocol

from memagent.errors import UsageError
from memagent.evaluation.ruler.kinds import Meter
from memagent.reading.tokens import Tokenizer

FILLER = (
    "The road follows the river for a while.",
    "A cart passes now and then.",
    "The trees stand in a long row.",
    "The day goes on as it did before.",
    "There is no more to say about it.",
)
"""The filler of a haystack without content."""

_REPEATS = 256
_LINES = 64
_SURE = 512
"""Lines that are counted one by one; the rest is estimated from their mean."""
_WINDOW = 100_000
_TRIES = 64
_BEFORE = "It is so."
_LONGEST = 1000
"""Characters of a unit: longer stretches without a sentence end are cut between words."""
_END = re.compile(r"[.!?][\"')\]\u201d\u2019]*(?=\s)|(?=\n[ \t\r]*\n)")


class Haystack(Protocol):
    """Units numbered from 0 without end."""

    def within(self, tokens: float) -> int:
        """Return how many whole units from the first on fit into `tokens`."""

    def tokens(self, unit: int) -> int:
        """Return the tokens of the first `unit` units."""

    def run(self, start: int, stop: int) -> Iterator[str]:
        """Yield the text of units `start` to `stop`, a few thousand characters at a time."""


class _Repeated:
    """Units that begin again with the first when they run out; `_sums` has the tokens of the first 0, 1, ... units."""

    _sums: Sequence[int]
    _start = _before = 0
    """Where it begins: the number of a unit, and the tokens before it."""

    def __len__(self) -> int:
        return len(self._sums) - 1

    def within(self, tokens: float) -> int:
        """Return how many whole units from the first on fit into `tokens`."""
        rounds, rest = divmod(max(0, int(self._before + tokens)), self._sums[-1])
        return max(0, rounds * len(self) + bisect_right(self._sums, rest) - 1 - self._start)

    def tokens(self, unit: int) -> int:
        """Return the tokens of the first `unit` units."""
        rounds, rest = divmod(self._start + unit, len(self))
        return rounds * self._sums[-1] + self._sums[rest] - self._before


class Filler(_Repeated):
    """The same few sentences over and over, a line each time."""

    def __init__(self, meter: Meter) -> None:
        """Count the sentences once."""
        units = [("\n" if i == 0 else " ") + sentence for i, sentence in enumerate(FILLER)]
        self._sums = [0, *accumulate(map(meter, units))]
        self._text = "".join(units) * _REPEATS
        self._ends = [0, *accumulate(map(len, units * _REPEATS))]

    def run(self, start: int, stop: int) -> Iterator[str]:
        """Yield the text of units `start` to `stop`."""
        size = len(self._ends) - 1
        while start < stop:
            first = start % len(self)
            last = min(size, first + stop - start)
            yield self._text[self._ends[first] : self._ends[last]]
            start += last - first


class Lines:
    """Lines that are made by their number, each different."""

    def __init__(self, meter: Meter, line: Callable[[int], str]) -> None:
        """Count the first lines; `line` gives the text of line i."""
        costs = [meter("\n" + line(i)) for i in range(_SURE)]
        self._sums = [0, *accumulate(costs)]
        self._line = line
        mean = self._sums[-1] / _SURE
        spread = (sum((cost - mean) ** 2 for cost in costs) / _SURE) ** 0.5
        # Three standard errors on the safe side: the text does not get longer than asked.
        self._mean: float = mean + 3 * spread / _SURE**0.5

    def within(self, tokens: float) -> int:
        """Return how many whole units from the first on fit into `tokens`."""
        if tokens < self._sums[-1]:
            return max(0, bisect_right(self._sums, tokens) - 1)
        return _SURE + int((tokens - self._sums[-1]) / self._mean)

    def tokens(self, unit: int) -> int:
        """Return the tokens of the first `unit` units."""
        if unit <= _SURE:
            return self._sums[unit]
        return self._sums[-1] + round((unit - _SURE) * self._mean)

    def run(self, start: int, stop: int) -> Iterator[str]:
        """Yield the text of units `start` to `stop`."""
        for first in range(start, stop, _LINES):
            yield "".join("\n" + self._line(i) for i in range(first, min(stop, first + _LINES)))


class HaystackTexts(_Repeated):
    """Real texts cut at sentence ends, one after the other, from the first again when they run out."""

    def __init__(self, texts: Iterable[str], tokenizer: Tokenizer, tokens: int) -> None:
        """Take as many of the texts as give `tokens`, and count their sentences.

        Raises:
            UsageError: there are no texts.
        """
        self._texts: list[str] = []
        self._ends: list[array[int]] = []
        self._firsts = array("q")
        self._sums = sums = array("q", [0])
        for text in texts:
            if not text.strip():
                continue
            ends = array("q", chain([len(text) - len(text.lstrip())], _ends(text)))
            self._firsts.append(len(self))
            self._texts.append(text)
            self._ends.append(ends)
            sums.extend(_counted(text, ends, tokenizer, sums[-1]))
            if self._sums[-1] >= tokens:
                break
        if not self._texts:
            raise UsageError("this task hides needles in real text: give texts, each a string with some sentences.")

    def holds(self, text: str) -> bool:
        """Tell whether `text` stands in one of the texts."""
        return any(text in essay for essay in self._texts)

    def close(self, rng: random.Random, tokens: int) -> "HaystackTexts":
        """Begin at a random sentence, chosen so that a sentence ends close below `tokens`."""
        begun = [self._begun(rng.randrange(len(self))) for _ in range(_TRIES)]
        return max(begun, key=lambda texts: texts.tokens(texts.within(tokens)))

    def _begun(self, start: int) -> "HaystackTexts":
        begun = copy(self)
        begun._start, begun._before = start, self.tokens(start)
        return begun

    def run(self, start: int, stop: int) -> Iterator[str]:
        """Yield the text of units `start` to `stop`."""
        start, stop = self._start + start, self._start + stop
        while start < stop:
            unit = start % len(self)
            i = bisect_right(self._firsts, unit) - 1
            ends = self._ends[i]
            first = unit - self._firsts[i]
            last = min(len(ends) - 1, first + stop - start)
            if first == 0:
                yield "\n\n"
            for begin in range(ends[first], ends[last], _WINDOW):
                yield self._texts[i][begin : min(ends[last], begin + _WINDOW)]
            start += last - first


def _counted(text: str, ends: "array[int]", tokenizer: Tokenizer, total: int) -> Iterator[int]:
    """Yield the tokens up to each of `ends` after the first, beginning with `total`."""
    index = 0
    while index < len(ends) - 1:
        begin = ends[index]
        last = max(index + 1, bisect_right(ends, begin + _WINDOW) - 1)
        # As in a long text: after another sentence, and after a blank line where a text begins.
        before = _BEFORE if index else _BEFORE + "\n\n"
        _, offsets = tokenizer.encode_with_offsets(before + text[begin : ends[last]])
        counted = total - bisect_left(offsets, (len(_BEFORE),))
        for end in ends[index + 1 : last + 1]:
            total = counted + bisect_left(offsets, (len(before) + end - begin,))
            yield total
        index = last


def weave(haystack: Haystack, count: int, inserts: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yield `count` units of a haystack with sentences between them, each before the unit that it names."""
    began = False
    for piece in _woven(haystack, count, inserts):
        shown = piece if began else piece.lstrip()
        if shown:
            began = True
            yield shown


def _woven(haystack: Haystack, count: int, inserts: Sequence[tuple[int, str]]) -> Iterator[str]:
    position = 0
    for insert_at, sentence in sorted(inserts, key=lambda insert: insert[0]):
        yield from haystack.run(position, insert_at)
        yield " " + sentence
        position = insert_at
    yield from haystack.run(position, count)


def _ends(text: str) -> Iterator[int]:
    position = len(text) - len(text.lstrip())
    stop = len(text.rstrip())
    for end in chain((match.end() for match in _END.finditer(text, position, stop)), [stop]):
        while end - position > _LONGEST:
            space = max(text.rfind(mark, position + 1, position + _LONGEST) for mark in " \n")
            position = space if space > position else position + _LONGEST
            yield position
        if end > position:
            yield end
            position = end
