"""The thirteen kinds of RULER, each by its parameters (NVIDIA/RULER, arXiv 2404.06654)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from memagent.errors import UsageError
from memagent.tasks.needles import Kind as ValueKind
from memagent.tasks.sample import Match

Family = Literal["needles", "tracking", "common words", "frequent words", "documents"]
Haystack = Literal["filler", "texts", "needles", "words", "paragraphs"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of task consists of; fields that its family does not use keep their defaults."""

    name: str
    family: Family
    haystack: Haystack
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
    about: dict[str, Any] = field(default_factory=dict)


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


def find_kind(kind: Kind | str) -> Kind:
    """Return a kind by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if isinstance(kind, Kind):
        return kind
    if kind not in KINDS:
        raise UsageError(f"no RULER task {kind!r}. There are: {', '.join(KINDS)}.")
    return KINDS[kind]
