"""The batches of a run: sampled by engines, or replayed from the records of an earlier run."""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.cluster.rollout_pool import RolloutPool
from memagent.errors import TrainingError
from memagent.reading.conversations import ReadingSpec
from memagent.records import Progress
from memagent.rl.config import Recipe
from memagent.rl.dataset import Dataset
from memagent.rl.rollout import Batch
from memagent.rl.teacher import teach
from memagent.rl.trajectory import Group
from pipelines.training.checkpoints import Checkpoints

_log = logging.getLogger("memagent.training")
_DRAWS = 10
"""Tasks that the teacher tries for each one of a batch."""


@dataclass(slots=True)
class Sampled:
    """A batch and its sampling statistics."""

    groups: list[Group]
    """Groups with signal, in the dataset's order."""
    cursor: int
    """Tasks of the dataset drawn so far."""
    seen: list[tuple[str, Group]] = field(default_factory=list)
    """All sampled groups with the names of their tasks."""
    counts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    pending: list[int] = field(default_factory=list)
    """Numbers of tasks that were drawn and are in no batch yet: the first ones to be drawn again after a restart."""
    taught: bool = False
    """A teacher wrote the readings: nothing was sampled, or earned a reward."""


@dataclass(frozen=True, slots=True)
class _Draw:
    number: int
    name: str
    version: int
    """Steps that the learner had taken when its rollouts began."""


@dataclass
class EngineSampler:
    """Rolls out tasks until the batch is full of groups with signal (DAPO, arXiv 2503.14476, section 3.2).

    No rounds: `rollout.oversampling` groups are in flight for each one that is missing, so that engines stay full while
    the last groups of a batch are waited for. What comes too late is used for the next batch, as long as its first
    weights are at most `rollout.max_off_policy_steps` behind; else it is sampled again.
    """

    pool: RolloutPool
    dataset: Dataset
    recipe: Recipe
    checkpoints: Checkpoints
    show: Progress
    cursor: int = 0
    """The next number of the dataset."""
    pending: list[int] = field(default_factory=list)
    """Numbers that are drawn before it."""
    _running: dict[asyncio.Task[Group], _Draw] = field(default_factory=dict)

    async def batch(self, step: int) -> Sampled:
        """Return the batch of training step `step` (from 1).

        Raises:
            TrainingError: more groups fail than a batch has.
        """
        began = time.monotonic()
        rollout = self.recipe.rollout
        batch = Batch(rollout.prompts, not rollout.dynamic_sampling, rollout.most_prompts)
        kept: dict[int, Group] = {}
        seen: list[tuple[str, Group]] = []
        stale = await self.close(step - 1 - rollout.max_off_policy_steps)
        while batch.missing:
            self._fill(math.ceil(batch.missing * rollout.oversampling), batch.left, step - 1)
            if not self._running:
                break
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                if not batch.missing:
                    break  # it stays, for the next batch
                draw = self._running.pop(finished)
                try:
                    group = finished.result()
                except TrainingError as error:
                    batch.failed += 1
                    _log.warning("%s", error)
                    if batch.failed > batch.size:
                        raise TrainingError(f"{batch.failed} groups failed in one step, the last: {error}") from error
                    continue
                seen.append((draw.name, group))
                if batch.take(group):
                    kept[draw.number] = group
            self.show({"groups": len(batch.kept), "groups_total": batch.size, "sampled": batch.seen})
        if rollout.max_off_policy_steps and step < self.recipe.stage.max_steps:
            self._fill(math.ceil(batch.size * rollout.oversampling), batch.limit, step - 1)  # while the learner works
        else:
            await self.close()
        counts = {"all_right": batch.all_right, "all_wrong": batch.all_wrong, "failed": batch.failed, "stale": stale}
        groups = [kept[number] for number in sorted(kept)]
        if self.recipe.stage.record:
            self.checkpoints.record(step, groups, self.cursor)
        pending = sorted([*self.pending, *(draw.number for draw in self._running.values())])
        seconds = time.monotonic() - began
        return Sampled(groups, self.cursor, seen, counts=counts, seconds=seconds, pending=pending)

    async def close(self, oldest: float = math.inf) -> int:
        """Cancel rollouts whose first weights are older than version `oldest`, by default all; return their number.

        Their tasks are drawn again first.
        """
        dropped = [task for task, draw in self._running.items() if draw.version < oldest]
        for task in dropped:
            task.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)
        self.pending = sorted([*self.pending, *(self._running.pop(task).number for task in dropped)])
        return len(dropped)

    def _fill(self, size: int, most: int, version: int) -> None:
        """Begin rollouts until `size` groups, but at most `most`, are in flight."""
        while len(self._running) < min(size, most):
            if self.pending:
                number = self.pending.pop(0)
            else:
                number, self.cursor = self.cursor, self.cursor + 1
            task = self.dataset.task(number)
            rollouts = asyncio.ensure_future(self.pool.group(task, self.recipe.rollout.group_size))
            self._running[rollouts] = _Draw(number, task.sample.task, version)


@dataclass
class RecordedSampler:
    """Replays the batches that another run recorded."""

    checkpoints: Checkpoints

    async def batch(self, step: int) -> Sampled:
        """Return the batch of training step `step` (from 1).

        Raises:
            TrainingError: it was not recorded.
        """
        groups, after = self.checkpoints.recorded(step)
        return Sampled(groups, after, seen=[("recorded", group) for group in groups])

    async def close(self) -> None:
        """Do nothing: no rollouts are under way."""


@dataclass
class TeacherSampler:
    """Has the teacher read tasks (`memagent.rl.teacher`); those that it cannot read are left out."""

    dataset: Dataset
    spec: ReadingSpec
    recipe: Recipe
    cursor: int = 0
    """The next number of the dataset."""

    async def batch(self, step: int) -> Sampled:
        """Return the batch of training step `step` (from 1), a reading a group.

        Raises:
            TrainingError: of ten times as many tasks as a batch has, the teacher can read too few.
        """
        began, size = time.monotonic(), self.recipe.rollout.prompts
        seen: list[tuple[str, Group]] = []
        first = self.cursor
        while len(seen) < size:
            if self.cursor - first >= _DRAWS * size:
                raise TrainingError(
                    f"step {step}: of {self.cursor - first} tasks the teacher can read {len(seen)}. It needs tasks "
                    "whose evidence is known and fits the memory: raise reading.memory_tokens, or give other data"
                )
            task = self.dataset.task(self.cursor)
            self.cursor += 1
            trajectory = await teach(task, self.spec)
            if trajectory is not None:
                seen.append((task.sample.task, Group(task.sample_id, (trajectory,))))
        left_out = {"left_out": float(self.cursor - first - size)}
        seconds = time.monotonic() - began
        return Sampled([group for _, group in seen], self.cursor, seen, counts=left_out, seconds=seconds, taught=True)

    async def close(self) -> None:
        """Do nothing: no rollouts are under way."""


Sampler = EngineSampler | RecordedSampler | TeacherSampler
"""A source of batches."""


def by_task(seen: list[tuple[str, Group]]) -> dict[str, float]:
    """Return the mean reward of each task."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, group in seen:
        by_name[name] += group.rewards
    return {name: sum(rewards) / len(rewards) for name, rewards in sorted(by_name.items())}
