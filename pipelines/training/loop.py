"""The training loop: sample, learn, sync the weights, validate, save."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from infra.cluster.progress import Progress
from infra.cluster.rollout_pool import RolloutPool
from infra.learner.group import LearnerGroup
from infra.store import Store
from memagent.errors import TrainingError
from memagent.rl.advantage import with_advantages
from memagent.rl.config import Recipe
from memagent.rl.dataset import Dataset
from pipelines.training.checkpoints import Checkpoints, MetricsRow, State
from pipelines.training.monitors import Monitors, learning_metrics, rollout_metrics, shares, validation_metrics
from pipelines.training.rollouts import Sampled, Sampler
from pipelines.training.weight_sync import WeightSync

_PHASES = ("rollout", "learn", "weight_sync", "validate", "save")


@dataclass
class Loop:
    """One run, from its last checkpoint to its end."""

    run_id: str
    recipe: Recipe
    store: Store
    checkpoints: Checkpoints
    learner: LearnerGroup
    sampler: Sampler
    pool: RolloutPool | None
    """None when rollouts are replayed: then nothing is validated either."""
    validation: Dataset
    monitors: Monitors
    show: Progress
    state: State = field(default_factory=State)
    _seconds: dict[str, float] = field(default_factory=dict)
    _next: "asyncio.Task[Sampled] | None" = None
    _saved: int = 0

    def __post_init__(self) -> None:
        if self.pool is not None:
            self._weights = WeightSync(self.learner, self.pool, self.recipe.learner.weight_sync, self._version)

    async def run(self) -> State:
        """Train to the end.

        Raises:
            TrainingError: a step cannot be taken; the last checkpoint stays.
        """
        stage = self.recipe.stage
        try:
            if self.state.step:
                self._saved = self.state.step
                await self.learner.load(self.store, *self.checkpoints.checkpoint(self.state.step))
                await self._sync_weights()
            else:
                await self._validate_start()
            while self.state.step < stage.max_steps and self.state.stale < stage.patience:
                await self._step()
        finally:
            if self._next is not None:
                self._next.cancel()
                await asyncio.gather(self._next, return_exceptions=True)
        if self.pool is None:  # nothing was validated: the last weights count as the best
            self.state.best_step = self.state.step
            await self.learner.export(self.store, *self.checkpoints.best(self.state.step))
        stale = self.state.stale >= stage.patience
        self.state.done = f"no better for {self.state.stale} validations" if stale else f"{self.state.step} steps"
        self.checkpoints.commit(self.state)
        return self.state

    async def _validate_start(self) -> None:
        """Validate and export the initial weights: a candidate must be better."""
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        await self._validate({"step": 0})

    async def _step(self) -> None:
        step = self.state.step + 1
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        self.show({"stage": "rollout", "step": step, "steps": self.recipe.stage.max_steps})
        with self._timed("rollout"):
            sampled = await self._batch(step)
        if not sampled.groups:
            raise TrainingError(
                f"step {step}: of {len(sampled.seen)} groups none has signal: all rollouts of a group got the "
                f"same reward ({sampled.counts}). The tasks are too easy or too hard for this policy."
            )
        if self.recipe.rollout.max_off_policy_steps and self.pool is not None and step < self.recipe.stage.max_steps:
            self._next = asyncio.ensure_future(self.sampler.batch(step + 1, sampled.cursor))
        self.show({"stage": "learn", "step": step, "steps": self.recipe.stage.max_steps})
        with self._timed("learn"):
            groups = [with_advantages(group, self.recipe.loss.baseline) for group in sampled.groups]
            try:
                steps = await self.learner.learn(groups)
            except TrainingError as error:
                names = ", ".join(group.sample_id for group in groups[:8])
                raise TrainingError(
                    f"step {step}: {error} Tasks: {names}. The checkpoint of step {self._saved} stays."
                ) from error
        self.state.step, self.state.cursor = step, sampled.cursor
        if self._next is not None:  # sampled with the previous weights: one step off-policy, never more
            with self._timed("rollout"):
                await asyncio.wait([self._next])
        await self._sync_weights()
        row: MetricsRow = {"step": step, "version": self._version()}
        row |= rollout_metrics(sampled) | learning_metrics(steps, self._seconds["learn"])
        stage = self.recipe.stage
        if step == stage.max_steps or step % stage.validate_every == 0:
            await self._validate(row)
        ends = step == stage.max_steps or self.state.stale >= stage.patience
        if ends or step % stage.save_every == 0 or self.state.best_step == step:
            await self._save()
        if ends or (stage.export_every and step % stage.export_every == 0):
            await self._export()
        await self._log(row)

    async def _export(self) -> None:
        """Keep the current weights with the run, in Hugging Face format, and LoRA's factors beside them."""
        step = self.state.step
        with self._timed("save"):
            await self.learner.export(self.store, *self.checkpoints.exported(step, "model"))
            if self.recipe.learner.lora_rank:
                await self.learner.export_adapter(self.store, *self.checkpoints.exported(step, "adapter"))

    async def _batch(self, step: int) -> Sampled:
        prefetched, self._next = self._next, None
        return await (prefetched if prefetched is not None else self.sampler.batch(step, self.state.cursor))

    async def _sync_weights(self) -> None:
        if self.pool is None:
            return
        with self._timed("weight_sync"):
            await self._weights.sync()

    async def _validate(self, row: MetricsRow) -> None:
        """Score the current weights; export the best so far as a model folder."""
        if self.pool is None:
            return
        self.show({"stage": "validate", "step": row["step"], "steps": self.recipe.stage.max_steps})
        with self._timed("validate"):
            tasks = [self.validation.task(i) for i in range(self.recipe.stage.validate_with)]
            kinds = {task.sample_id: task.sample.task for task in tasks}
            groups = [(kinds[group.sample_id], group) async for group in self.pool.greedy(tasks)]
            metrics = validation_metrics(groups)
        row["validation"] = metrics
        state = self.state
        if metrics["reward"] > state.best_score:
            state.best_score, state.best_step, state.stale = metrics["reward"], row["step"], 0
            with self._timed("save"):
                await self.learner.export(self.store, *self.checkpoints.best(row["step"]))
        else:
            state.stale += 1
        if row["step"] == 0:
            self.checkpoints.note(row)
            self.monitors.write(row)

    async def _save(self) -> None:
        with self._timed("save"):
            await self.learner.save(self.store, *self.checkpoints.checkpoint(self.state.step))
        self._saved = self.state.step

    async def _log(self, row: MetricsRow) -> None:
        row["seconds"] = {name: round(value, 3) for name, value in self._seconds.items()}
        row["share"] = shares(self._seconds)
        if self.pool is not None:
            row["engine_deaths"] = await self.pool.deaths()
            row["workers_replaced"] = self.pool.replaced
        counts = self.state.counts
        for name in ("rollout_tokens", "trained_tokens", "trajectories"):
            counts[name] = counts.get(name, 0.0) + row[name]
        counts["seconds"] = round(counts.get("seconds", 0.0) + sum(self._seconds.values()), 3)
        self.checkpoints.note(row)
        self.monitors.write(row)
        if self._saved == self.state.step:
            self.checkpoints.commit(self.state)
        self.show({"stage": "step", "row": row, "step": row["step"], "steps": self.recipe.stage.max_steps})

    def _version(self) -> str:
        return f"{self.run_id}:{self.state.step}"

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - began
