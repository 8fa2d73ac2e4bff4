"""The thirteen kinds of RULER, each by its parameters (NVIDIA/RULER, arXiv 2404.06654)."""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from memagent.errors import UsageError
from memagent.evaluation.metrics import JUDGEMENTS
from memagent.evaluation.needles import ADJECTIVES, NOUNS
from memagent.evaluation.needles import Kind as ValueKind
from memagent.evaluation.texts import Match, Paragraph
from memagent.reading.tokens import Tokenizer
from memagent.records import Json
from memagent.registry import Registry


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the paragraphs that belong to it."""

    question: str
    answers: tuple[str, ...]
    """Gold; any of them is right."""
    paragraphs: tuple[Paragraph, ...]
    facts: tuple[str, ...] = ()
    """Sentences of the paragraphs, verbatim, that tell the answer. Empty: those that hold it, or else the paragraphs
    themselves (an answer of yes or no stands nowhere)."""

    @property
    def words(self) -> list[str]:
        """The answers that are words of the text."""
        return [answer for answer in self.answers if answer and answer.lower() not in JUDGEMENTS]


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


def name_meter(meter: Meter) -> Callable[[tuple[str, ...]], int]:
    """Return what counts the tokens of a name on its own line, from those of its words, after a text in letters."""
    first, following = cache(lambda word: meter("\n" + word)), cache(lambda word: meter("-" + word))
    return lambda words: first(words[0]) + sum(map(following, words[1:]))


def _walk(rng: random.Random, size: int) -> tuple[int, int]:
    """Return (step, first) of a walk that meets every number below `size` once before it repeats."""
    step = rng.randrange(size // 4, size)
    while math.gcd(step, size) != 1:
        step = rng.randrange(size // 4, size)
    return step, rng.randrange(size)


Haystack = Literal["filler", "texts", "needles", "words", "paragraphs", "own"]
"""What the texts are made of; ``own``: as the family makes them."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of task consists of; fields that its family does not use keep their defaults."""

    name: str
    family: str
    """What makes its samples (`FAMILIES`)."""
    haystack: Haystack = "own"
    keys: int = 1
    """Different keys of planted needles; of a haystack of needles, every line has its own."""
    values: int = 1
    """Values of every asked key, a needle each."""
    queries: int = 1
    """Keys asked for at once."""
    key_kind: Literal["word", "uuid"] = "word"
    value_kind: ValueKind = "number"
    chains: int = 1
    """Chains of variables; the first is asked for, the others distract."""
    hops: int = 1
    """Assignments of a chain after its first; paragraphs to put together for a question."""
    asked: int = 0
    """Words asked for."""
    often: int = 30
    """Times that a common word stands in the list."""
    seldom: int = 3
    """Times that any other word does."""
    alpha: float = 2.0
    """Exponent of the zeta distribution of coded words."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a family makes: a sample without its name."""

    pieces: Callable[[], Iterator[str]]
    question: str
    answers: tuple[str, ...]
    match: Match
    facts: tuple[str, ...]
    """In the order of the text, as `depths`."""
    depths: tuple[float, ...] = ()
    """Where facts stand, 0 (start) to 1 (end); empty where that has no meaning."""
    about: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What the drafts of a kind are made from."""

    kind: Kind
    length: int
    """Tokens of each text, reached from below; 0 where there are so many `documents` instead."""
    tokenizer: Tokenizer
    texts: Iterable[str] = ()
    """What needles are hidden in by the kinds with real text (``--text``): read as far as `length` needs, repeated
    where they are shorter."""
    paragraphs: Iterable[Paragraph] = ()
    """What the questions' own paragraphs are hidden among; repeated where they are few, which `Sample.about` says."""
    questions: Sequence[Asked] = ()
    """What the question kinds ask: sample i question i."""
    documents: int | None = None
    """For question kinds: how many documents in place of a length, which is then 0."""

    def too_short(self) -> UsageError:
        """Return the error of a length that the kind does not fit into."""
        return UsageError(f"{self.kind.name} does not fit into {self.length} tokens: ask for a greater length.")


MakeDraft = Callable[[int, random.Random, float], Draft]
"""Makes the draft of a number, by the generator that it is given, with the asked fact at a depth from 0 to 1."""
Family = Callable[[DraftRequest], MakeDraft]

FAMILIES: Registry[Family] = Registry(
    "memagent.evaluation",
    "task family",
    {
        "needles": "memagent.evaluation.ruler.families:needles",
        "tracking": "memagent.evaluation.ruler.families:tracking",
        "common words": "memagent.evaluation.ruler.families:common_words",
        "frequent words": "memagent.evaluation.ruler.families:frequent_words",
        "documents": "memagent.evaluation.ruler.qa:QaDocuments",
    },
)
"""What makes the samples of kinds that differ by their parameters alone. One of another package is a kind as well, of
its own name."""

_KINDS = (
    Kind("niah_single_1", "needles", "filler"),
    Kind("niah_single_2", "needles", "texts"),
    Kind("niah_single_3", "needles", "texts", value_kind="uuid"),
    Kind("niah_multikey_1", "needles", "texts", keys=4),
    Kind("niah_multikey_2", "needles", "needles"),
    Kind("niah_multikey_3", "needles", "needles", key_kind="uuid", value_kind="uuid"),
    Kind("niah_multivalue", "needles", "texts", values=4),
    Kind("niah_multiquery", "needles", "texts", keys=4, queries=4),
    Kind("vt", "tracking", "filler", hops=4),
    Kind("cwe", "common words", "words", asked=10),
    Kind("fwe", "frequent words", "words", asked=3),
    Kind("qa_1", "documents", "paragraphs"),
    Kind("qa_2", "documents", "paragraphs", hops=2),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""The thirteen, by name."""


def find_kind(kind: str) -> Kind:
    """Return a kind by its name: one of the thirteen, or one that another package brings.

    Raises:
        UsageError: there is none of that name.
    """
    if kind in KINDS:
        return KINDS[kind]
    if FAMILIES.origin(kind):
        return Kind(kind, family=kind)
    others = [name for name in FAMILIES if FAMILIES.origin(name)]
    raise UsageError(
        f"no RULER task {kind!r}. There are: {', '.join([*KINDS, *others])}; installed packages add others by the "
        f"entry point group {FAMILIES.group}"
    )
