"""Dynamic sampling: groups whose rewards are all equal teach nothing, so others take their place.

DAPO, arXiv 2503.14476, section 3.2. Without refilling the batch would shrink as the policy improves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from memagent.rl.trajectories import Group


@dataclass(slots=True)
class Batch:
    """The groups of one training step while they come in."""

    size: int
    """Groups that a step learns from."""
    keep_equal: bool = False
    """Learn from groups of equal rewards too (they still carry the KL term, where it is on)."""
    most: int = 0
    """Groups to sample at most; 0: ten times `size`. A policy that is right everywhere must not sample for ever."""
    kept: list[Group] = field(default_factory=list)
    all_right: int = 0
    all_wrong: int = 0
    """Groups of equal rewards that are not all right: half right counts as wrong."""
    failed: int = 0
    """Groups whose rollouts could not be completed; they are sampled again and counted."""

    @property
    def seen(self) -> int:
        """Groups that were sampled to the end."""
        return len(self.kept) + self.all_right + self.all_wrong

    @property
    def limit(self) -> int:
        """Groups to sample at most."""
        return self.most or 10 * self.size

    @property
    def missing(self) -> int:
        """Groups still to be sampled; 0 when the batch is full or the limit reached."""
        if len(self.kept) >= self.size:
            return 0
        return max(0, min(self.size - len(self.kept), self.limit - self.seen - self.failed))

    @property
    def kept_share(self) -> float:
        """Share of the sampled groups that teach."""
        return len(self.kept) / self.seen if self.seen else 0.0

    def take(self, group: Group) -> bool:
        """Take a group; return whether it is learnt from.

        Raises:
            ValueError: the batch is full.
        """
        if len(self.kept) >= self.size:
            raise ValueError("the batch is full")
        if group.teaches or self.keep_equal:
            self.kept.append(group)
            return True
        if group.trajectories and all(trajectory.reward.right for trajectory in group.trajectories):
            self.all_right += 1
        else:
            self.all_wrong += 1
        return False


def pass_rate(groups: Sequence[Group]) -> float:
    """Return the share of rollouts that are strictly right."""
    paid = [trajectory.reward.strict for group in groups for trajectory in group.trajectories]
    return sum(value >= 1 for value in paid) / len(paid) if paid else 0.0
