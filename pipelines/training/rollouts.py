"""The batches of a run: sampled by engines, or taken from the records of an earlier run."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    """A batch, and how it came about."""

    groups: list[Group]
    """That teach, in the dataset's order."""
    cursor: int
    """Tasks of the dataset that are used up with it."""
    seen: list[tuple[str, Group]] = field(default_factory=list)
    """All groups that were sampled, with their task."""
    counts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Sampler(Protocol):
    """A source of batches."""

    async def batch(self, step: int, cursor: int) -> Sampled:
        """Return the batch of training step `step` (from 1), which begins with task `cursor`."""
        ...


@dataclass
class EngineSampler:
    """Rolls tasks out until the batch is full of groups that teach (DAPO, arXiv 2503.14476, section 3.2)."""

    pool: RolloutPool
    dataset: Dataset
    recipe: Recipe
    journal: Checkpoints
    show: Callable[[dict[str, Any]], None]

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
            self.journal.record(step, groups, cursor)
        return Sampled(groups, cursor, seen, counts=counts, seconds=time.monotonic() - began)


@dataclass
class RecordedSampler:
    """Gives the batches that another run has recorded."""

    journal: Checkpoints

    async def batch(self, step: int, cursor: int) -> Sampled:
        """See `Sampler.batch`."""
        groups, after = self.journal.recorded(step)
        return Sampled(groups, after, [("recorded", group) for group in groups])


def by_task(seen: list[tuple[str, Group]]) -> dict[str, float]:
    """Return the mean reward of each task."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, group in seen:
        found[name] += group.rewards
    return {name: sum(rewards) / len(rewards) for name, rewards in sorted(found.items())}


def _result(task: "asyncio.Task[Group]", batch: Batch) -> Group | None:
    try:
        return task.result()
    except TrainingError as error:
        batch.failed += 1
        _log.warning("%s", error)
        if batch.failed > batch.size:
            raise TrainingError(f"{batch.failed} groups failed in one step, the last: {error}") from error
        return None
