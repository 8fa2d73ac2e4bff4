"""Quality checks: whether a digest's answers are too unlike those of the good digests before it to be shown.

Shares are compared by Newcombe's interval for the difference of two shares (Statistics in Medicine 17, 1998, method
10), lengths by a normal interval for the ratio of two means. A limit is breached only where the whole interval is
beyond it, so few answers decide nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from operator import add
from typing import Self, TypedDict

from pydantic import Field

from memagent.evaluation.stats import share
from memagent.records import Json
from memagent.settings import Section

_Z = 1.959964


class QualityConfig(Section):
    """When a digest is withheld: its answers are in the store, and are shown only once they are
    released. A digest is compared with the good digests before it; new questions, and the first digest, pass."""

    withhold: bool = True
    """Withhold the answers of a digest that breaches a limit. Off: only say so."""
    sample: int = Field(50, ge=2)
    """Answers that a digest and the good ones before it must have for a limit to be judged."""
    question_sample: int = Field(30, ge=2)
    """The same for a question by itself, where a digest has several: one that breaks alone is not seen in the sum."""
    max_failed: float = Field(0.05, ge=0, le=1)
    """Rise of the share of readings that fail. 1 in this limit and the next ones: never."""
    max_abstentions: float = Field(0.25, ge=0, le=1)
    """Change, up or down, of the share of answers that say that nothing was found."""
    max_empty: float = Field(0.25, ge=0, le=1)
    """Rise of the share of readings that answer from an empty memory."""
    max_cut: float = Field(0.1, ge=0, le=1)
    """Rise of the share of memory updates that were cut off at `reading.memory_tokens`, repeated themselves or were
    empty."""
    max_same: float = Field(0.25, ge=0, le=1)
    """Rise of the chance that two answers to a question are the same."""
    max_length: float = Field(2.0, gt=1)
    """Factor by which answers are longer or shorter on average."""
    max_fewer: float = Field(0.2, ge=0, le=1)
    """Share of the answers of the last good digest that are gone."""


@dataclass(frozen=True, slots=True)
class QuestionQuality:
    """Sums over the new answers to a question; they add up over digests."""

    answers: int = 0
    found: int = 0
    chars: int = 0
    """Of the answers that were found."""
    chars_squared: int = 0
    pairs: int = 0
    """Pairs of answers that were found."""
    same: int = 0
    """Those of which both are the same."""
    failed: int = 0
    """Readings without an answer."""
    tried: int = 0
    """Readings with and without one."""
    remembered: int = 0
    """Answers of which it is known what their memories were like."""
    empty: int = 0
    """Of these, those from an empty memory."""
    updates: int = 0
    """Memories written for them."""
    cut: int = 0
    """Of these, cut off."""

    def __add__(self, other: Self) -> "QuestionQuality":
        """Add sums."""
        return QuestionQuality(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Quality:
    """What a digest's new answers are like."""

    failed: int = 0
    readings: int = 0
    """Read now, those that failed included."""
    empty: int = 0
    """Answers from an empty memory."""
    updates: int = 0
    """Memories written."""
    cut: int = 0
    """Of these, cut off."""
    questions: Mapping[str, QuestionQuality] = field(default_factory=dict)
    """By text."""

    def __add__(self, other: Self) -> "Quality":
        """Add the sums of two digests."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        none = QuestionQuality()
        texts = {*self.questions, *other.questions}
        both = {text: self.questions.get(text, none) + other.questions.get(text, none) for text in texts}
        return Quality(**sums, questions=both)

    @property
    def answers(self) -> int:
        """New answers."""
        return sum(question.answers for question in self.questions.values())

    def as_dict(self) -> Json:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Make it of plain data."""
        questions = {text: QuestionQuality(**sums) for text, sums in data["questions"].items()}
        return cls(**{name: data[name] for name in _SUMS}, questions=questions)


_SUMS = ("failed", "readings", "empty", "updates", "cut")


class Breach(TypedDict):
    """A limit that a digest is beyond."""

    check: str
    """The limit's key in `[quality]`."""
    value: float
    """Of the digest."""
    before: float
    """Of the good digests before."""
    limit: float
    question: str
    """Text of the question that is beyond it by itself; empty: all questions together are."""
    says: str


LiveCounts = Mapping[str, int]
"""Answers that stand after a digest, by question text: of all documents, whenever they were read."""


def breaches(
    new: Quality, before: Quality, config: QualityConfig, *, live: LiveCounts, live_before: LiveCounts
) -> list[Breach]:
    """Return the limits that a digest breaches; of those that it does not, the questions that breach them alone.

    `new` are its new answers, `before` those of the good digests before it; `live` are the answers after it, none where
    some are still to be read, and `live_before` those after the last good digest.
    """
    common = [text for text in new.questions if text in before.questions]
    now, then = (reduce(add, (side.questions[text] for text in common), QuestionQuality()) for side in (new, before))
    same_questions = len(common) == len(new.questions)
    found: list[Breach | None] = [
        _rise("max_failed", (new.failed, new.readings), (before.failed, before.readings), config),
        _rise("max_cut", (new.cut, new.updates), (before.cut, before.updates), config),
        *_of_answers(now, then, config),
        _fewer(live, live_before, config),
    ]
    if same_questions:
        found.append(_rise("max_empty", (new.empty, new.answers), (before.empty, before.answers), config))
    of_all = [breach for breach in found if breach is not None]
    seen = {breach["check"] for breach in of_all}
    alone = _alone(new, before, config, live=live, live_before=live_before)
    return of_all + [breach for breach in alone if breach["check"] not in seen]


