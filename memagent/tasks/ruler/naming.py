"""Token counts that add up, and endless names that are computed from their number, not listed."""

import hashlib
import math
import random
from functools import cache

from memagent.tasks.needles import ADJECTIVES, NOUNS
from memagent.tokens import Tokenizer


class Meter:
    """Counts the tokens that a piece adds to a text before it.

    Pieces begin with their separator: the space or line end before a word or sentence belongs to it. That is where
    tokenizers cut, whether they join a space to the next word or a line end to the full stop before.
    """

    def __init__(self, tokenizer: Tokenizer, before: str = "It is so.") -> None:
        """Count pieces that follow a text which ends as `before` does."""
        self.tokenizer = tokenizer
        self._before = before
        self._base = len(tokenizer.encode(before))

    def __call__(self, piece: str) -> int:
        """Return the tokens that `piece` adds."""
        return len(self.tokenizer.encode(self._before + piece)) - self._base


_PAIRS = len(ADJECTIVES) * len(NOUNS)
_NUMBERS = 9_000_000


class DrawnNames:
    """Adjective and noun, like the keys of needles (``amber-otter``); a third word where pairs run out."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the order of the names."""
        self._step, self._first = _walk(rng, _PAIRS)

    def __call__(self, i: int) -> str:
        """Return name number `i`."""
        return "-".join(self.words(i))

    def words(self, i: int) -> tuple[str, ...]:
        """Return the words of name number `i`."""
        round_, i = divmod(i, _PAIRS)
        adjective, noun = divmod((self._step * i + self._first) % _PAIRS, len(NOUNS))
        pair = (ADJECTIVES[adjective], NOUNS[noun])
        extra: tuple[str, ...] = ()
        while round_:
            round_, word = divmod(round_ - 1, len(NOUNS))
            extra = (*extra, NOUNS[word])
        return pair + extra


class Numbers:
    """Numbers of seven digits, all different."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the order of the numbers."""
        self._step, self._first = _walk(rng, _NUMBERS)

    def __call__(self, i: int) -> str:
        """Return number `i` as text."""
        return str(1_000_000 + (self._step * i + self._first) % _NUMBERS)


class Uuids:
    """Random identifiers in the form of version 4."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the identifiers."""
        self._salt = rng.randbytes(16)

    def __call__(self, i: int) -> str:
        """Return identifier `i`."""
        h = hashlib.blake2b(i.to_bytes(8, "big"), digest_size=16, key=self._salt).hexdigest()
        return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) % 4]}{h[17:20]}-{h[20:]}"


class NameMeter:
    """Counts the tokens of names on lines of their own from those of their words."""

    def __init__(self, meter: Meter) -> None:
        """Count with `meter`, whose text ends in a letter."""
        self._first = cache(lambda word: meter("\n" + word))
        self._next = cache(lambda word: meter("-" + word))

    def __call__(self, words: tuple[str, ...]) -> int:
        """Return the tokens of a line with the name of `words`."""
        return self._first(words[0]) + sum(map(self._next, words[1:]))


def _walk(rng: random.Random, size: int) -> tuple[int, int]:
    """Return (step, first) of a walk that meets every number below `size` once before it repeats."""
    step = rng.randrange(size // 4, size)
    while math.gcd(step, size) != 1:
        step = rng.randrange(size // 4, size)
    return step, rng.randrange(size)
