"""The training loop: sample, learn, sync the weights, validate, save."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

from infra.cluster.board import Progress
from infra.cluster.rollout_pool import RolloutPool, Weights
from infra.cluster.session import raised
from infra.learner.group import LearnerGroup, RankLost
from infra.store.location import Store
from memagent.errors import TrainingError
from memagent.rl.config import Recipe
from memagent.rl.dataset import Dataset
from memagent.rl.methods import METHODS
from memagent.rl.trajectory import Group
from pipelines.training.checkpoints import Checkpoints, MetricsRow, State
from pipelines.training.monitors import Compute, Monitors, learning_metrics, rollout_metrics, shares, validation_metrics
from pipelines.training.rollouts import Sampler


class WeightSync:
    """Copies the learner's current weights to the engines: as files, or by broadcast."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool, kind: str, version: Callable[[], str]) -> None:
        """`version` returns the name of the current weights; `kind` is `LearnerRecipe.weight_sync`."""
        self._learner, self._pool = learner, pool
        self._version = version
        self._broadcasts = kind == "broadcast"
        self._lock = asyncio.Lock()
        if self._broadcasts:
            pool.renew = self._renew

    async def collect(self) -> Weights | None:
        """Return the learner's weights as files, for `give`; None if they are broadcast."""
        return None if self._broadcasts else await self._learner.weights(self._version())

    async def give(self, weights: Weights | None) -> None:
        """Update all engines; readings in progress go on with the new weights from their next conversation.

        Raises:
            TrainingError: an engine was not updated.
        """
        if weights is None:
            await self._broadcast(self._pool.places)
        else:
            await self._pool.update(weights)

    async def _renew(self, place: int) -> None:
        await self._broadcast([place])

    async def _broadcast(self, places: Sequence[int]) -> None:
        from ray.exceptions import RayError

        async with self._lock:
            rendezvous = await self._learner.meeting(self._pool.processes(places))
            version = self._version()  # a learner step in progress has ended by now
            try:
                await asyncio.gather(self._learner.send(rendezvous), self._pool.receive(rendezvous, version, places))
            except RankLost:
                raise
            except (RayError, TrainingError) as error:
                cause = raised(error)
                raise TrainingError(
                    f"the weights of {version} did not reach the engines ({type(cause).__name__}: {cause}). "
                    "Run the same command again: it resumes from the last checkpoint."
                ) from error


class Turns:
    """Whose turn it is. With GPUs of their own (`shared` false) it is always everybody's."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool | None, *, shared: bool) -> None:
        self._learner, self._pool = learner, pool
        self._shared = shared and pool is not None
        self._depth = 0

    async def start(self) -> None:
        """Start both. An engine takes all the memory that it finds free, so a learner that shares it starts first."""
        if self._shared and self._pool is not None:
            await self._learner.start()
            await self._learner.offload()
            await self._pool.start()
            return
        await asyncio.gather(self._learner.start(), *([self._pool.start()] if self._pool else []))

    @asynccontextmanager
    async def learners(self) -> AsyncIterator[None]:
        """It is the learner's turn: the engines sleep. May be nested."""
        if not self._shared or self._pool is None or self._depth:
            yield
            return
        await self._pool.sleep()
        await self._learner.reload()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            await self._learner.offload()
            await self._pool.wake()


_T = TypeVar("_T")
_log = logging.getLogger("memagent.training")

_PHASES = ("rollout", "learn", "weight_sync", "validate", "save")


