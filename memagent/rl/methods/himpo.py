"""HiMPO (arXiv 2606.16285): memory updates have an advantage of their own, by what each did for the answer.

From the paper's abstract: the local utility of an update is the task's information that can be recovered from the
memory after it, less that from the memory before it; hindsight bounds it, so that utility which the outcome does not
support counts less; the resulting advantage is of memory tokens alone, and all else goes by the rollout's reward. Ours,
as the paper's formulas could not be read: what can be recovered is the share of the gold answer's surprise that a
memory removes (`memagent.rl.methods.removed`); unsupported utility counts half (a gain before a wrong answer, a loss
before a right one); the baseline is the mean of the group at the same segment; the advantage is added to the rollout's.
"""

from collections.abc import Sequence
from itertools import pairwise

from memagent.rl.advantage import Baseline, add_turns, turn_advantages, with_advantages
from memagent.rl.methods import Likelihoods, Method, removed
from memagent.rl.trajectory import Group

UNSUPPORTED = 0.5
"""What remains of a utility that the outcome does not support."""


def credits_of(scores: Sequence[float], right: bool) -> list[float]:
    """Return the credit of each update, -1 to 1.

    Args:
        scores: of the gold answer without a memory, and after each update.
        right: whether the answer was.
    """
    recovered = [removed(score, scores[0]) for score in scores]
    utilities = [after - before for before, after in pairwise(recovered)]
    return [one if (one > 0) == right or not one else UNSUPPORTED * one for one in utilities]


def assign(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """See `memagent.rl.methods.Assign`."""
    pairs = zip(group.trajectories, likelihoods, strict=True)
    turns = turn_advantages([credits_of(scores, trajectory.reward.right) for trajectory, scores in pairs])
    return add_turns(with_advantages(group, baseline), turns, weight)


METHOD = Method(assign, memories="all")