def _of_answers(now: QuestionQuality, then: QuestionQuality, config: QualityConfig) -> list[Breach | None]:
    mine, earlier = ((side.answers - side.found, side.answers) for side in (now, then))
    return [
        _rise("max_abstentions", mine, earlier, config, down=True),
        _rise("max_same", _same(now), _same(then), config),
        _length(now, then, config),
    ]


def _of_memories(now: QuestionQuality, then: QuestionQuality, config: QualityConfig) -> list[Breach | None]:
    if min(now.remembered, then.remembered) < config.sample:  # a few long readings write many memories
        return []
    return [
        _rise("max_empty", (now.empty, now.remembered), (then.empty, then.remembered), config),
        _rise("max_cut", (now.cut, now.updates), (then.cut, then.updates), config),
    ]


def _alone(
    new: Quality, before: Quality, config: QualityConfig, *, live: LiveCounts, live_before: LiveCounts
) -> Iterable[Breach]:
    """Yield the limits that single questions breach, where there are several questions."""
    texts = {*new.questions, *live}
    if len(texts) < 2:
        return
    config = config.model_copy(update={"sample": config.question_sample})
    for text in sorted(texts):
        found: list[Breach | None] = []
        if text in new.questions and text in before.questions:
            now, then = new.questions[text], before.questions[text]
            found += [*_of_answers(now, then, config), *_of_memories(now, then, config)]
            if text in live:  # else what lacks an answer may be unread
                found.append(_rise("max_failed", (now.failed, now.tried), (then.failed, then.tried), config))
        if text in live and text in live_before:
            found.append(_fewer({text: live[text]}, live_before, config))
        for breach in found:
            if breach is not None:
                yield {**breach, "question": text, "says": f"{breach['says']}; to {text!r} alone"}


_Share = tuple[float, int]
"""A part, and what it is of."""


def _same(answers: QuestionQuality) -> _Share:
    # Pairs share answers: a quarter of the answers is as good a sample as they are at worst (Hoeffding's bound on the
    # variance of a U-statistic of order two).
    n = answers.found // 4
    return (n * answers.same / answers.pairs, n) if answers.pairs else (0.0, 0)


_WHAT = {
    "max_failed": "readings failed",
    "max_empty": "readings answered from an empty memory",
    "max_cut": "memory updates were cut off or empty",
    "max_abstentions": "answers say that nothing was found",
    "max_same": "pairs of answers are the same",
}
"""Of a share, by its check."""


def _rise(check: str, now: _Share, before: _Share, config: QualityConfig, *, down: bool = False) -> Breach | None:
    if min(now[1], before[1]) < config.sample:
        return None
    mine, earlier = share(check, *now), share(check, *before)
    difference = mine.value - earlier.value
    if difference >= 0:
        sure = difference - math.hypot(mine.value - mine.low, earlier.high - earlier.value)
    else:
        sure = -difference - math.hypot(mine.high - mine.value, earlier.value - earlier.low) if down else 0.0
    if sure <= getattr(config, check):
        return None
    before_that = f"{earlier.value:.0%} of {earlier.n:,} in the good digests before"
    says = f"{mine.value:.0%} of {mine.n:,}: {_WHAT[check]}; {before_that}"
    return _breach(check, mine.value, earlier.value, config, says)


def _breach(check: str, value: float, before: float, config: QualityConfig, says: str) -> Breach:
    limit = getattr(config, check)
    return {"check": check, "value": value, "before": before, "limit": limit, "question": "", "says": says}


def _length(now: QuestionQuality, then: QuestionQuality, config: QualityConfig) -> Breach | None:
    if min(now.found, then.found) < config.sample or not now.chars or not then.chars:
        return None
    (mine, my_error), (earlier, error) = _log_mean(now), _log_mean(then)
    if abs(mine - earlier) - _Z * math.hypot(my_error, error) <= math.log(config.max_length):
        return None
    value, before = math.exp(mine), math.exp(earlier)
    says = f"answers have {value:,.0f} characters on average; {before:,.0f} in the good digests before"
    return _breach("max_length", value, before, config, says)


def _log_mean(answers: QuestionQuality) -> tuple[float, float]:
    """Return the logarithm of the mean length, and its standard error (delta method)."""
    mean = answers.chars / answers.found
    variance = max(0.0, answers.chars_squared / answers.found - mean * mean)
    return math.log(mean), math.sqrt(variance / answers.found) / mean


def _fewer(live: LiveCounts, before: LiveCounts, config: QualityConfig) -> Breach | None:
    common = live.keys() & before.keys()
    now, then = (float(sum(side[text] for text in common)) for side in (live, before))
    if then < config.sample or now >= then * (1 - config.max_fewer):
        return None
    says = f"{now:,.0f} answers; {then:,.0f} after the last good digest"
    return _breach("max_fewer", now, then, config, says)


def total(digests: Iterable[Quality]) -> Quality:
    """Return the sum of several digests."""
    return reduce(add, digests, Quality())