class RanksLost(TrainingError):
    """Ranks of the learner keep getting lost."""


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
    turns: Turns
    validation: Dataset
    monitors: Monitors
    show: Progress
    compute: Compute | None = None
    """For the learner's utilisation; None if the model's sizes are not known."""
    state: State = field(default_factory=State)
    _seconds: dict[str, float] = field(default_factory=dict)
    _saved: int = 0
    """Step of the last whole checkpoint."""
    _uploading: State | None = None
    """State at a checkpoint that is being written."""
    _unsaved: dict[int, list[Group]] = field(default_factory=dict)
    """Batches since the last whole checkpoint, by step: learnt again if a rank is lost."""
    _losses: int = 0
    """Times that a rank was lost since a step was learnt."""

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
                async with self.turns.learners():
                    await self.learner.load(self.store, *self.checkpoints.checkpoint(self.state.step))
                    weights = await self._collect_weights()
                await self._give_weights(weights)
            else:
                await self._validate_start()
            while self.state.step < stage.max_steps and self.state.stale < stage.patience:
                await self._step()
        except RanksLost:
            raise
        except TrainingError:
            await self._commit_saved()  # what ends a run must not cost the checkpoint that is being written
            raise
        finally:
            await self.sampler.close()
        await self._commit_saved()
        if self.pool is None:  # nothing was validated: the last weights count as the best
            self.state.best_step = self.state.step
            best = self.checkpoints.best(self.state.step)
            await self._on_ranks(lambda: self.learner.export(self.store, *best))
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
            sampled = await self.sampler.batch(step)
        if not sampled.groups:
            raise TrainingError(
                f"step {step}: of {len(sampled.seen)} groups none has signal: all rollouts of a group got the "
                f"same reward ({sampled.counts}). The tasks are too easy or too hard for this policy."
            )
        self.show({"stage": "learn", "step": step, "steps": self.recipe.stage.max_steps})
        async with self.turns.learners():
            with self._timed("learn"):
                groups = await self._with_advantages(step, sampled.groups)
                steps = await self._learn(step, groups)
            self.state.step, self.state.cursor, self.state.pending = step, sampled.cursor, sampled.pending
            weights = await self._collect_weights()
        await self._give_weights(weights)
        await self._commit_saved()
        row: MetricsRow = {"step": step, "version": self._version()}
        row |= rollout_metrics(sampled) | learning_metrics(steps, self._seconds["learn"], self.compute)
        stage = self.recipe.stage
        if step == stage.max_steps or step % stage.validate_every == 0:
            await self._validate(row)
        ends = step == stage.max_steps or self.state.stale >= stage.patience
        saves = ends or step % stage.save_every == 0 or self.state.best_step == step
        if saves:
            await self._save()
        if ends or (stage.export_every and step % stage.export_every == 0):
            await self._export()
        await self._log(row, saves)

    async def _with_advantages(self, step: int, groups: list[Group]) -> list[Group]:
        """Set the advantages of a batch by the recipe's method."""
        recipe = self.recipe
        method = METHODS.find(recipe.method.name)
        likelihoods: list[list[list[float]]] = [[] for _ in groups]
        if method.memories != "none":
            if not all(one.probes for group in groups for one in group.trajectories):
                raise TrainingError(
                    f"step {step}: the rollouts were recorded for a method other than {recipe.method.name}"
                )
            likelihoods = await self._on_ranks(lambda: self.learner.likelihoods(groups))
        pairs = zip(groups, likelihoods, strict=True)
        return [method.assign(group, recipe.loss.baseline, recipe.method.weight, scores) for group, scores in pairs]

    async def _export(self) -> None:
        """Keep the current weights with the run, in Hugging Face format, and LoRA's factors beside them."""
        step = self.state.step
        with self._timed("save"):
            async with self.turns.learners():
                await self._on_ranks(lambda: self.learner.export(self.store, *self.checkpoints.exported(step, "model")))
                if self.recipe.learner.lora_rank:
                    await self._on_ranks(
                        lambda: self.learner.export_adapter(self.store, *self.checkpoints.exported(step, "adapter"))
                    )

    async def _learn(self, step: int, groups: list[Group]) -> list[dict[str, float]]:
        try:
            steps = await self._on_ranks(lambda: self.learner.learn(groups))
        except RanksLost:
            raise
        except TrainingError as error:
            await self._commit_saved()
            names = ", ".join(group.sample_id for group in groups[:8])
            raise TrainingError(
                f"step {step}: {error} Tasks: {names}. The checkpoint of step {self._saved} stays."
            ) from error
        self._unsaved[step], self._losses = groups, 0
        return steps

    async def _on_ranks(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call the learner; if a rank is lost, replace all and call again."""
        while True:
            try:
                return await call()
            except RankLost as error:
                await self._recover(error)

    async def _recover(self, error: RankLost) -> None:
        """Bring new ranks to where the lost ones were: the last whole checkpoint, and the batches since.

        Raises:
            RanksLost: ranks were lost too often.
        """
        self._losses += 1
        self.state.counts["ranks_lost"] = self.state.counts.get("ranks_lost", 0.0) + 1
        _log.warning("after step %d: %s; the learner starts again", self.state.step, error)
        if self._losses > self.recipe.learner.restarts:
            raise RanksLost(
                f"after step {self.state.step}: {error}, {self._losses} times in a row. Run the same command again: it "
                f"resumes from step {self._saved}."
            ) from error
        try:
            await self.learner.restart()
            if self._saved:
                await self.learner.load(self.store, *self.checkpoints.checkpoint(self._saved))
            for step in sorted(self._unsaved):
                await self.learner.learn(self._unsaved[step])
        except RankLost as again:
            await self._recover(again)

    async def _collect_weights(self) -> Weights | None:
        if self.pool is None:
            return None
        with self._timed("weight_sync"):
            return await self._on_ranks(self._weights.collect)

    async def _give_weights(self, weights: Weights | None) -> None:
        if self.pool is None:
            return
        with self._timed("weight_sync"):
            await self._on_ranks(lambda: self._weights.give(weights))

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
                place = self.checkpoints.best(row["step"])
                async with self.turns.learners():
                    await self._on_ranks(lambda: self.learner.export(self.store, *place))
        else:
            state.stale += 1
        if row["step"] == 0:
            self.checkpoints.note(row)
            self.monitors.write(row)

    async def _save(self) -> None:
        """Begin a checkpoint, which is written while training goes on."""
        with self._timed("save"):
            place = self.checkpoints.checkpoint(self.state.step)
            async with self.turns.learners():
                await self._on_ranks(lambda: self.learner.save(self.store, *place))

    async def _commit_saved(self) -> None:
        """Wait until the checkpoint that is being written is whole, and let the state point at it."""
        state, self._uploading = self._uploading, None
        if state is None:
            return
        place = self.checkpoints.checkpoint(state.step)
        with self._timed("save"):
            try:
                await self.learner.saved(self.store, *place)
            except RankLost as error:
                await self._recover(error)
                if state.step < self.state.step:
                    return  # the next one will do
                await self.learner.save(self.store, *place)
                await self.learner.saved(self.store, *place)
        self.checkpoints.commit(state)
        self._saved = state.step
        self._unsaved = {step: groups for step, groups in self._unsaved.items() if step > state.step}

    async def _log(self, row: MetricsRow, saves: bool) -> None:
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
        if saves:
            self._uploading = deepcopy(self.state)
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
