"""Run a training stage, new or resumed, to a candidate policy; or look at two of its tasks before it begins."""

import asyncio
import json
import logging
import tempfile
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from infra.cluster.placement import GpuSlots, accelerators
from infra.cluster.rollout_pool import RolloutPool
from infra.cluster.session import ray_session
from infra.learner.group import LearnerGroup, check_room
from infra.store.claims import used
from infra.store.location import Corpus, Store
from infra.store.policies import Provenance, publish
from infra.store.qa import TrainingSummary
from infra.store.runs import new_run_id, write_run
from infra.store.schemas import now
from memagent.errors import ConfigError, UsageError
from memagent.reading.conversations import ReadingSpec
from memagent.reading.scope import SCOPE_FILE, load_scope
from memagent.records import Json, Progress
from memagent.rl.dataset import DatasetSplits, Task, dataset_name
from memagent.rl.rollout import roll_out
from memagent.rl.teacher import teach
from memagent.rl.trajectory import Trajectory
from pipelines.training.checkpoints import HOME, Checkpoints, State
from pipelines.training.data import audited, splits
from pipelines.training.loop import Loop, Turns
from pipelines.training.monitors import Compute, Monitors
from pipelines.training.plan import check_memory, known_gpus, load_shape
from pipelines.training.records import code_version, find_training, summary_of
from pipelines.training.rollouts import EngineSampler, RecordedSampler, Sampler, TeacherSampler
from pipelines.training.settings import TrainingRun, claim


def train(run: TrainingRun, *, replay: str | None = None, show: Progress | None = None) -> TrainingSummary:
    """Train one stage and publish its best weights as a candidate; return the run's summary.

    An interrupted run resumes from its last checkpoint; a finished run is not repeated. With `replay`, a run's recorded
    rollouts are trained on: no engine is started, nothing is validated, and the last weights are the candidate.

    Raises:
        UsageError: the data are missing, have only one answer, or their audit fails; the run's name is another's; or
            fewer steps were recorded than are to be replayed.
        ConfigError: Ray has not enough resources.
        TrainingError: a step cannot be taken; the last checkpoint stays.
    """
    store, show = Store(run.config.store), show or (lambda _: None)
    if run.recipe.rollout.teacher and run.files.validation:
        _log.warning("the teacher's training validates nothing: %s is used for the audit alone", run.files.validation)
    if replay is not None:
        run = replace(run, replay=_recorded(store, run, replay))
    claim(store, run)
    # Texts that are forgotten while they are learnt from would be in the policy without anybody saying so. Each
    # start has a claim of its own: two of one run would delete each other's checkpoints.
    home, claimant = Corpus(store, "_training"), f"{run.run_id}-{new_run_id()}"
    with used(home, claimant, [run.run_id], wait=run.config.wait, show=show):
        started = now()
        checkpoints = Checkpoints(store, run.run_id)
        state = checkpoints.read() or State()
        stage = run.recipe.stage
        if not (state.done and (state.step >= stage.max_steps or state.stale >= stage.patience)):
            data = splits(run) if run.replay else audited(run)  # before anything is started
            state.counts["rows_gone"] = data.gone
            with ray_session(run.config.ray):
                state = asyncio.run(_train(run, data, checkpoints, state, show))
        summary = summary_of(run, checkpoints, state, _publish(run, store, checkpoints, state))
        write_run(store, summary, started, summary["config"], replace=True)
        return summary


def _recorded(store: Store, run: TrainingRun, replay: str) -> str:
    """Return the id of a run that may be named by its beginning, if it has the rollouts of all steps."""
    found, steps = find_training(store, replay), run.recipe.stage.max_steps
    recorded = len(store.list(HOME, found, "rollouts", suffix=".jsonl.gz"))
    if run.recipe.rollout.teacher:
        raise UsageError("rollout.teacher learns from readings of its own: leave out --replay")
    if recorded < steps:
        hint = f"--set stage.max_steps={recorded}" if recorded else "train it with --set stage.record=true"
        raise UsageError(f"{found} has recorded rollouts of {recorded} steps, and {steps} are to be replayed: {hint}")
    return found


