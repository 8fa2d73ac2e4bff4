"""What a training run keeps, and that a killed one finds a whole checkpoint."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.cluster.rollout_pool import RolloutPool
from infra.store.location import Store
from memagent.errors import TrainingError
from memagent.rl.config import LearnerRecipe, Recipe, RolloutRecipe, StageRecipe
from memagent.rl.trajectory import Group
from pipelines.training.checkpoints import Checkpoints, State
from pipelines.training.monitors import Compute, learning_metrics, rollout_metrics, shares, validation_metrics
from pipelines.training.rollouts import EngineSampler, RecordedSampler, Sampled
from tests.support.rl_samples import group


@pytest.fixture
def journal(tmp_path):
    return Checkpoints(Store(str(tmp_path)), "train-x")


def put(journal, place):
    store = journal.store
    for name in ("weights.safetensors", "learner.json"):
        store.write_bytes(b"x", *place, name)


def test_a_new_run_has_no_state(journal):
    assert journal.read() is None


def test_older_checkpoints_go_once_a_newer_one_is_committed(journal, tmp_path):
    for step in (1, 2):
        put(journal, journal.checkpoint(step))
        put(journal, journal.best(step))
        journal.commit(State(step=step, best_step=1))
    kept = {path.parent.name for path in (tmp_path / "training").rglob("*.safetensors")}
    assert kept == {"step-000002", "step-000001"}
    assert (tmp_path / "training/train-x/checkpoints/step-000002/weights.safetensors").is_file()
    assert not (tmp_path / "training/train-x/checkpoints/step-000001/weights.safetensors").is_file()
    assert (tmp_path / "training/train-x/best/step-000001/weights.safetensors").is_file()
    assert not (tmp_path / "training/train-x/best/step-000002/weights.safetensors").is_file()


def test_steps_after_the_checkpoint_are_not_counted_twice(journal, tmp_path):
    for step in range(4):
        journal.note({"step": step, "reward": step})
        if step == 2:
            journal.commit(State(step=2, cursor=9))
    again = Checkpoints(Store(str(tmp_path)), "train-x")
    state = again.read()
    assert (state.step, state.cursor) == (2, 9)
    assert [row["step"] for row in again.metrics] == [0, 1, 2]
    again.note({"step": 3, "reward": 5})
    assert [row["reward"] for row in Checkpoints(Store(str(tmp_path)), "train-x").metrics] == []
    assert again.read().step == 2 and [row["reward"] for row in again.metrics] == [0, 1, 2]


def test_a_broken_state_is_said(journal, tmp_path):
    journal.commit(State())
    (tmp_path / "training/train-x/state.json").write_text("{")
    with pytest.raises(TrainingError, match="cannot be read"):
        journal.read()


def test_recorded_rollouts_come_back(journal):
    groups = [group([1, 0], 1), group([0, 1], 2)]
    journal.record(3, groups, 17)
    found = asyncio.run(RecordedSampler(journal).batch(3))
    assert found.groups == groups and found.cursor == 17
    with pytest.raises(TrainingError, match="no recorded rollouts of step 4"):
        journal.recorded(4)


class Dataset:
    """Task i has the number i."""

    def task(self, number):
        return type("Task", (), {"sample_id": str(number), "sample": type("S", (), {"task": f"t{number % 2}"})})()


class Pool:
    """Groups that teach, are all right, all wrong, or fail, by a list; done in any order."""

    def __init__(self, kinds, seed=0):
        self.kinds, self.rng, self.running, self.most = kinds, random.Random(seed), 0, 0

    async def group(self, task, size):
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(self.rng.randint(0, 5)):
            await asyncio.sleep(0)
        self.running -= 1
        number = int(task.sample_id)
        kind = self.kinds[number % len(self.kinds)]
        if kind == "fails":
            raise TrainingError("lost")
        rewards = {"teaches": [1, 0], "right": [1, 1], "wrong": [0, 0]}[kind]
        made = group(rewards, number)
        return Group(task.sample_id, made.trajectories)


def sampler(kinds, journal, prompts=4, **rollout):
    recipe = Recipe(
        rollout=RolloutRecipe(prompts=prompts, group_size=2, **rollout), learner=LearnerRecipe(minibatch_prompts=1)
    )
    pool = Pool(kinds)
    return EngineSampler(pool, Dataset(), recipe, journal, lambda _: None)


@given(st.lists(st.sampled_from(["teaches", "right", "wrong"]), min_size=1, max_size=12), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_batch_is_refilled_and_counts_everything(kinds, prompts):
    made = sampler(kinds, None, prompts)
    made.cursor = 100
    batch = asyncio.run(made.batch(1))
    assert len(batch.groups) <= prompts and len(batch.seen) == batch.cursor - 100 <= 10 * prompts
    assert len(batch.groups) == prompts or len(batch.seen) == 10 * prompts
    assert all(one.has_signal for one in batch.groups)
    assert [int(one.sample_id) for one in batch.groups] == sorted(int(one.sample_id) for one in batch.groups)
    assert len(batch.groups) + batch.counts["all_right"] + batch.counts["all_wrong"] == len(batch.seen)
    assert made.pool.running == 0


def test_without_dynamic_sampling_every_group_is_taken():
    batch = asyncio.run(sampler(["right", "wrong"], None, dynamic_sampling=False).batch(1))
    assert len(batch.groups) == 4 == batch.cursor


def test_groups_that_fail_are_replaced_and_too_many_end_the_step():
    batch = asyncio.run(sampler(["teaches", "fails"], None).batch(1))
    assert len(batch.groups) == 4 and batch.counts["failed"] >= 3
    with pytest.raises(TrainingError, match="groups failed in one step"):
        asyncio.run(sampler(["fails"], None).batch(1))


class Held(Pool):
    """Groups end when they are let go."""

    def __init__(self):
        super().__init__(["teaches"])
        self.gates, self.cancelled = {}, []

    async def group(self, task, size):
        number = int(task.sample_id)
        self.gates[number] = asyncio.Event()
        try:
            await self.gates[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            del self.gates[number]
            raise
        return Group(task.sample_id, group([1, 0], number).trajectories)

    async def let_go(self, *numbers):
        for _ in range(1000):
            if self.gates.keys() >= set(numbers):
                break
            await asyncio.sleep(0)
        for number in numbers:
            self.gates[number].set()


async def held_batch(made, step, *numbers):
    """Return the batch of a step in which these groups end."""
    batch = asyncio.ensure_future(made.batch(step))
    for _ in range(10):
        await asyncio.sleep(0)  # what is too old is cancelled, and drawn again
    await made.pool.let_go(*numbers)
    return await batch


async def test_a_straggler_does_not_hold_a_batch_up_and_is_sampled_again_for_the_next():
    made = sampler(["teaches"], None, oversampling=1.5)
    made.pool = Held()
    first = await held_batch(made, 1, 1, 2, 3, 5)
    assert [one.sample_id for one in first.groups] == ["1", "2", "3", "5"]
    # 6 groups for the 4; each that ended made room for fewer
    assert sorted(made.pool.cancelled) == sorted(first.pending) == [0, 4]
    second = await held_batch(made, 2, 0, 4, 6, 7)
    assert [one.sample_id for one in second.groups] == ["0", "4", "6", "7"], "tasks that were drawn come first"
    await made.close()


async def test_off_policy_groups_go_on_while_the_learner_works_until_they_are_too_old():
    made = sampler(["teaches"], None, oversampling=1.5, max_off_policy_steps=1)
    made.pool = Held()
    first = await held_batch(made, 1, 0, 1, 2, 3)
    assert first.pending == [4, 5, 6, 7, 8, 9] and not made.pool.cancelled, "begun with the weights of step 0"
    second = await held_batch(made, 2, 4, 5, 6, 8)
    assert [one.sample_id for one in second.groups] == ["4", "5", "6", "8"], "7 and 9 wait, one step behind"
    third = await held_batch(made, 3, 7, 10, 11, 12)
    assert made.pool.cancelled == [7, 9] and third.counts["stale"] == 2
    assert [one.sample_id for one in third.groups] == ["7", "10", "11", "12"], "7 was sampled again"
    await made.close()
    assert sorted(made.pool.cancelled[2:]) == third.pending


async def test_a_resumed_run_draws_first_what_was_in_no_batch():
    made = sampler(["teaches"], None)
    made.cursor, made.pending = 9, [3, 5]
    batch = await made.batch(1)
    assert [one.sample_id for one in batch.groups] == ["3", "5", "9", "10"] and batch.cursor == 11


def test_rollouts_are_kept_where_wanted(journal):
    made = sampler(["teaches"], journal)
    made.recipe = made.recipe.model_copy(update={"stage": StageRecipe(record=True)})
    batch = asyncio.run(made.batch(5))
    found, cursor = journal.recorded(5)
    assert [one.trajectories for one in found] == [one.trajectories for one in batch.groups] and cursor == 4


def test_metrics_count_what_was_sampled_and_learnt():
    groups = [group([1, 0], 1), group([1, 1], 2)]
    sampled = Sampled(groups[:1], 2, [("a", groups[0]), ("b", groups[1])], {"failed": 0}, 2.0)
    row = rollout_metrics(sampled)
    every = [one for each in groups for one in each.trajectories]
    assert row["reward"] == 0.75 and row["kept_share"] == 0.5 and row["tasks"] == {"a": 0.5, "b": 1.0}
    assert row["trajectories"] == 4 and row["conversations"] == sum(len(one.conversations) for one in every)
    assert row["rollout_tokens"] == sum(c.tokens for one in every for c in one.conversations)
    assert row["rollout_tokens_per_second"] == row["rollout_tokens"] / 2.0
    steps = [
        {"tokens": 10.0, "entropy": 5.0, "trained_tokens": 40.0, "gradient_norm": 1.0, "lr": 0.1},
        {"tokens": 30.0, "entropy": 15.0, "trained_tokens": 60.0, "gradient_norm": 3.0, "lr": 0.2},
    ]
    learnt = learning_metrics(steps, 2.0)
    assert learnt["entropy"] == 0.5 and learnt["gradient_norm"] == 2.0 and learnt["lr"] == 0.2
    assert learnt["trained_tokens_per_second"] == 50.0
    found = validation_metrics([("a", groups[0]), ("b", groups[1])])
    assert found["n"] == 2 and found["strict"] == 1.0 and found["failed"] == 0


def test_a_teachers_readings_have_a_loss_and_nothing_that_was_sampled_or_paid():
    taught = group([1], 1)
    sampled = Sampled([taught], 1, [("a", taught)], {"left_out": 2.0}, 2.0, taught=True)
    steps = [{"tokens": 10.0, "entropy": 5.0, "nll": 7.0, "loss": -10.0, "gradient_norm": 1.0, "lr": 0.1}]
    row = rollout_metrics(sampled) | learning_metrics(steps, 2.0, taught=True)
    assert row["nll"] == 0.7 and row["entropy"] == 0.5 and row["trajectories"] == 1 and row["left_out"] == 2.0
    made_up = {"reward", "strict", "lenient", "kept_share", "tasks", "rollout_tokens", "rollout_tokens_per_second"}
    made_up |= {"loss", "ratio", "logprob_diff", "clipped_low", "kl"}
    assert not made_up & row.keys()


def test_a_validation_task_that_cannot_be_read_counts_as_wrong():
    class Pool(RolloutPool):
        def __init__(self, unreadable):
            self.unreadable = unreadable

        async def group(self, task, size, *, greedy):
            if task.sample_id in self.unreadable:
                raise TrainingError(f"task {task.sample_id} failed 3 times")
            return group([1.0], 0)

    async def validate(unreadable):
        tasks = [SimpleNamespace(sample_id=name) for name in "abc"]
        return [done async for done in Pool(unreadable).greedy(tasks)]

    metrics = validation_metrics([("task", done) for done in asyncio.run(validate("b"))])
    assert (metrics["n"], metrics["failed"]) == (3, 1)
    assert metrics["reward"] == pytest.approx(2 / 3) and metrics["tasks"] == {"task": pytest.approx(2 / 3)}
    with pytest.raises(TrainingError, match="failed 3 times"):
        asyncio.run(validate("abc"))


def test_shares_of_a_step_add_up():
    found = shares({"rollout": 6.0, "learn": 3.0, "weight_sync": 0.5, "validate": 0.0, "save": 0.5})
    assert found["engines_wait"] == 0.4
    assert sum(value for name, value in found.items() if name != "engines_wait") == pytest.approx(1.0)


def test_the_utilisation_counts_what_was_computed():
    steps = [{"tokens": 4.0, "trained_tokens": 90.0, "computed_tokens": 30.0, "gradient_norm": 1.0, "lr": 1e-3}] * 2
    row = learning_metrics(steps, 2.0, Compute(weights=10**12, ranks=2, peak_tflops=360.0))
    assert row["computed_tokens"] == 60 and row["trained_tokens"] == 180
    assert row["tflops"] == pytest.approx(6 * 60 / 2) and row["mfu"] == pytest.approx(180 / 720)
    assert "mfu" not in learning_metrics(steps, 2.0, Compute(10**12, 2))
    assert "tflops" not in learning_metrics(steps, 0.0, Compute(10**12, 2))
