"""Aggregation: common words (cwe), the most frequent words of a coded text (fwe), and variable tracking (vt)."""

import random
import string
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import repeat

from memagent.errors import UsageError
from memagent.evaluation.ruler.haystack import FILLER, Filler, weave
from memagent.evaluation.ruler.kinds import Draft, DraftRequest, DrawnNames, Kind, MakeDraft, Meter, NameMeter
from memagent.reading.tokens import Tokenizer

_LETTERS = 6
_NOISE = "......"
"""The first rank of coded words, which is not asked for."""
_AT_ONCE = 256
_NUMBERS = {3: "three", 10: "ten"}


class CommonWords:
    """A list, a word a line: the asked words stand in it `often` times, all others `seldom` times."""

    def __init__(self, kind: Kind, length: int, tokenizer: Tokenizer) -> None:
        """Prepare for lists of `length` tokens."""
        self._kind = kind
        self._length = length
        self._cost = NameMeter(Meter(tokenizer, "amber"))

    def draft(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make a sample; words have no depth."""
        kind = self._kind
        names = DrawnNames(rng)
        left = self._length - kind.often * sum(self._cost(names.words(i)) for i in range(kind.asked))
        words = kind.asked
        while (cost := kind.seldom * self._cost(names.words(words))) <= left:
            left -= cost
            words += 1
        if words == kind.asked:
            raise UsageError(f"{kind.name} does not fit into {self._length} tokens: ask for a greater length.")
        counts = partial(_common, kind, words)
        common = tuple(names(i) for i in range(kind.asked))
        number = _NUMBERS.get(kind.asked, str(kind.asked))
        return Draft(
            pieces=partial(_listed, names, counts, rng.getrandbits(64)),
            question=f"Which {number} words stand in the list most often?",
            answers=common,
            match="all",
            facts=common,
            about={"words": words},
        )


class FrequentWords:
    """Coded words whose counts fall with their rank as the zeta distribution does; the first rank is dots."""

    def __init__(self, kind: Kind, length: int, tokenizer: Tokenizer) -> None:
        """Prepare for texts of `length` tokens."""
        self._kind = kind
        self._length = length
        self._meter = Meter(tokenizer, "amber")

    def draft(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make a sample; words have no depth."""
        kind = self._kind
        coded = _Coded(rng)
        cost = cache(lambda rank: self._meter("\n" + coded(rank)))
        low, high = 0, self._length
        while low < high:  # the most times of the first rank whose text fits
            middle = (low + high + 1) // 2
            if sum(cost(i) * count for i, count in enumerate(_zeta(middle, kind.alpha))) <= self._length:
                low = middle
            else:
                high = middle - 1
        counts = _zeta(low, kind.alpha)
        leading = list(counts[: kind.asked + 2])
        if len(leading) < kind.asked + 2 or len(set(leading)) < len(leading):
            raise UsageError(f"{kind.name} does not fit into {self._length} tokens: ask for a greater length.")
        answers = tuple(coded(rank) for rank in range(1, kind.asked + 1))
        number = _NUMBERS.get(kind.asked, str(kind.asked))
        return Draft(
            pieces=partial(_listed, coded, partial(_zeta, low, kind.alpha), rng.getrandbits(64)),
            question=f"Which {number} words stand in the coded text most often, apart from the dots?",
            answers=answers,
            match="all",
            facts=answers,
            about={"words": len(counts)},
        )


class _Coded:
    """Coded words by rank; rank 0 is the noise. Generated on demand, in the order of ranks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = random.Random(rng.getrandbits(64))
        self._words = [_NOISE]
        self._seen = {_NOISE}

    def __call__(self, rank: int) -> str:
        while len(self._words) <= rank:
            word = "".join(self._rng.choices(string.ascii_lowercase, k=_LETTERS))
            if word not in self._seen:
                self._seen.add(word)
                self._words.append(word)
        return self._words[rank]


def _common(kind: Kind, words: int) -> Sequence[int]:
    return [kind.often] * kind.asked + [kind.seldom] * (words - kind.asked)


def _zeta(first: int, alpha: float) -> Sequence[int]:
    """Return the counts of ranks 1, 2, ... where the first stands `first` times, down to those of at least one."""
    counts = []
    rank = 1
    while (count := int(first * rank**-alpha)) >= 1:
        counts.append(count)
        rank += 1
    return counts


def _listed(word: Callable[[int], str], counts: Callable[[], Sequence[int]], seed: int) -> Iterator[str]:
    """Yield the words, each as often as counted, shuffled, a line each."""
    order = array("I")
    for i, count in enumerate(counts()):
        order.extend(repeat(i, count))
    random.Random(seed).shuffle(order)
    before = ""
    for start in range(0, len(order), _AT_ONCE):
        yield before + "\n".join(map(word, order[start : start + _AT_ONCE]))
        before = "\n"


_NAME_LETTERS = 5


class Tracking:
    """Chains of assignments in order, spread over a filler."""

    def __init__(self, kind: Kind, length: int, tokenizer: Tokenizer) -> None:
        """Prepare the haystack for texts of `length` tokens."""
        self._kind = kind
        self._length = length
        self._meter = Meter(tokenizer)
        self._filler = Filler(self._meter)

    def draft(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make a sample with one assignment of the asked chain at `depth`, the others anywhere."""
        size = self._kind.hops + 1
        names = _names(rng, size * self._kind.chains)
        values = [str(value) for value in rng.sample(range(10_000, 100_000), self._kind.chains)]
        chains = [_chain(names[size * i : size * i + size], value) for i, value in enumerate(values)]
        budget = self._length - sum(self._meter(" " + sentence) for chain in chains for sentence in chain)
        count = self._filler.within(budget)
        if count < 1:
            raise UsageError(f"{self._kind.name} does not fit into {self._length} tokens: ask for a greater length.")
        shares = [[rng.random() for _ in chain] for chain in chains]
        shares[0][0] = depth
        places = [sorted(self._filler.within(share * budget) for share in chain) for chain in shares]
        inserts = [
            (position, sentence)
            for stands, chain in zip(places, chains, strict=True)
            for position, sentence in zip(stands, chain, strict=True)
        ]
        return Draft(
            pieces=partial(weave, self._filler, count, inserts),
            question=f"Which variables have the value {values[0]}? Give all of them.",
            answers=tuple(names[:size]),
            match="all",
            facts=tuple(chains[0]),
            depths=tuple(self._filler.tokens(position) / budget for position in places[0]),
            about={"hops": self._kind.hops},
        )


def _chain(names: list[str], value: str) -> list[str]:
    first = f"The variable {names[0]} is set to {value}."
    return [first, *(f"The variable {name} is set to the value of {names[i]}." for i, name in enumerate(names[1:]))]


def _names(rng: random.Random, count: int) -> list[str]:
    """Return different names that occur nowhere else: scores match them in any case and inside words."""
    taken = " ".join([*FILLER, *_chain(["", ""], "")]).upper()
    names: list[str] = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=_NAME_LETTERS))
        if name not in taken and name not in names:
            names.append(name)
    return names


def common_words(request: DraftRequest) -> MakeDraft:
    """Make lists of common words."""
    return CommonWords(request.kind, request.length, request.tokenizer).draft


def frequent_words(request: DraftRequest) -> MakeDraft:
    """Make coded texts of words by their frequency."""
    return FrequentWords(request.kind, request.length, request.tokenizer).draft


def tracking(request: DraftRequest) -> MakeDraft:
    """Make chains of variables in a filler."""
    return Tracking(request.kind, request.length, request.tokenizer).draft