async def _train(
    run: TrainingRun, data: DatasetSplits, checkpoints: Checkpoints, state: State, show: Progress
) -> State:
    recipe = run.recipe
    alone = recipe.rollout.teacher or bool(run.replay)
    check_room(recipe, None if alone else run.config.pool)
    check_memory(recipe, run.model, accelerators())
    slots = None if alone else _slots(run)
    pool = None if alone else _rollout_pool(run, slots)
    sampler: Sampler
    if pool is not None:
        sampler = EngineSampler(pool, data.train, recipe, checkpoints, show, state.cursor, list(state.pending))
    elif run.replay:
        sampler = RecordedSampler(Checkpoints(checkpoints.store, run.replay))
    else:
        sampler = TeacherSampler(data.train, replace(run.reader.scheme, scope=None), recipe, state.cursor)
    learner = LearnerGroup(run.reader, recipe, slots)
    turns = Turns(learner, pool, shared=slots is not None)
    monitors = Monitors(checkpoints.store, checkpoints.run_id, recipe.stage)
    show({"stage": "starting the engines and the learner", "step": state.step, "steps": recipe.stage.max_steps})
    try:
        await turns.start()
        loop = Loop(
            recipe,
            checkpoints,
            learner,
            sampler,
            pool,
            turns,
            validation=data.validation,
            monitors=monitors,
            show=show,
            compute=_compute(run),
            state=state,
        )
        return await loop.run()
    finally:
        monitors.close()
        await learner.stop()
        if pool is not None:
            await pool.stop()
        if slots is not None:
            slots.end()


def _compute(run: TrainingRun) -> Compute | None:
    try:
        shape = load_shape(str(run.model))
    except ConfigError:
        return None
    gpus = known_gpus(accelerators()) if run.recipe.learner.gpus else []
    weights = shape.layers * shape.layer + shape.embedding
    return Compute(weights, run.recipe.learner.world_size, gpus[0].tflops if len(gpus) == 1 else 0.0)


def _slots(run: TrainingRun) -> GpuSlots | None:
    """Return the GPUs that learner and engines share; None if they have their own."""
    learner, pool = run.recipe.learner, run.config.pool
    if learner.placement != "shared" or not learner.gpus:
        return None
    count = max(learner.world_size, pool.max_size * max(1, round(pool.gpus)))
    return GpuSlots(count, learner.cpus + pool.cpus)


def _rollout_pool(run: TrainingRun, slots: GpuSlots | None) -> RolloutPool:
    reader, learner = copy(run.reader), run.recipe.learner
    needed: dict[str, bool | int] = {"sleep_mode": True} if slots is not None else {}
    needed |= {"lora_rank": learner.lora_rank} if learner.weight_sync == "adapters" else {}
    reader.engine_config = reader.engine_config.model_copy(update=needed)
    return RolloutPool(reader, run.recipe, run.config.pool, slots)


_log = logging.getLogger("memagent.training")
_SAMPLING = {"temperature", "top_p", "seed"}
"""Reading keys that belong to a run, not to a model."""


def _write_reading(path: Path, run: TrainingRun) -> None:
    """Have the candidate read by default as it was trained to; sampling is left out."""
    if path.is_file():
        defaults = json.loads(path.read_text(encoding="utf-8"))
        given = {key: value for key, value in run.config.reading.items() if key not in _SAMPLING}
        if given.items() <= defaults.items():
            return
        text = json.dumps(defaults | given, indent=2)
    else:  # a model that was not made for reading
        text = run.reader.reading.model_dump_json(indent=2, exclude=_SAMPLING)
    path.write_text(text, encoding="utf-8")


_SAME = {"needles", "contracts"}
"""Data sets with the questions that nano declares."""


