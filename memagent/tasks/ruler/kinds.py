"""The thirteen kinds of RULER, each by its parameters (NVIDIA/RULER, arXiv 2404.06654)."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from memagent.errors import UsageError
from memagent.records import Json
from memagent.registry import Registry
from memagent.tasks.needles import Kind as ValueKind
from memagent.tasks.sample import Match
from memagent.tokens import Tokenizer

if TYPE_CHECKING:
    from memagent.tasks.ruler.qa import Asked, Paragraph

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
    paragraphs: "Iterable[Paragraph]" = ()
    """What the questions' own paragraphs are hidden among; repeated where they are few, which `Sample.about` says."""
    questions: "Sequence[Asked]" = ()
    """What the question kinds ask: sample i question i."""
    documents: int | None = None
    """For question kinds: how many documents in place of a length, which is then 0."""


MakeDraft = Callable[[int, random.Random, float], Draft]
"""Makes the draft of a number, by the generator that it is given, with the asked fact at a depth from 0 to 1."""
Family = Callable[[DraftRequest], MakeDraft]

FAMILIES: Registry[Family] = Registry(
    "memagent.tasks",
    "task family",
    {
        "needles": "memagent.tasks.ruler.needles:drafts",
        "tracking": "memagent.tasks.ruler.aggregation:tracking",
        "common words": "memagent.tasks.ruler.aggregation:common_words",
        "frequent words": "memagent.tasks.ruler.aggregation:frequent_words",
        "documents": "memagent.tasks.ruler.qa:drafts",
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
