"""The batches of a run: sampled by engines, or replayed from the records of an earlier run."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from infra.cluster.progress import Progress
from infra.cluster.rollout_pool import RolloutPool
from memagent.errors import TrainingError
from memagent.rl.config import Recipe
from memagent.rl.dataset import Dataset
from memagent.rl.rollout import Batch
from memagent.rl.trajectory import Group
from pipelines.training.checkpoints import Checkpoints

_log = logging.getLogger("memagent.training")


@dataclass(slots=True)
class Sampled:
    """A batch and its sampling statistics."""

    groups: list[Group]
    """Groups with signal, in the dataset's order."""
    cursor: int
    """Tasks of the dataset consumed so far, this batch included."""
    seen: list[tuple[str, Group]] = field(default_factory=list)
    """All sampled groups with the names of their tasks."""
    counts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Sampler(Protocol):
    """A source of batches."""

    async def batch(self, step: int, cursor: int) -> Sampled:
        """Return the batch of training step `step` (from 1), starting at task `cursor`."""
        ...


@dataclass
class EngineSampler:
    """Rolls out tasks until the batch is full of groups with signal (DAPO, arXiv 2503.14476, section 3.2)."""

    pool: RolloutPool
    dataset: Dataset
    recipe: Recipe
    checkpoints: Checkpoints
    show: Progress

    async def batch(self, step: int, cursor: int) -> Sampled:
        """See `Sampler.batch`.

        Raises:
            TrainingError: more groups fail than a batch has.
        """
        began = time.monotonic()
        rollout = self.recipe.rollout
        batch = Batch(rollout.prompts, not rollout.dynamic_sampling, rollout.most_prompts)
        running: dict[asyncio.Task[Group], tuple[int, str]] = {}
        kept: list[tuple[int, Group]] = []
        seen: list[tuple[str, Group]] = []
        try:
            while running or batch.missing:
                while len(running) < batch.missing:
                    task = self.dataset.task(cursor)
                    group_task = asyncio.ensure_future(self.pool.group(task, rollout.group_size))
                    running[group_task] = (cursor, task.sample.task)
                    cursor += 1
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finished in done:
                    number, name = running.pop(finished)
                    group = _result(finished, batch)
                    if group is None:
                        continue
                    seen.append((name, group))
                    if len(batch.kept) < batch.size and batch.take(group):
                        kept.append((number, group))
                self.show({"groups": len(batch.kept), "groups_total": batch.size, "sampled": batch.seen})
        finally:
            for unfinished in running:
                unfinished.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        kept.sort(key=lambda pair: pair[0])
        counts = {"all_right": batch.all_right, "all_wrong": batch.all_wrong, "failed": batch.failed}
        groups = [group for _, group in kept]
        if self.recipe.stage.record:
            self.checkpoints.record(step, groups, cursor)
        return Sampled(groups, cursor, seen, counts=counts, seconds=time.monotonic() - began)


@dataclass
class RecordedSampler:
    """Replays the batches that another run recorded."""

    checkpoints: Checkpoints

    async def batch(self, step: int, cursor: int) -> Sampled:
        """See `Sampler.batch`."""
        groups, after = self.checkpoints.recorded(step)
        return Sampled(groups, after, [("recorded", group) for group in groups])


def by_task(seen: list[tuple[str, Group]]) -> dict[str, float]:
    """Return the mean reward of each task."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, group in seen:
        by_name[name] += group.rewards
    return {name: sum(rewards) / len(rewards) for name, rewards in sorted(by_name.items())}


def _result(task: "asyncio.Task[Group]", batch: Batch) -> Group | None:
    try:
        return task.result()
    except TrainingError as error:
        batch.failed += 1
        _log.warning("%s", error)
        if batch.failed > batch.size:
            raise TrainingError(f"{batch.failed} groups failed in one step, the last: {error}") from error
        return None
