"""Rewards: weighted sums of small functions of an answer and its gold.

The reward of training is strict (exact match of the boxed answer; MemAgent, arXiv 2507.02259, section 3.2)
and evaluation is lenient (containment), so both are always reported.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import cast

from memagent.errors import ConfigError
from memagent.evaluation.contract_match import all_dates, right
from memagent.evaluation.metrics import MATCHES, containment, exact_match, f1, normalise
from memagent.evaluation.texts import Sample
from memagent.records import text_hash
from memagent.registry import Registry


@dataclass(frozen=True, slots=True)
class MemoryUpdate:
    """One update of a rollout."""

    changed: bool
    """The memory is another one after it: the update gate was open."""
    whole: bool
    """The policy ended its response itself."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The updates of one rollout, read in one span."""

    updates: tuple[MemoryUpdate, ...]
    """In the order of the segments; fewer than these after an early exit."""
    segments: int
    """Segments of the task."""
    evidence: tuple[bool, ...] | None
    """Of each segment, whether it holds what the question asks for; None: unknown."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The input of a reward function."""

    answer: str
    """The answer taken from its box; empty for "not found"."""
    found: bool
    gold: Sequence[str]
    """Right answers; one empty text if the documents do not say."""
    formed: bool = True
    """Every conversation ended by itself, within its limit."""
    judged: float = 0.0
    """Score by the strict form of the task's own metric, 0 to 1 (`memagent.rl.reward`)."""
    every: bool = False
    """All gold answers are asked for, not one of them."""
    trace: Trace | None = None
    """What the memory updates did; None if there were none, or several spans."""

    @property
    def answerable(self) -> bool:
        """Whether there is an answer to find."""
        return any(gold.strip() for gold in self.gold)


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward and scores of a rollout."""

    total: float
    strict: float
    """1 for an exact match, or for rightly finding nothing."""
    lenient: float
    """1 if the answer contains the gold, or for rightly finding nothing."""
    parts: dict[str, float] = field(default_factory=dict)
    """Value of each function, unweighted."""

    @property
    def right(self) -> bool:
        """Whether the answer is entirely right: an exact match, or a full score by the task's own metric."""
        return self.strict >= 1 or self.parts.get("task", 0.0) >= 1


def exact(said: Answered) -> float:
    """Return 1 for an exact match after normalisation; "not found" matches where there is nothing to find.

    Where all gold answers are asked for, they are listed and nothing else is said.
    """
    if said.found != said.answerable:
        return 0.0
    return float(listed(said.answer, said.gold) == 1.0) if said.every else strictly(said.answer, said.gold)


def contains(said: Answered) -> float:
    """Return 1 if the answer contains a gold answer."""
    return containment(said.answer, said.gold) if said.found == said.answerable else 0.0


def token_f1(said: Answered) -> float:
    """Return the token F1, which gives credit for parts of an answer."""
    return f1(said.answer, said.gold) if said.found == said.answerable else 0.0


def abstention(said: Answered) -> float:
    """Return 1 for rightly saying "not found", -1 for wrongly saying it or for making an answer up, else 0."""
    if said.found:
        return 0.0 if said.answerable else -1.0
    return -1.0 if said.answerable else 1.0


def by_task(said: Answered) -> float:
    """Return the score by the task's own metric: dates and places are parsed, several needles count by their share."""
    return said.judged


def formed(said: Answered) -> float:
    """Return 1 if every conversation ended by itself."""
    return float(said.formed)


RewardFunction = Callable[[Answered], float]
"""Returns the value of an answer, about 0 to 1."""

FUNCTIONS: Registry[RewardFunction] = Registry(
    "memagent.rewards",
    "reward function",
    {"exact": exact, "contains": contains, "f1": token_f1, "abstention": abstention, "task": by_task, "format": formed},
)


_BY_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_place(name: str) -> bool:
    """Whether a reward is named by its place, ``module:function``, and not by a name that a package registers."""
    return _BY_PLACE.fullmatch(name) is not None


@lru_cache(maxsize=64)
def find_reward(name: str) -> RewardFunction:
    """Return a reward function by name, or by ``module:function``.

    Raises:
        ConfigError: there is none, it cannot be imported, or is no function.
    """
    if not is_place(name):
        return FUNCTIONS.find(name)
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except Exception as error:  # somebody's module may raise anything
        raise ConfigError(
            f"reward {name!r} cannot be imported: {type(error).__name__}: {error}. Install its package, or put its "
            "folder on PYTHONPATH, on every node"
        ) from error
    if not callable(function):
        raise ConfigError(f"reward {name!r} is a {type(function).__name__}, not a function of one Answered")
    return cast(RewardFunction, function)