def _write_scope(path: Path, run: TrainingRun) -> None:
    """Declare what the candidate was trained to answer, where no other question was in its training."""
    if (scope := load_scope(path.parent)) is None:
        return
    if _SAME.issuperset(map(dataset_name, run.data)):
        path.write_text(scope.unmeasured().model_dump_json(), encoding="utf-8")
    else:
        path.unlink()
        _log.warning("answers of the new version are not marked: it was trained on other questions than it declares")


def _publish(run: TrainingRun, store: Store, checkpoints: Checkpoints, state: State) -> str:
    """Publish the best weights; return the policy id, or empty if nothing was better than the initial weights."""
    if not state.best_step:
        return ""
    best = next((row for row in checkpoints.metrics if row["step"] == state.best_step), {})
    with tempfile.TemporaryDirectory() as local:
        folder = Path(local)
        parts = checkpoints.best(state.best_step)
        for path in store.list(*parts, suffix=""):
            name = path.rsplit("/", 1)[-1]
            store.get_file(folder / name, *parts, name)
        _write_reading(folder / "reading.json", run)
        _write_scope(folder / SCOPE_FILE, run)
        provenance = Provenance(
            parent=run.reader.policy.policy_id,
            run_id=checkpoints.run_id,
            data_version=run.data_version,
            config=run.recipe.model_dump(),
            metrics=best,
            commit=code_version(),
        )
        return publish(store, folder, run.reader.policy.name, provenance, parent_folder=run.model)


_SHOWN = 400
"""Characters of a response."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A task, and a reading of it; None: the teacher cannot read it."""

    task: Task
    read: Trajectory | None

    def as_dict(self, spec: ReadingSpec) -> Json:
        """Return it as plain data."""
        read, decode = self.read, spec.prompts.tokenizer.decode
        turns = [
            {"kind": said.kind, "response": decode(said.response_ids, special=True), "cut": said.cut}
            for said in (read.conversations if read else ())
        ]
        shown = {"task": self.task.sample_id, "question": self.task.question, "gold": list(self.task.gold)}
        return {**shown, "answer": read and read.answer, "reward": read and read.reward.total, "turns": turns}

    def lines(self, spec: ReadingSpec) -> Iterator[str]:
        """Yield what to show of it."""
        gold = ", ".join(self.task.gold) if any(self.task.gold) else spec.prompts.template.not_found
        yield f"{self.task.sample_id}: {self.task.question}"
        yield f"  right is: {gold}"
        if self.read is None:
            yield "  the teacher cannot read it: its evidence is not known, or does not fit the memory"
            return
        for number, said in enumerate(self.read.conversations, 1):
            text = " ".join(spec.prompts.tokenizer.decode(said.response_ids, special=True).split())
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
            yield f"  {number} {said.kind}, {len(said.prompt_ids)} tokens: {shown}" + (" [cut off]" if said.cut else "")
        parts = ", ".join(f"{name} {value:g}" for name, value in self.read.reward.parts.items())
        yield f"  reward {self.read.reward.total:g} ({parts})"


def preview(run: TrainingRun, count: int = 2) -> list[Preview]:
    """Audit a run's tasks, and read the first ones on an engine of this machine, or as the teacher does.

    Raises:
        UsageError: as `pipelines.training.data.audited`.
        EngineError: the engine fails.
    """
    tasks = [audited(run).train.task(number) for number in range(count)]
    return asyncio.run(_read(run, tasks))


async def _read(run: TrainingRun, tasks: list[Task]) -> list[Preview]:
    # A policy learns from what it says itself, and not from what its scope makes of it.
    recipe, spec = run.recipe, replace(run.reader.scheme, scope=None)
    if recipe.rollout.teacher:
        return [Preview(task, await teach(task, spec)) for task in tasks]
    sampling = {"temperature": recipe.rollout.temperature, "top_p": recipe.rollout.top_p}
    spec = replace(spec, config=spec.config.model_copy(update=sampling))
    engine = run.reader.make_local_engine()
    await engine.start()
    try:
        return [Preview(task, await roll_out(task, 0, spec, engine.generate, recipe.reward)) for task in tasks]
    finally:
        await engine.stop()
