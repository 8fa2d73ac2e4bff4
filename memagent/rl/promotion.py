"""The promotion check: whether a candidate replaces the promoted policy. Pure statistics over scores.

A candidate is promoted if it is better over all samples, and shown to be no worse than by a margin in each group of
them: an intersection-union test (Berger, Technometrics 24, 1982), so every test may have the whole level. All samples
of a document are one cluster (`evaluation.stats`). A failed reading is a wrong answer. Each further candidate that is
compared with the same policy on the same samples has a smaller level (`level`).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypedDict, cast

import numpy as np
from pydantic import Field

from memagent.evaluation.stats import Comparison, compare, design_effect, mean, score_test, score_variance, student
from memagent.settings import Section

SmallGroups = Literal["refuse", "observe"]


class PromotionSpec(Section):
    """The tests of a promotion check: always the same for both policies."""

    kinds: tuple[str, ...] = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1")
    """Kinds of needles, each with a single answer."""
    segments: int = Field(8, ge=1)
    """Segments of the shorter texts: as long as those of training."""
    times: int = Field(16, ge=2)
    """Factor between the longer and the shorter texts."""
    lengths: tuple[int, ...] = ()
    """Lengths in tokens, instead of those two."""
    n: int = Field(25, ge=1)
    """Texts of each kind and length."""
    corpora: tuple[str, ...] = ()
    """Corpora whose promotion questions are asked as well."""
    data: tuple[str, ...] = ()
    """Files of questions with answers (JSON lines or Parquet) that are asked as well; training must not see them."""
    columns: tuple[str, ...] = ()
    """Columns of these files, where they are not recognised: question=NAME, text=NAME, answers=NAME."""
    questions: int = Field(1000, ge=1)
    """Promotion questions at most."""
    texts: tuple[str, ...] = ()
    """Files and folders in whose texts needles are planted; by default readmes of installed packages."""
    seed: int = 1
    """Seed of the texts and of the choice of questions."""
    alpha: float = Field(0.025, gt=0, lt=0.5)
    """False promotions at most, of all candidates that are compared with one policy (one-sided)."""
    margin: float = Field(0.05, gt=0, lt=1)
    """Loss on a group of questions that must be ruled out."""
    needle_margin: float = Field(0.1, gt=0, lt=1)
    """Loss on needles of a length that must be ruled out."""
    small_groups: SmallGroups = "refuse"
    """What becomes of a candidate where a group has too few questions to rule a loss out, even if no answer differs:
    refuse it, or observe: refuse it only if the loss that is seen exceeds the margin."""
    correlation: float = Field(0.1, ge=0, le=1)
    """Correlation within a document, at least, of the differences between two policies."""
    discordance: float = Field(0.2, gt=0, le=1)
    """Share of the questions that one policy alone answers, for the power that is stated before reading."""

    def lengths_for(self, segment_tokens: int) -> tuple[int, ...]:
        """Return the lengths of the texts, in tokens, for a policy that reads segments of some tokens."""
        short = self.segments * segment_tokens
        return tuple(dict.fromkeys(self.lengths or (short, short * self.times)))


class GroupRecord(TypedDict):
    """Scores of one group of samples: means, failed readings, and the tests (`stats.Comparison`)."""

    name: str
    candidate: float
    incumbent: float
    candidate_failed: int
    incumbent_failed: int
    difference: float
    low: float
    high: float
    p: float
    p_margin: float
    margin: float
    n: int
    documents: int
    better: int
    worse: int
    design_effect: float
    method: str


class Decision(TypedDict):
    """The result of a promotion check."""

    promoted: bool
    reason: str
    overall: GroupRecord
    groups: list[GroupRecord]


@dataclass(frozen=True, slots=True)
class QuestionGroup:
    """Samples of one group with both policies' scores, 0 to 1, in the same order; None: the reading failed."""

    name: str
    candidate: tuple[float | None, ...]
    incumbent: tuple[float | None, ...]
    documents: tuple[str, ...]
    """The document of each sample; a document may be in several groups."""
    margin: float = 0.05
    small: SmallGroups = "refuse"
    part: bool = False
    """The samples are in another group, too: they are not counted again in the whole."""

    def record(self, comparison: Comparison) -> GroupRecord:
        """Return means and comparison as plain data."""
        compared = asdict(comparison)
        compared["documents"] = compared.pop("clusters")
        means = {
            "name": self.name,
            "candidate": mean("", self.candidate).value,
            "incumbent": mean("", self.incumbent).value,
            "candidate_failed": self.candidate.count(None),
            "incumbent_failed": self.incumbent.count(None),
            "margin": self.margin,
        }
        return cast(GroupRecord, means | compared)

    def compare(self, correlation: float) -> Comparison:
        """Compare candidate and incumbent."""
        return compare(self.candidate, self.incumbent, self.documents, margin=self.margin, correlation=correlation)


def level(alpha: float, look: int) -> float:
    """Return the level of the `look`-th candidate (from 1) that is compared with one policy on the same samples.

    The levels alpha * 6 / (pi * look)^2 sum up to alpha over any number of candidates.
    """
    return alpha * 6 / (math.pi * look) ** 2


