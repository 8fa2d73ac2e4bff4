"""The promotion check: whether a candidate replaces the promoted policy. Pure statistics over scores.

A candidate is promoted if it is better over all samples, and shown to be no worse than by a margin in each group of
them: an intersection-union test (Berger, Technometrics 24, 1982), so every test may have the whole level. All samples
of a document are one cluster (`memagent.clustered`). A failed reading is a wrong answer. Each further candidate that is
compared with the same policy on the same samples has a smaller level (`level`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import numpy as np
from pydantic import Field

from memagent.clustered import Comparison, compare, design_effect, score_test
from memagent.settings import Section
from memagent.stats import mean

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
    """Scores of one group of samples: means, failed readings, and the tests (`memagent.clustered.Comparison`)."""

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


class DecisionRecord(TypedDict):
    """A decision as plain data."""

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
        return {
            "name": self.name,
            "candidate": mean("", self.candidate).value,
            "incumbent": mean("", self.incumbent).value,
            "candidate_failed": self.candidate.count(None),
            "incumbent_failed": self.incumbent.count(None),
            "difference": comparison.difference,
            "low": comparison.low,
            "high": comparison.high,
            "p": comparison.p,
            "p_margin": comparison.p_margin,
            "margin": self.margin,
            "n": comparison.n,
            "documents": comparison.clusters,
            "better": comparison.better,
            "worse": comparison.worse,
            "design_effect": comparison.design_effect,
            "method": comparison.method,
        }

    def compare(self, correlation: float) -> Comparison:
        """Compare candidate and incumbent."""
        return compare(self.candidate, self.incumbent, self.documents, margin=self.margin, correlation=correlation)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a promotion check."""

    promoted: bool
    reason: str
    overall: GroupRecord
    groups: tuple[GroupRecord, ...] = field(default=())

    def record(self) -> DecisionRecord:
        """Return it as plain data."""
        return {
            "promoted": self.promoted,
            "reason": self.reason,
            "overall": self.overall,
            "groups": list(self.groups),
        }


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
    against = [] if overall.difference > 0 and overall.p < alpha else [f"not better beyond chance: {_whole(overall)}"]
    comparisons = [group.compare(correlation) for group in groups]
    for group, comparison in zip(groups, comparisons, strict=True):
        if objection := _objection(group, comparison, alpha, correlation):
            against.append(objection)
    reason = "; ".join(against) or f"better: {_whole(overall)}"
    records = tuple(group.record(one) for group, one in zip(groups, comparisons, strict=True))
    return Decision(not against, reason, everything.record(overall), records)


def too_few(documents: Sequence[str], margin: float, alpha: float, correlation: float) -> bool:
    """Whether samples of some documents cannot rule out a loss, even if both policies give the same answers."""
    _, sizes = np.unique(np.array(documents, dtype=object), return_counts=True)
    effect = design_effect(sizes.astype(float), correlation)
    return score_test(np.zeros(len(documents)), margin, effect=effect, clusters=len(sizes)) >= alpha


def _objection(group: QuestionGroup, comparison: Comparison, alpha: float, correlation: float) -> str:
    """Return what a group has against the candidate; empty: nothing."""
    if comparison.p_margin < alpha:
        return ""
    shown = f"{group.name}: {_group(comparison, group.margin)}"
    if too_few(group.documents, group.margin, alpha, correlation):
        if comparison.difference < -group.margin:
            return f"worse on {shown}"
        return f"too few to rule out a loss on {shown}" if group.small == "refuse" else ""
    return f"{'worse on' if comparison.high < 0 else 'a loss is not ruled out on'} {shown}"


def _whole(comparison: Comparison) -> str:
    return f"{_shown(comparison)}, p={comparison.p:.2g}"


def _group(comparison: Comparison, margin: float) -> str:
    return f"{_shown(comparison)}, p={comparison.p_margin:.2g} of a loss of {margin:g}"


def _shown(comparison: Comparison) -> str:
    low, high = _signed(comparison.low, 2), _signed(comparison.high, 2)
    counted = f"n={comparison.n} in {comparison.clusters} documents"
    return f"{_signed(comparison.difference, 3)} [{low}, {high}], {counted}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")
