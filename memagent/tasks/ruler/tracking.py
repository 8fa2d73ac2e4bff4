"""Variable tracking (vt): a value is handed on from name to name; which names have it?"""

import random
import string
from functools import partial

from memagent.errors import UsageError
from memagent.tasks.ruler.haystacks import FILLER, Filler, weave
from memagent.tasks.ruler.kinds import Draft, Kind
from memagent.tasks.ruler.meter import Meter
from memagent.tokens import Tokenizer

_LETTERS = 5


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
            (place, sentence)
            for stands, chain in zip(places, chains, strict=True)
            for place, sentence in zip(stands, chain, strict=True)
        ]
        return Draft(
            pieces=partial(weave, self._filler, count, inserts),
            question=f"Which variables have the value {values[0]}? Give all of them.",
            answers=tuple(names[:size]),
            match="all",
            facts=tuple(chains[0]),
            depths=tuple(self._filler.tokens(place) / budget for place in places[0]),
            about={"hops": self._kind.hops},
        )


def _chain(names: list[str], value: str) -> list[str]:
    first = f"The variable {names[0]} is set to {value}."
    return [first, *(f"The variable {name} is set to the value of {names[i]}." for i, name in enumerate(names[1:]))]


def _names(rng: random.Random, count: int) -> list[str]:
    """Return different names that stand nowhere else: scores find them in any case and inside words."""
    said = " ".join([*FILLER, *_chain(["", ""], "")]).upper()
    names: list[str] = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=_LETTERS))
        if name not in said and name not in names:
            names.append(name)
    return names
