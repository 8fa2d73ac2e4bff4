"""The training loop: sample, learn, sync the weights, validate, save."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from infra.cluster.rollout_pool import RolloutPool, RolloutWorker, Weights
from infra.cluster.session import raised
from infra.learner.group import LearnerGroup, RankActor, RankLost
from memagent.errors import TrainingError
from memagent.records import Progress, ProgressCounts
from memagent.rl.config import Recipe
from memagent.rl.dataset import Dataset
from memagent.rl.trajectory import Group, with_advantages
from pipelines.training.checkpoints import Checkpoints, MetricsRow, State
from pipelines.training.monitors import Compute, Monitors, learning_metrics, rollout_metrics, shares, validation_metrics
from pipelines.training.rollouts import Sampled, Sampler


class WeightSync:
    """Copies the learner's current weights to the engines, if there are any: as files, or by broadcast."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool | None, kind: str, version: Callable[[], str]) -> None:
        """`version` returns the name of the current weights; `kind` is `LearnerRecipe.weight_sync`."""
        self._learner, self._pool = learner, pool
        self._version = version
        self._broadcasts = kind == "broadcast"
        self._lock = asyncio.Lock()
        if pool is not None and self._broadcasts:
            pool.renew = self._broadcast

    async def collect(self) -> Weights | None:
        """Return the learner's weights as files, for `give`; None if they are broadcast."""
        if self._pool is None or self._broadcasts:
            return None
        files = await self._learner.call(RankActor.weights)
        return Weights(self._version(), files[0])

    async def give(self, weights: Weights | None) -> None:
        """Update all engines; readings in progress go on, with these weights from the next conversation at the latest.

        Raises:
            TrainingError: an engine was not updated.
        """
        if self._pool is not None and weights is not None:
            await self._pool.update(weights)
        elif self._pool is not None:
            await self._broadcast(*self._pool.places)

    async def _broadcast(self, *places: int) -> None:
        from ray.exceptions import RayError

        assert self._pool is not None
        async with self._lock:
            meeting = (await self._learner.call(RankActor.meeting, self._pool.processes(places)))[0]
            version = self._version()  # a learner step in progress has ended by now
            try:
                sending = self._learner.call(RankActor.send, meeting)
                await asyncio.gather(sending, self._pool.receive(meeting, version, places))
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

    async def start(self) -> None:
        """Start both. An engine takes all the memory that it finds free, so a learner that shares it starts first."""
        if self._shared and self._pool is not None:
            await self._learner.start()
            await self._learner.call(RankActor.offload)
            await self._pool.start()
            return
        await asyncio.gather(self._learner.start(), *([self._pool.start()] if self._pool else []))

    @asynccontextmanager
    async def learners(self) -> AsyncIterator[None]:
        """It is the learner's turn: the engines sleep."""
        if not self._shared or self._pool is None:
            yield
            return
        await self._pool.call(RolloutWorker.sleep)
        await self._learner.call(RankActor.reload)
        try:
            yield
        finally:
            await self._learner.call(RankActor.offload)
            await self._pool.call(RolloutWorker.wake)


P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("memagent.training")

_PHASES = ("rollout", "learn", "weight_sync", "validate", "save")


def _said(sampled: Sampled) -> str:
    """Return what some rollouts answered, so that one sees how they fail."""
    shown = []
    for _, group in sampled.seen[:3]:
        answers = dict.fromkeys(one.answer.strip() or "not found" for one in group.trajectories)
        shown.append(f"{group.sample_id}: {', '.join(repr(answer[:60]) for answer in list(answers)[:3])}")
    return f"Answers: {'; '.join(shown)}" if shown else ""


class RanksLost(TrainingError):
    """Ranks of the learner keep getting lost."""


