"""Rollouts: several sampled readings of one question, with all that training needs recorded.

No lockstep: each rollout is a coroutine on one continuously batching engine, and with the section first
the rollouts of a group share each segment's prefix in the engine's cache.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memagent.errors import EmptyResponse
from memagent.reading.conversations import Generate, ReadingRequest, ReadingSpec, gather_all
from memagent.reading.engine import CUT, Completion, Sampling
from memagent.reading.loop import Reading
from memagent.records import ReadingResult, Turn
from memagent.rl.config import RewardRecipe
from memagent.rl.dataset import Task
from memagent.rl.reward import Answered, MemoryUpdate, Reward, Trace, overlong, reward
from memagent.rl.trajectory import Conversation, Group, Trajectory


class _Recorder:
    """Records the conversations between a reading and its engine."""

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._asked: dict[asyncio.Task[object] | None, tuple[list[int], Completion, int]] = {}
        self.kept: dict[tuple[int, int], tuple[Conversation, Turn, int]] = {}
        """By span and step: conversation, turn, and the limit of the response in tokens."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        # With one seed for the group, all its rollouts would be equal.
        completion = await self._generate(ids, replace(sampling, seed=None, logprobs=True), priority)
        if completion.logprobs is None:
            raise ValueError("the engine gives no log-probabilities, which training needs")
        # Each task records its turn before its next request, also with several spans.
        self._asked[asyncio.current_task()] = ids, completion, sampling.max_tokens
        return completion

    def record(self, turn: Turn) -> None:
        ids, completion, limit = self._asked.pop(asyncio.current_task())
        assert turn.kind != "carried", "a rollout begins at the beginning"
        conversation = Conversation(
            ids,
            completion.ids,
            list(completion.logprobs or []),
            kind=turn.kind,
            cut=completion.cut,
            weight_version=completion.weight_version,
        )
        self.kept[turn.span, turn.step] = conversation, turn, limit


async def roll_out(task: Task, rollout: int, scheme: ReadingSpec, generate: Generate, pay: RewardRecipe) -> Trajectory:
    """Read once, and compute the reward of the answer. Raises what `generate` raises.

    Raises:
        ValueError: the engine gives no log-probabilities.
    """
    recorder = _Recorder(generate)
    name = f"{task.sample_id}/{rollout}"
    request = ReadingRequest(name, task.question, task.stream())
    try:
        outcome = await Reading(request, scheme, recorder.generate, recorder.record).run()
    except EmptyResponse:  # recorded, and no answer: the policy is to learn from it
        outcome = ReadingResult(name, "", found=False)
    kept = [recorder.kept[place] for place in sorted(recorder.kept)]
    conversations, turns = tuple(one for one, _, _ in kept), [turn for _, turn, _ in kept]
    said = Answered(
        outcome.answer,
        outcome.found,
        task.gold,
        formed=not any(conversation.cut for conversation in conversations),
        judged=task.judge(outcome.answer if outcome.found else ""),
        every=task.sample.match == "all",
        trace=trace_of(task, turns),
    )
    return Trajectory(
        task.sample_id,
        rollout,
        conversations,
        reward=_paid(said, [(len(one.response_ids), limit) for one, _, limit in kept], pay),
        answer=outcome.answer,
        trace=said.trace,
    )


def trace_of(task: Task, turns: Sequence[Turn]) -> Trace | None:
    """Return the trace of a rollout's turns, in order; None if it was read in several spans."""
    if any(turn.kind == "merge" for turn in turns):
        return None
    updates = (turn for turn in turns if turn.kind == "update")
    made = tuple(MemoryUpdate(turn.changed, turn.finish_reason not in CUT) for turn in updates)
    return Trace(made, len(task.segments), task.evidence())


async def roll_out_group(task: Task, size: int, scheme: ReadingSpec, generate: Generate, pay: RewardRecipe) -> Group:
    """Read `size` times side by side. If one rollout fails, the group fails and the others are cancelled."""
    rollouts = [roll_out(task, i, scheme, generate=generate, pay=pay) for i in range(size)]
    return Group(task.sample_id, tuple(await gather_all(rollouts)))


def _paid(said: Answered, lengths: Sequence[tuple[int, int]], pay: RewardRecipe) -> Reward:
    """Pay an answer; `lengths` are the tokens of each response, and its limit."""
    paid = reward(said, pay.weights)
    # The worst response counts, so long readings are not penalised for their number of turns.
    fine = min((overlong(length, limit, pay.overlong_tokens) for length, limit in lengths), default=0.0)
    return replace(paid, total=paid.total + fine, parts={**paid.parts, "overlong": fine}) if fine else paid


@dataclass(slots=True)
class Batch:
    """Collects the groups of one training step."""

    size: int
    """Groups of a step."""
    keep_equal: bool = False
    """Keep groups with equal rewards too (they still contribute to the KL term)."""
    most: int = 0
    """Groups to sample at most; 0: ten times `size`. A policy that is always right must not sample forever."""
    kept: list[Group] = field(default_factory=list)
    all_right: int = 0
    all_wrong: int = 0
    """Groups with equal rewards that are not all entirely right."""
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
    def left(self) -> int:
        """Groups that may still be sampled."""
        return max(0, self.limit - self.seen - self.failed)

    @property
    def missing(self) -> int:
        """Groups still to be sampled; 0 when the batch is full or the limit reached."""
        return min(self.size - len(self.kept), self.left)

    def take(self, group: Group) -> bool:
        """Add a group; return whether it is kept.

        Raises:
            ValueError: the batch is full.
        """
        if len(self.kept) >= self.size:
            raise ValueError("the batch is full")
        if group.has_signal or self.keep_equal:
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
