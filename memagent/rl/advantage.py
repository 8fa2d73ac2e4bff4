"""Group-relative advantages: of a rollout, and of an update, relative to the other rollouts of its prompt."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from memagent.rl.trajectory import Group, Trajectory

Baseline = Literal["mean", "mean-std", "rloo"]
_EPSILON = 1e-6


def advantages(rewards: Sequence[float], baseline: Baseline = "mean") -> list[float]:
    """Return the advantage of each rollout of one group.

    mean: reward minus the group's mean, as MemAgent trains (arXiv 2507.02259, section 3.2) and Dr. GRPO
    argues (arXiv 2503.20783): dividing by the deviation gives nearly settled prompts more weight.
    mean-std: that, divided by the deviation over the group (GRPO, arXiv 2402.03300, section 4.1).
    rloo: minus the mean of the other rollouts (arXiv 2402.14740), n / (n - 1) times `mean`.

    Raises:
        ValueError: a reward is not a number; or the group has a single rollout.
    """
    n = len(rewards)
    if n < 2:
        raise ValueError(f"a group needs at least two rollouts, not {n}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers: {list(rewards)}")
    if len(set(rewards)) == 1:
        return [0.0] * n  # rounding of the mean must not become a gradient
    mean = math.fsum(rewards) / n
    above = [reward - mean for reward in rewards]
    if baseline == "mean-std":
        deviation = math.sqrt(math.fsum(value * value for value in above) / n)
        return [value / (deviation + _EPSILON) for value in above]
    if baseline == "rloo":
        return [value * n / (n - 1) for value in above]
    return above


def with_advantages(group: Group, baseline: Baseline = "mean") -> Group:
    """Return the group with each trajectory's advantage set.

    Computed per trajectory, before it is split into conversations, so longer readings weigh no more in the baseline.
    """
    values = advantages(group.rewards, baseline)
    pairs = zip(group.trajectories, values, strict=True)
    return Group(group.sample_id, tuple(trajectory.with_advantage(value) for trajectory, value in pairs))


def turn_advantages(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the values of each rollout's updates less the mean of the group at the same update.

    Rollouts may have different numbers of updates; one that is alone at an update has 0 there.
    """
    longest = max(map(len, values), default=0)
    at = [[turns[i] for turns in values if i < len(turns)] for i in range(longest)]
    means = [math.fsum(same) / len(same) for same in at]
    return [[value - mean for value, mean in zip(turns, means, strict=False)] for turns in values]


def add_turns(group: Group, turns: Sequence[Sequence[float]], weight: float) -> Group:
    """Return a group with advantages in which each update has one of its own added.

    Args:
        group: with advantages; the updates of a rollout are its first conversations, in order.
        turns: of each rollout's updates, or nothing of a rollout.
        weight: of `turns`.
    """
    pairs = zip(group.trajectories, turns, strict=True)
    return Group(group.sample_id, tuple(_with_turns(trajectory, own, weight) for trajectory, own in pairs))


def _with_turns(trajectory: Trajectory, turns: Sequence[float], weight: float) -> Trajectory:
    rest = len(trajectory.conversations) - len(turns)
    added = (*(weight * value for value in turns), *[0.0] * rest)
    return (
        replace(trajectory, advantages=tuple(trajectory.advantage + value for value in added)) if turns else trajectory
    )