def decide(groups: Sequence[QuestionGroup], alpha: float, correlation: float = 0.1) -> Decision:
    """Decide between a candidate and the promoted policy, each test at the level `alpha`.

    Raises:
        ValueError: there is no sample, or a group's scores are not of the same samples.
    """
    whole = [group for group in groups if not group.part]
    everything = QuestionGroup(
        "all",
        tuple(score for group in whole for score in group.candidate),
        tuple(score for group in whole for score in group.incumbent),
        tuple(document for group in whole for document in group.documents),
    )
    if not everything.candidate or any(len(group.candidate) != len(group.incumbent) for group in groups):
        raise ValueError("a promotion check needs samples that both policies have read")
    overall = everything.compare(correlation)
    whole_shown = f"{_shown(overall)}, p={overall.p:.2g}"
    against = [] if overall.difference > 0 and overall.p < alpha else [f"not better beyond chance: {whole_shown}"]
    comparisons = [group.compare(correlation) for group in groups]
    for group, comparison in zip(groups, comparisons, strict=True):
        if objection := _objection(group, comparison, alpha, correlation):
            against.append(objection)
    reason = "; ".join(against) or f"better: {whole_shown}"
    records = [group.record(one) for group, one in zip(groups, comparisons, strict=True)]
    return {"promoted": not against, "reason": reason, "overall": everything.record(overall), "groups": records}


def too_few(documents: Sequence[str], margin: float, alpha: float, correlation: float) -> bool:
    """Whether samples of some documents cannot rule out a loss, even if both policies give the same answers."""
    _, sizes = np.unique(np.array(documents, dtype=object), return_counts=True)
    effect = design_effect(sizes.astype(float), correlation)
    return score_test(np.zeros(len(documents)), margin, effect=effect, clusters=len(sizes)) >= alpha


def _objection(group: QuestionGroup, comparison: Comparison, alpha: float, correlation: float) -> str:
    """Return what a group has against the candidate; empty: nothing."""
    if comparison.p_margin < alpha:
        return ""
    shown = f"{group.name}: {_shown(comparison)}, p={comparison.p_margin:.2g} of a loss of {group.margin:g}"
    if too_few(group.documents, group.margin, alpha, correlation):
        if comparison.difference < -group.margin:
            return f"worse on {shown}"
        return f"too few to rule out a loss on {shown}" if group.small == "refuse" else ""
    return f"{'worse on' if comparison.high < 0 else 'a loss is not ruled out on'} {shown}"


def _shown(comparison: Comparison) -> str:
    low, high = _signed(comparison.low, 2), _signed(comparison.high, 2)
    counted = f"n={comparison.n} in {comparison.clusters} documents"
    return f"{_signed(comparison.difference, 3)} [{low}, {high}], {counted}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


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
) -> int | None:
    """Return the fewest documents with so many questions each that give enough power; None: a million do not."""

    def suffices(documents: int) -> bool:
        group = PlannedGroup((questions,) * documents, margin, discordance)
        return power([group], alpha=alpha, gain=gain, correlation=correlation) >= ENOUGH

    high = 2
    while not suffices(high):
        high *= 2
        if high > _MOST:
            return None
    return bisect_left(range(high), True, lo=high // 2 + 1, key=suffices)


def state(groups: Sequence[PlannedGroup], *, alpha: float, look: int, correlation: float) -> PowerRecord:
    """State the power of a check of `groups`, and warn where it is not enough.

    `alpha` is the level of all looks, of which this one is number `look`, from 1; differences within a document have a
    `correlation`.
    """
    local = level(alpha, look)
    value = power(groups, alpha=local, correlation=correlation)
    questions, documents = sum(sum(group.sizes) for group in groups), sum(len(group.sizes) for group in groups)
    discordance = max(group.discordance for group in groups)
    warning = ""
    if value < ENOUGH:
        each = max(1, round(questions / documents))
        needed = documents_needed(each, alpha=local, correlation=correlation, discordance=discordance)
        warning = (
            f"a gain of {GAIN:.0%} would be found with a probability of {value:.0%} only (n={questions:,} in "
            f"{documents:,} documents, candidate {look} against this policy); with {each} each, it takes "
            f"{needed or _MOST:,} documents to find it with {ENOUGH:.0%}"
        )
    return {
        "gain": GAIN,
        "power": value,
        "look": look,
        "alpha": local,
        "questions": questions,
        "documents": documents,
        "correlation": correlation,
        "discordance": discordance,
        "warning": warning,
    }


def _variance(group: PlannedGroup, gain: float) -> float:
    return max(group.discordance, abs(gain)) - gain * gain


def _ruled_out(group: PlannedGroup, gain: float, alpha: float, n: float) -> float:
    """Power of the score test that rules out a loss of the margin, with `n` independent samples' worth."""
    margin, discordance = group.margin, max(group.discordance, abs(gain))
    variance = score_variance((discordance + gain) / 2, (discordance - gain) / 2, margin)
    expected = math.sqrt(n) * (gain + margin)
    bound = student(1 - alpha, len(group.sizes)) * math.sqrt(variance)
    return _above((expected - bound) / math.sqrt(_variance(group, gain)))


def _above(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