def check_rewards(names: Iterable[str]) -> None:
    """Import reward functions and call each once.

    Raises:
        ConfigError: one cannot be imported, raises, or returns no finite number.
    """
    for name in names:
        function = find_reward(name)
        try:
            value = function(Answered("Oslo", True, ("Oslo",), judged=1.0))
        except Exception as error:
            raise ConfigError(f"reward {name!r} raised {type(error).__name__}: {error}, of a right answer") from error
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"reward {name!r} returned {value!r} of a right answer; a finite number is needed")


def reward_code(names: Iterable[str]) -> list[str]:
    """Return a hash of the file of each reward that is named by its place: other code is another training."""
    files = (
        getattr(import_module(name.partition(":")[0]), "__file__", None) for name in sorted(names) if is_place(name)
    )
    return [text_hash(Path(file).read_text(encoding="utf-8", errors="replace")) for file in files if file]


def reward(said: Answered, weights: Mapping[str, float]) -> Reward:
    """Weigh the functions named in `weights`.

    Raises:
        ConfigError: no such function.
        ValueError: the sample has no gold.
    """
    if not said.gold:
        raise ValueError("a sample without gold answers cannot be rewarded")
    parts = {name: float(find_reward(name)(said)) for name in weights}
    total = sum(weight * parts[name] for name, weight in weights.items())
    return Reward(total, exact(said), contains(said), parts)


def overlong(length: int, limit: int, soft: int) -> float:
    """Return the length penalty of one response, from 0 down to -1 (DAPO, arXiv 2503.14476, equation 13).

    It begins `soft` tokens before the limit, at which a response was cut; 0 switches it off.
    """
    if soft <= 0:
        return 0.0
    return -min(1.0, max(0, length - (limit - soft)) / soft)


_AROUND_NUMBERS = " \t\n$€£%."
_AND = frozenset({"and"})
_LAW = frozenset(
    "state commonwealth province country federal peoples republic law laws of internal under by governed".split()
)
"""Words around a place in the wording of a contract's law."""
_DATED = frozenset(
    "january february march april may june july august september october november december day of this as dated on jan "
    "feb mar apr jun jul aug sep sept oct nov dec st nd rd th".split()
)
_DAY = re.compile(r"\d+(?:st|nd|rd|th)?")


def strict_score(sample: Sample, answer: str) -> float:
    """Score an answer, 0 to 1: 1 for the gold alone; an empty answer is right where the text does not say.

    Of several gold texts that are all asked for (``match`` "all") their share counts, if nothing else is said.
    """
    gold = sample.answers
    if not any(gold) or not answer.strip():
        return float(not any(gold) and not answer.strip())
    if sample.match == "all":
        return listed(answer, gold, sample.question)
    if sample.match == "contract":
        return _of_contract(str(sample.about["category"]), answer, gold[0])
    if sample.match == "f1":
        return MATCHES["f1"](answer, gold)
    return strictly(answer, gold)


def strictly(answer: str, gold: Sequence[str]) -> float:
    """Return 1 for an exact match after normalisation (`metrics.exact_match`) that is no other number.

    Normalised, "-5" and "5" are one text, and so are "1.5" and "15".
    """
    return float(any(exact_match(answer, [text]) == 1.0 and not _other_number(answer, text) for text in gold))


def _other_number(answer: str, gold: str) -> bool:
    given, wanted = _number(answer), _number(gold)
    return given is not None and wanted is not None and given != wanted


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text.strip(_AROUND_NUMBERS).replace(",", ""))
    except InvalidOperation:
        return None


def listed(answer: str, gold: Sequence[str], question: str = "") -> float:
    """Return the share of the gold texts that an answer lists, each once; 0 if it says anything else.

    Where several are asked for, words of the question may stand beside them: "the code of cedar is 5, that of elm 7".
    """
    if len(gold) == 1:
        return strictly(answer, gold)
    rest = f" {normalise(answer)} "
    count = 0
    for text in sorted(gold, key=len, reverse=True):
        before = rest
        rest = rest.replace(f" {normalise(text)} ", "  ", 1)
        count += rest != before
    beside = set(rest.split()) - _AND - set(normalise(question).split())
    return 0.0 if beside else count / len(gold)


def _of_contract(category: str, answer: str, gold: str) -> float:
    """Return 1 for a right date, place or name, in any form, with nothing beside it."""
    if not right(category, answer, gold):
        return 0.0
    if category.endswith("Date") and all_dates(answer):
        words = normalise(answer).split()
        plain = all(len(digits) in (1, 2, 4) for digits in re.findall(r"\d+", answer)) and len(words) == len(set(words))
        return float(plain and all(_DAY.fullmatch(word) or word in _DATED for word in words))
    if category == "Governing Law":
        return float(_nothing_beside(answer, gold, _LAW))
    return float(_nothing_beside(answer, gold, ()))


def _nothing_beside(answer: str, gold: str, filler: Collection[str]) -> bool:
    """Whether an answer has no words but those of the gold, each as often at most, and filler."""
    words = Counter(word for word in normalise(answer).split() if word not in filler)
    return not words - Counter(normalise(gold).split())