@dataclass
class Loop:
    """One run, from its last checkpoint to its end."""

    recipe: Recipe
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
                    await self._load()
                    weights = await self._on_ranks(self._weights.collect)
                await self._on_ranks(self._weights.give, weights)
            else:
                await self._validate({"step": 0})  # a candidate must be better than the initial weights
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
            await self._write(RankActor.export_to, self.checkpoints.best(self.state.step))
        stale = self.state.stale >= stage.patience
        steps = f"{self.state.step} step{'s' if self.state.step != 1 else ''}"
        self.state.done = f"{steps}: no better for {self.state.stale} validations" if stale else steps
        self.checkpoints.commit(self.state)
        return self.state

    async def _step(self) -> None:
        step, stage = self.state.step + 1, self.recipe.stage
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        self._show("reading", step)
        with self._timed("rollout"):
            sampled = await self.sampler.batch(step)
        if not sampled.groups:
            raise TrainingError(
                f"step {step}: of {len(sampled.seen)} groups none has signal: all rollouts of a group got the "
                f"same reward ({sampled.counts}). The tasks are too easy or too hard for this policy. {_said(sampled)}"
            )
        self._show("learning", step)
        async with self.turns.learners():
            with self._timed("learn"):
                groups = sampled.groups
                if not self.recipe.rollout.teacher:
                    groups = [with_advantages(group, self.recipe.loss.baseline) for group in groups]
                try:
                    steps = await self._on_ranks(self.learner.learn, groups)
                except RanksLost:
                    raise
                except TrainingError as error:
                    await self._commit_saved()
                    names = ", ".join(group.sample_id for group in groups[:8])
                    raise TrainingError(
                        f"step {step}: {error} Tasks: {names}. The checkpoint of step {self._saved} stays."
                    ) from error
            if step == 1 and self.pool is not None:
                self._check_agreement(steps)
            self._unsaved[step], self._losses = groups, 0
            self.state.step, self.state.cursor, self.state.pending = step, sampled.cursor, sampled.pending
            with self._timed("weight_sync"):
                weights = await self._on_ranks(self._weights.collect)
        with self._timed("weight_sync"):
            await self._on_ranks(self._weights.give, weights)
        await self._commit_saved()
        row: MetricsRow = {"step": step, "version": self._version()}
        row |= rollout_metrics(sampled)
        row |= learning_metrics(steps, self._seconds["learn"], self.compute, taught=sampled.taught)
        if step == stage.max_steps or step % stage.validate_every == 0:
            await self._validate(row)
        ends = step == stage.max_steps or self.state.stale >= stage.patience
        saves = ends or step % stage.save_every == 0 or self.state.best_step == step
        if saves:  # it is written while training goes on
            await self._write(RankActor.save, self.checkpoints.checkpoint(step))
        if ends or (stage.export_every and step % stage.export_every == 0):
            await self._write(RankActor.export_to, self.checkpoints.exported(step, "model"))
            if self.recipe.learner.lora_rank:
                await self._write(RankActor.export_to, self.checkpoints.exported(step, "adapter"), adapter=True)
        await self._log(row, saves)

    def _check_agreement(self, steps: list[dict[str, float]]) -> None:
        """Refuse to go on where learner and engines compute different things of the same weights."""
        most = self.recipe.loss.most_logprob_diff
        found = learning_metrics(steps, 0.0)["logprob_diff"]
        if most and found > most:
            raise TrainingError(
                f"step 1: the log-probabilities of the learner and of the engines differ by {found:.3f} nats a token, "
                f"more than loss.most_logprob_diff {most:g}: they do not compute the same model. Give "
                "engine.dtype and learner.dtype the same value"
            )

    async def _on_ranks(self, call: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> T:
        """Call the learner; if a rank is lost, replace all and call again."""
        while True:
            try:
                return await call(*args, **named)
            except RankLost as error:
                await self._recover(error)

    async def _write(self, method: Callable[..., None], place: tuple[str, ...], **named: bool) -> None:
        """Have the ranks write into the store, at one of the `Checkpoints`' paths."""
        url = self.checkpoints.store.url
        with self._timed("save"):
            async with self.turns.learners():
                await self._on_ranks(lambda: self.learner.call(method, url, *place, **named))

    async def _load(self) -> None:
        place = self.checkpoints.checkpoint(self._saved)
        await self.learner.call(RankActor.load_from, self.checkpoints.store.url, *place)

    async def _recover(self, error: RankLost) -> None:
        """Bring new ranks to where the lost ones were: the last whole checkpoint, and the batches since."""
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
                await self._load()
            for step in sorted(self._unsaved):
                await self.learner.learn(self._unsaved[step])
        except RankLost as again:
            await self._recover(again)

    async def _validate(self, row: MetricsRow) -> None:
        """Score the current weights; export the best so far as a model folder."""
        if self.pool is None:
            return
        self._show("validating", row["step"])
        with self._timed("validate"):
            drawn = map(self.validation.task, range(self.recipe.stage.validate_with))
            tasks = list({(task.question, *(one.text for one in task.segments)): task for task in drawn}.values())
            kinds = {task.sample_id: task.sample.task for task in tasks}
            groups = [(kinds[group.sample_id], group) async for group in self.pool.greedy(tasks)]
        row["validation"] = metrics = validation_metrics(groups)
        state = self.state
        if metrics["reward"] > state.best_score:
            state.best_score, state.best_step, state.stale = metrics["reward"], row["step"], 0
            await self._write(RankActor.export_to, self.checkpoints.best(row["step"]))
        else:
            state.stale += 1
        if row["step"] == 0:
            self._note(row)
            self._show("step", 0, row=row)

    async def _commit_saved(self) -> None:
        """Wait until the checkpoint that is being written is whole, and let the state point at it."""
        state, self._uploading = self._uploading, None
        if state is None:
            return
        with self._timed("save"):
            try:
                await self.learner.call(RankActor.saved)
            except RankLost as error:
                await self._recover(error)
                if state.step < self.state.step:
                    return  # the next one will do
                place = self.checkpoints.checkpoint(state.step)
                await self.learner.call(RankActor.save, self.checkpoints.store.url, *place)
                await self.learner.call(RankActor.saved)
        self.checkpoints.commit(state)
        self._saved = state.step
        self._unsaved = {step: groups for step, groups in self._unsaved.items() if step > state.step}

    async def _log(self, row: MetricsRow, saves: bool) -> None:
        row["seconds"] = {name: round(value, 3) for name, value in self._seconds.items()}
        row["share"] = shares(self._seconds)
        if self.pool is not None:
            row["engine_deaths"] = sum(await self.pool.call(RolloutWorker.deaths))
            row["workers_replaced"] = self.pool.replaced
        counts = self.state.counts
        for name in ("rollout_tokens", "trained_tokens", "trajectories"):
            counts[name] = counts.get(name, 0.0) + row.get(name, 0.0)
        counts["seconds"] = round(counts.get("seconds", 0.0) + sum(self._seconds.values()), 3)
        self._note(row)
        if saves:
            self._uploading = deepcopy(self.state)
        self._show("step", row["step"], row=row)

    def _note(self, row: MetricsRow) -> None:
        self.checkpoints.note(row)
        self.monitors.write(row)

    def _show(self, stage: str, step: int, row: MetricsRow | None = None) -> None:
        more = ProgressCounts() if row is None else ProgressCounts(row=row)
        self.show({"stage": stage, "step": step, "steps": self.recipe.stage.max_steps, **more})

    def _version(self) -> str:
        return f"{self.checkpoints.run_id}:{self.state.step}"

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - began
