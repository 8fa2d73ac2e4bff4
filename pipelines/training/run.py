"""A training stage from its start, or from where it was left, to a candidate policy."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.cluster.rollout_pool import RolloutPool
from infra.cluster.session import ray_session
from infra.learner.group import LearnerGroup, check_room
from infra.store import Store
from infra.tables.delta import now
from infra.tables.policies import Provenance, publish
from infra.tables.runs import TrainingSummary, write_run
from memagent.rl.rollout import RewardConfig
from pipelines.training.checkpoints import Checkpoints, State
from pipelines.training.data import splits
from pipelines.training.loop import Loop
from pipelines.training.monitors import Monitors
from pipelines.training.records import code_version, summary_of
from pipelines.training.rollouts import EngineSampler, RecordedSampler, Sampler
from pipelines.training.settings import Run

Show = Callable[[dict[str, Any]], None]


def train(run: Run, *, replay: str | None = None, show: Show | None = None) -> TrainingSummary:
    """Train one stage and publish its best weights as a candidate; return the run's summary.

    Called again after an interruption, it goes on from the last checkpoint; a run that has ended is not taken again.

    Args:
        run: what to train on what.
        replay: a run whose recorded rollouts are learnt from; no engine is started, nothing is validated, and the
            last weights are the candidate.
        show: is given what happens.

    Raises:
        UsageError: the data are missing, or of one answer only.
        ConfigError: Ray has no room for it.
        TrainingError: a step cannot be taken; the last checkpoint stays.
    """
    store, started = Store(run.config.store), now()
    journal = Checkpoints(store, run.run_id if replay is None else f"{run.run_id}-replay")
    state = journal.read() or State()
    stage = run.recipe.stage
    if not (state.done and (state.step >= stage.max_steps or state.stale >= stage.patience)):
        with ray_session(run.config.ray):
            state = asyncio.run(_train(run, store, journal, state, replay=replay, show=show or (lambda _: None)))
    policy_id = _publish(run, store, journal, state)
    summary = summary_of(run, journal, state, policy_id)
    write_run(store, summary, started, summary["config"], replace=True)
    return summary


async def _train(
    run: Run, store: Store, journal: Checkpoints, state: State, *, replay: str | None, show: Show
) -> State:
    recipe = run.recipe
    pool = None if replay else RolloutPool(*_rollouts(run))
    check_room(recipe, run.config.pool if pool else None)
    data = splits(run)
    state.counts["rows_gone"] = data.gone
    sampler: Sampler
    if pool is None:
        sampler = RecordedSampler(Checkpoints(store, str(replay)))
    else:
        sampler = EngineSampler(pool, data.train, recipe, journal=journal, show=show)
    learner = LearnerGroup(str(run.model), recipe)
    boards = Monitors(store, journal.run_id, recipe.stage.wandb)
    show({"stage": "start", "step": state.step, "steps": recipe.stage.max_steps})
    try:
        await asyncio.gather(learner.start(), *([pool.start()] if pool else []))
        loop = Loop(
            journal.run_id,
            recipe,
            store,
            journal=journal,
            learner=learner,
            sampler=sampler,
            pool=pool,
            validation=data.validation,
            boards=boards,
            show=show,
            state=state,
        )
        return await loop.run()
    finally:
        boards.close()
        await learner.stop()
        if pool is not None:
            await pool.stop()


def _rollouts(run: Run) -> tuple[Any, ...]:
    recipe = run.recipe
    pay = RewardConfig(recipe.reward.weights, recipe.reward.overlong_tokens)
    rollout = recipe.rollout
    return (run.reader, pay, rollout.temperature, rollout.top_p, run.config.pool)


def _publish(run: Run, store: Store, journal: Checkpoints, state: State) -> str:
    """Publish the best weights; empty where nothing was better than what training began with."""
    if not state.best_step:
        return ""
    best = next((row for row in journal.metrics if row["step"] == state.best_step), {})
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        parts = journal.best(state.best_step)
        for path in store.list(*parts, suffix=""):
            name = path.rsplit("/", 1)[-1]
            store.get_file(folder / name, *parts, name)
        provenance = Provenance(
            parent=run.reader.policy.policy_id,
            run_id=journal.run_id,
            data_version=run.data_version,
            config=run.recipe.model_dump(),
            metrics=best,
            commit=code_version(),
        )
        return publish(store, folder, run.reader.policy.name, provenance, parent_folder=run.model)
