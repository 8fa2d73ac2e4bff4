"""The promotion check: whether a candidate replaces the promoted policy. Pure statistics over scores.

A candidate is promoted if it is significantly better over all samples, and significantly worse in no group of them
(`memagent.metrics.paired`). A failed reading is a wrong answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from memagent.config import Section
from memagent.stats import Paired, mean, paired


class GateSpec(Section):
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
    """Corpora whose validation questions are asked as well."""
    questions: int = Field(200, ge=1)
    """Validation questions at most."""
    texts: tuple[str, ...] = ()
    """Files and folders in whose texts needles are planted; by default readmes of installed packages."""
    seed: int = 1
    """Seed of the texts and of the choice of validation questions."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Significance level."""

    def lengths_for(self, segment_tokens: int) -> tuple[int, ...]:
        """Return the lengths of the texts, in tokens, for a policy that reads segments of some tokens."""
        short = self.segments * segment_tokens
        return tuple(dict.fromkeys(self.lengths or (short, short * self.times)))


@dataclass(frozen=True, slots=True)
class Group:
    """Samples of one group with both policies' scores, 0 to 1, in the same order; None: the reading failed."""

    name: str
    candidate: tuple[float | None, ...]
    incumbent: tuple[float | None, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return means and comparison as plain data."""
        means = {"candidate": mean("", self.candidate).value, "incumbent": mean("", self.incumbent).value}
        failed = {"candidate_failed": self.candidate.count(None), "incumbent_failed": self.incumbent.count(None)}
        return {"name": self.name, **means, **failed, **self.paired().as_dict()}

    def paired(self) -> Paired:
        """Compare candidate and incumbent."""
        return paired(self.candidate, self.incumbent)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a promotion check."""

    promoted: bool
    reason: str
    overall: Group
    groups: tuple[Group, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "promoted": self.promoted,
            "reason": self.reason,
            "overall": self.overall.as_dict(),
            "groups": [group.as_dict() for group in self.groups],
        }


def decide(groups: Sequence[Group], alpha: float) -> Decision:
    """Decide between a candidate and the promoted policy.

    Raises:
        ValueError: there is no sample, or a group's scores are not of the same samples.
    """
    overall = Group(
        "all",
        tuple(score for group in groups for score in group.candidate),
        tuple(score for group in groups for score in group.incumbent),
    )
    if not overall.candidate or any(len(group.candidate) != len(group.incumbent) for group in groups):
        raise ValueError("a gate needs samples that both policies have read")
    whole = overall.paired()
    against = []
    if _worse(whole, alpha):
        against.append(f"worse: {_shown(whole)}")
    elif not (whole.difference > 0 and whole.p < alpha):
        against.append(f"not better beyond noise: {_shown(whole)}")
    for group in groups:
        found = group.paired()
        if _worse(found, alpha):
            against.append(f"worse on {group.name}: {_shown(found)}")
    reason = "; ".join(against) or f"better: {_shown(whole)}"
    return Decision(not against, reason, overall, tuple(groups))


def _worse(found: Paired, alpha: float) -> bool:
    return found.difference < 0 and found.p < alpha


def _shown(found: Paired) -> str:
    low, high = _signed(found.low, 2), _signed(found.high, 2)
    return f"{_signed(found.difference, 3)} [{low}, {high}], n={found.n}, p={found.p:.2g}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")
