"""Rollouts: the product's own reading, several times for one question, with everything kept that training needs.

No lockstep: each rollout is a coroutine on one continuously batching engine, and with the section first
the rollouts of a group share each segment's prefix in the engine's cache.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memagent.engine import Completion, Sampling
from memagent.reading import Generate, Reading, Scheme
from memagent.records import Turn, digest
from memagent.rl.exercises import Exercise
from memagent.rl.rewards import Answered, Reward, overlong, reward
from memagent.rl.trajectories import Conversation, Group, Trajectory


@dataclass(frozen=True, slots=True)
class Pay:
    """What is paid for (`memagent.rl.recipe.RewardRecipe`)."""

    weights: Mapping[str, float]
    overlong_tokens: int = 0


class _Recorder:
    """Stands between one reading and its engine, and keeps what passes."""

    def __init__(self, generate: Generate, seed: str | None) -> None:
        self._generate = generate
        self._seed = seed
        self._asked: dict[asyncio.Task[object] | None, tuple[list[int], Completion]] = {}
        self.kept: dict[tuple[int, int], Conversation] = {}
        self.limits: dict[tuple[int, int], int] = {}
        self._limit: dict[asyncio.Task[object] | None, int] = {}

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        # One seed for a whole group would make its rollouts the same.
        seed = int(digest(self._seed, ids)[:8], 16) if self._seed is not None else None
        completion = await self._generate(ids, replace(sampling, seed=seed, logprobs=True), priority)
        if completion.logprobs is None:
            raise ValueError("the engine gives no log-probabilities, which training needs")
        # The turn is recorded by the same task before it asks again, also where lanes are read side by side.
        task = asyncio.current_task()
        self._asked[task], self._limit[task] = (ids, completion), sampling.max_tokens
        return completion

    def record(self, turn: Turn) -> None:
        task = asyncio.current_task()
        ids, completion = self._asked.pop(task)
        assert turn.kind != "carried", "a rollout begins at the beginning"
        place = (turn.lane, turn.step)
        self.limits[place] = self._limit.pop(task)
        self.kept[place] = Conversation(
            ids,
            completion.ids,
            list(completion.logprobs or []),
            turn.kind,
            completion.cut,
            completion.weight_version,
        )


async def roll_out(
    exercise: Exercise, rollout: int, scheme: Scheme, generate: Generate, pay: Pay, seed: int | None = None
) -> Trajectory:
    """Read once and pay for the answer. Raises what `generate` raises.

    Raises:
        ValueError: the engine gives no log-probabilities.
    """
    recorder = _Recorder(generate, None if seed is None else f"{seed} {exercise.sample_id} {rollout}")
    name = f"{exercise.sample_id}/{rollout}"
    reading = Reading(name, exercise.question, exercise.stream(), scheme, recorder.generate, recorder.record)
    outcome = await reading.run()
    places = sorted(recorder.kept)
    conversations = tuple(recorder.kept[place] for place in places)
    limits = [recorder.limits[place] for place in places]
    paid = _paid(exercise, outcome.answer, outcome.found, conversations, limits, pay)
    return Trajectory(exercise.sample_id, rollout, conversations, paid, outcome.answer)


async def roll_out_group(
    exercise: Exercise, size: int, scheme: Scheme, generate: Generate, pay: Pay, seed: int | None = None
) -> Group:
    """Read `size` times side by side. Where one rollout fails the group fails, and the others are given up."""
    tasks = [asyncio.ensure_future(roll_out(exercise, rollout, scheme, generate, pay, seed)) for rollout in range(size)]
    try:
        return Group(exercise.sample_id, tuple(await asyncio.gather(*tasks)))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _paid(
    exercise: Exercise,
    answer: str,
    found: bool,
    conversations: Sequence[Conversation],
    limits: Sequence[int],
    pay: Pay,
) -> Reward:
    formed = not any(conversation.cut for conversation in conversations)
    judged = exercise.judge(answer if found else "")
    paid = reward(Answered(answer, found, exercise.gold, formed, judged), pay.weights)
    # The worst response counts, so that a long reading is not fined for its number of turns.
    fine = min(
        (
            overlong(len(conversation.response_ids), limit, pay.overlong_tokens)
            for conversation, limit in zip(conversations, limits, strict=True)
        ),
        default=0.0,
    )
    return replace(paid, total=paid.total + fine, parts={**paid.parts, "overlong": fine}) if fine else paid
