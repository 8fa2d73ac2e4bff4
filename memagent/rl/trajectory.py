"""Trajectories: all conversations of one reading, with sampled tokens and their log-probabilities."""

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
    advantages: tuple[float, ...] = ()
    """Advantage of each conversation's response tokens, where a method tells them apart; empty: `advantage`."""
    trace: Trace | None = None
    """What its updates did; None if it was read in several spans."""
    probes: tuple[Conversation, ...] = ()
    """The gold answer as response to the answer prompt without a memory, and with each memory that the method wants;
    they are scored and not trained on (`memagent.rl.methods.Method.memories`)."""

    def of_conversations(self) -> tuple[float, ...]:
        """Return the advantage of each conversation."""
        return self.advantages or (self.advantage,) * len(self.conversations)

    @property
    def response_tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(len(conversation.response_ids) for conversation in self.conversations)

    def with_advantage(self, advantage: float) -> "Trajectory":
        """Return it with its advantage set."""
        return replace(self, advantage=advantage)

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
    for name in ("conversations", "probes"):
        parts[name] = tuple(Conversation(**conversation) for conversation in data.get(name, ()))
    if (trace := data.get("trace")) is not None:
        updates = tuple(MemoryUpdate(**update) for update in trace["updates"])
        evidence = None if trace["evidence"] is None else tuple(trace["evidence"])
        parts["trace"] = Trace(updates, trace["segments"], evidence)
    return Trajectory(**{**data, **parts, "advantages": tuple(data.get("advantages", ()))})


def minibatches(groups: Sequence[Group], prompts: int) -> Iterator[list[Trajectory]]:
    """Yield the trajectories of `prompts` groups at a time.

    Whole groups, so that an optimiser step sees all conversations of each of its trajectories: with
    conversations ordered by turn, one trajectory would be spread over steps with different weights.
    """
    for start in range(0, len(groups), prompts):
        yield [trajectory for group in groups[start : start + prompts] for trajectory in group.trajectories]
