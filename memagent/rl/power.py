"""The power of a promotion check: how likely it is to promote a candidate that is better by so much.

Normal approximations of the tests of `memagent.rl.promotion`; `benchmarks.promotion` has them beside simulations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from memagent.clustered import design_effect, student
from memagent.rl.promotion import PromotionSpec, level

GAIN = 0.05
"""Gain for which power is stated: 5 points."""
ENOUGH = 0.8
"""Power below which a check warns."""
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of samples that a check will read."""

    sizes: tuple[int, ...]
    """Samples of each document."""
    margin: float = 0.05
    discordance: float = 0.2
    """Share of the samples on which the policies will differ."""


class PowerRecord(TypedDict):
    """What a check could find out, as stated before it read."""

    gain: float
    power: float
    look: int
    """Number of this candidate among those that were compared with the same policy on these samples."""
    alpha: float
    """Level of this look."""
    questions: int
    documents: int
    correlation: float
    discordance: float
    warning: str
    """Empty where power is enough."""


def power(groups: Sequence[PlannedGroup], *, alpha: float, gain: float = GAIN, correlation: float = 0.1) -> float:
    """Return the probability at least that a candidate is promoted which is better by `gain` in every group.

    The tests of the whole and of the groups depend on each other positively, so the product of their powers is a lower
    bound (Slepian's inequality).

    Raises:
        ValueError: there is no sample.
    """
    total = sum(sum(group.sizes) for group in groups)
    if not total:
        raise ValueError("power needs samples")
    effects = [design_effect(np.array(group.sizes, float), correlation) for group in groups]
    variances = [sum(g.sizes) * effect * _variance(g, gain) for g, effect in zip(groups, effects, strict=True)]
    # The permutation test of right and wrong answers has few values: half a step of two is lost (Yates' correction).
    expected = (gain * total - 1) / math.sqrt(sum(variances))
    result = _above(expected - student(1 - alpha, sum(len(group.sizes) for group in groups)))
    for group, effect in zip(groups, effects, strict=True):
        result *= _ruled_out(group, gain, alpha, sum(group.sizes) / effect)
    return result


def documents_needed(
    questions: int,
    *,
    alpha: float,
    gain: float = GAIN,
    correlation: float = 0.1,
    discordance: float = 0.2,
    margin: float = 0.05,
    enough: float = ENOUGH,
) -> int | None:
    """Return the fewest documents with so many questions each that give enough power; None: a million do not."""

    def suffices(documents: int) -> bool:
        group = PlannedGroup((questions,) * documents, margin, discordance)
        return power([group], alpha=alpha, gain=gain, correlation=correlation) >= enough

    high = 2
    while not suffices(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def state(groups: Sequence[PlannedGroup], *, alpha: float, look: int, correlation: float) -> PowerRecord:
    """State the power of a check, and warn where it is not enough.

    Args:
        groups: what will be read.
        alpha: the level of all looks.
        look: this one's number, from 1.
        correlation: of differences within a document.
    """
    local = level(alpha, look)
    value = power(groups, alpha=local, correlation=correlation)
    questions, documents = sum(sum(group.sizes) for group in groups), sum(len(group.sizes) for group in groups)
    warning = ""
    if value < ENOUGH:
        warning = (
            f"a gain of {GAIN:.0%} would be found with a probability of {value:.0%} only (n={questions:,} in "
            f"{documents:,} documents, candidate {look} against this policy): memagent policies power says how many "
            "questions it takes"
        )
    return {
        "gain": GAIN,
        "power": value,
        "look": look,
        "alpha": local,
        "questions": questions,
        "documents": documents,
        "correlation": correlation,
        "discordance": max(group.discordance for group in groups),
        "warning": warning,
    }


class PowerLine(TypedDict):
    """Power by number of documents, for so many questions on each."""

    questions: int
    power: list[float]
    needed: int | None
    """Documents for a power of `ENOUGH`."""


class PowerTable(TypedDict):
    """Power of a check of one group of questions."""

    documents: list[int]
    lines: list[PowerLine]
    gain: float
    alpha: float
    margin: float
    correlation: float
    discordance: float


def power_table(
    spec: PromotionSpec, questions: Sequence[int], documents: Sequence[int], *, gain: float = GAIN, look: int = 1
) -> PowerTable:
    """Return the power of a check of one group of questions, by questions a document and documents."""
    alpha = level(spec.alpha, look)
    shared = {"alpha": alpha, "gain": gain, "correlation": spec.correlation}
    lines: list[PowerLine] = []
    for count in questions:
        planned = [PlannedGroup((count,) * size, spec.margin, spec.discordance) for size in documents]
        needed = documents_needed(count, **shared, discordance=spec.discordance, margin=spec.margin)
        lines.append({"questions": count, "power": [power([one], **shared) for one in planned], "needed": needed})
    return {
        "documents": list(documents),
        "lines": lines,
        "gain": gain,
        "alpha": alpha,
        "margin": spec.margin,
        "correlation": spec.correlation,
        "discordance": spec.discordance,
    }


def _variance(group: PlannedGroup, gain: float) -> float:
    return max(group.discordance, abs(gain)) - gain * gain


def _ruled_out(group: PlannedGroup, gain: float, alpha: float, n: float) -> float:
    """Power of the score test that rules out a loss of the margin, with `n` independent samples' worth."""
    margin, discordance = group.margin, max(group.discordance, abs(gain))
    lost = (discordance - gain) / 2
    b = -discordance - (2 - gain) * margin
    least = (math.sqrt(max(0.0, b * b - 8 * lost * margin * (1 + margin))) - b) / 4
    expected = math.sqrt(n) * (gain + margin)
    bound = student(1 - alpha, len(group.sizes)) * math.sqrt(2 * least - margin * (1 + margin))
    return _above((expected - bound) / math.sqrt(_variance(group, gain)))


def _above(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
