"""Trajectories: all conversations of one reading, with sampled tokens and their log-probabilities."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from memagent.rl.reward import MemoryUpdate, Reward, Trace


@dataclass(frozen=True, slots=True)
class Conversation:
    """One independent context: a prompt and the response that is trained on, as token ids."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    """Rollout log-probability of each response token."""
    kind: Literal["update", "merge", "answer"]
    cut: bool = False
    """The engine stopped it at its token limit."""
    weight_version: str = ""

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.response_ids):
            raise ValueError(f"{len(self.response_ids)} response tokens with {len(self.logprobs)} log-probabilities")

    @property
    def tokens(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout of one sample."""

    sample_id: str
    rollout: int
    """Index of the rollout in its group."""
    conversations: tuple[Conversation, ...]
    reward: Reward
    answer: str = ""
    advantage: float = 0.0
    """Advantage of all response tokens of all conversations."""
    trace: Trace | None = None
    """What its updates did; None if it was read in several spans."""

    @property
    def response_tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(len(conversation.response_ids) for conversation in self.conversations)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one sample."""

    sample_id: str
    trajectories: tuple[Trajectory, ...] = field(default=())

    @property
    def rewards(self) -> list[float]:
        """The total reward of each rollout."""
        return [trajectory.reward.total for trajectory in self.trajectories]

    @property
    def has_signal(self) -> bool:
        """Whether its rewards differ; where all are equal every advantage is 0 (DAPO, section 3.2)."""
        return len(set(self.rewards)) > 1


def from_dict(data: dict[str, Any]) -> Trajectory:
    """Read a recorded trajectory.

    Raises:
        ValueError: tokens and log-probabilities do not match.
        TypeError: a field is missing or unknown.
    """
    parts: dict[str, Any] = {"reward": Reward(**data["reward"])}
    parts["conversations"] = tuple(Conversation(**conversation) for conversation in data["conversations"])
    if (trace := data.get("trace")) is not None:
        updates = tuple(MemoryUpdate(**update) for update in trace["updates"])
        evidence = None if trace["evidence"] is None else tuple(trace["evidence"])
        parts["trace"] = Trace(updates, trace["segments"], evidence)
    return Trajectory(**{**data, **parts})


def minibatches(groups: Sequence[Group], prompts: int) -> Iterator[list[Trajectory]]:
    """Yield the trajectories of `prompts` groups at a time.

    Whole groups, so that an optimiser step sees all conversations of each of its trajectories: with
    conversations ordered by turn, one trajectory would be spread over steps with different weights.
    """
    for start in range(0, len(groups), prompts):
        yield [trajectory for group in groups[start : start + prompts] for trajectory in group.trajectories]


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
    return Group(group.sample_id, tuple(replace(trajectory, advantage=value) for trajectory, value in pairs))
