"""InfoMem (arXiv 2606.03329): a right answer is paid more the likelier the last memory makes the gold answer.

From the paper's abstract: the reward is the gain in the gold answer's log-likelihood per token by the last memory;
only successful rollouts have it; and it is normalised before it is added to the answer's reward. How it is normalised
is ours, as the paper's formulas could not be read: the gain is divided by the answer's surprise without any memory,
which gives 0 to 1 (`memagent.rl.methods.removed`) and makes nothing large of a small difference. The likelihoods are
the learner's.
"""

from collections.abc import Sequence
from dataclasses import replace

from memagent.rl.advantage import Baseline, with_advantages
from memagent.rl.methods import Likelihoods, Method, removed
from memagent.rl.trajectory import Group, Trajectory


def assign(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """See `memagent.rl.methods.Assign`."""
    pairs = zip(group.trajectories, likelihoods, strict=True)
    return with_advantages(Group(group.sample_id, tuple(_paid(one, scores, weight) for one, scores in pairs)), baseline)


def _paid(trajectory: Trajectory, scores: Sequence[float], weight: float) -> Trajectory:
    if not trajectory.reward.right:
        return trajectory
    gain, reward = removed(scores[-1], scores[0]), trajectory.reward
    paid = replace(reward, total=reward.total + weight * gain, parts={**reward.parts, "memory": gain})
    return replace(trajectory, reward=paid)


METHOD = Method(assign, memories="last")
