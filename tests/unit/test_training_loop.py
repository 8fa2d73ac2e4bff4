"""The loop around a learner that loses ranks, and learner and engines that take turns on GPUs."""

import json
from types import SimpleNamespace

import pytest

from infra.learner.group import RankLost
from infra.store.location import Store
from memagent.errors import TrainingError
from memagent.rl.config import load_recipe
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.loop import Loop, Turns
from pipelines.training.rollouts import Sampled
from tests.support.rl_samples import group

SUMS = {"tokens": 1.0, "trained_tokens": 1.0, "gradient_norm": 1.0, "lr": 1e-3}


class Learner:
    """Its weights are the list of the batches that it has learnt; it loses a rank at chosen calls."""

    def __init__(self, **losses):
        self.losses = {method: list(calls) for method, calls in losses.items()}
        self.weights, self.writing, self.calls = [], None, []

    def _call(self, method):
        self.calls.append(method)
        if self.calls.count(method) in self.losses.get(method, ()):
            self.weights = ["lost"]
            raise RankLost("a rank is gone")

    async def learn(self, groups):
        self._call("learn")
        self.weights.append(groups[0].sample_id)
        return [SUMS]

    async def restart(self):
        self._call("restart")
        self.weights = []

    async def call(self, method, *args):
        return [getattr(self, method.__name__)(*args)]

    def load_from(self, url, *parts):
        self.weights = json.loads(Store(url).read_bytes(*parts, "weights.json"))

    def save(self, *place):
        self._call("save")
        self.writing = list(self.weights), place

    def saved(self):
        self._call("saved")
        weights, (url, *parts) = self.writing
        Store(url).write_bytes(json.dumps(weights).encode(), *parts, "weights.json")

    def export_to(self, url, *parts):
        self._call("export_to")
        Store(url).write_bytes(json.dumps(self.weights).encode(), *parts, "weights.json")


class Sampler:
    """A group a step, named after it."""

    async def batch(self, step):
        made = group([1, 0], step, f"batch-{step}")
        return Sampled([made], step, [("t", made)])

    async def close(self):
        pass


class Monitors:
    """Keeps nothing."""

    def write(self, row):
        pass


def loop(tmp_path, learner, *sets):
    recipe = load_recipe("smoke", ["stage.max_steps=6", "stage.save_every=2", *sets])
    checkpoints = Checkpoints(Store(str(tmp_path)), "train-x")
    parts = {"validation": None, "monitors": Monitors(), "show": lambda _: None, "state": checkpoints.read()}
    if parts["state"] is None:
        del parts["state"]
    turns = Turns(learner, None, shared=False)
    return Loop(recipe, checkpoints, learner, Sampler(), pool=None, turns=turns, **parts)


LOSSES = [
    {"learn": [1]},
    {"learn": [4]},
    {"learn": [4, 6]},
    {"learn": [3], "saved": [1]},
    {"save": [2]},
    {"saved": [3]},
    {"export_to": [1]},
    {"learn": [5], "restart": [1]},
]


@pytest.mark.parametrize("losses", LOSSES, ids=str)
async def test_a_lost_rank_costs_no_step(tmp_path, losses):
    learner = Learner(**losses)
    state = await loop(tmp_path, learner).run()
    assert learner.weights == [f"batch-{step}" for step in range(1, 7)]
    assert state.counts["ranks_lost"] == sum(map(len, losses.values())) and state.step == 6
    saved = Checkpoints(Store(str(tmp_path)), "train-x")
    assert saved.read().step == 6 and [row["step"] for row in saved.metrics] == [1, 2, 3, 4, 5, 6]
    weights = Store(str(tmp_path)).read_bytes(*saved.checkpoint(6), "weights.json")
    assert json.loads(weights) == learner.weights


async def test_ranks_that_are_lost_again_and_again_end_the_run_at_a_whole_checkpoint(tmp_path):
    learner = Learner(learn=range(4, 20))
    with pytest.raises(TrainingError, match=r"after step 3: .* 3 times in a row\. .* resumes from step 2"):
        await loop(tmp_path, learner).run()
    assert Checkpoints(Store(str(tmp_path)), "train-x").read().step == 2
    again = Learner()
    await loop(tmp_path, again).run()
    assert again.weights == [f"batch-{step}" for step in range(1, 7)]


async def test_a_batch_that_cannot_be_sampled_costs_no_checkpoint(tmp_path):
    failing = loop(tmp_path, Learner())
    batch = failing.sampler.batch

    async def until_three(step):
        if step == 3:
            raise TrainingError("groups failed")
        return await batch(step)

    failing.sampler.batch = until_three
    with pytest.raises(TrainingError, match="groups failed"):
        await failing.run()
    assert Checkpoints(Store(str(tmp_path)), "train-x").read().step == 2, "it was still being written"


async def test_what_a_small_file_repeats_is_validated_once(tmp_path):
    class Pool:
        async def greedy(self, tasks):
            for task in tasks:
                yield group([1.0], 0, task.sample_id)

    def task(number):
        segments, sample = [SimpleNamespace(text=f"text {number % 3}")], SimpleNamespace(task="t")
        return SimpleNamespace(sample_id=f"s-{number}", question="Which?", segments=segments, sample=sample)

    made, row = loop(tmp_path, Learner(), "stage.validate_with=64"), {"step": 0}
    made.pool, made.validation = Pool(), SimpleNamespace(task=task)
    await made._validate(row)
    assert row["validation"]["n"] == 3


class Turning:
    """Says in a common list what it is told."""

    def __init__(self, said):
        self.said = said

    async def call(self, method):
        self.said.append(method.__name__)

    def __getattr__(self, method):
        async def say():
            self.said.append(method)

        return say


async def test_learner_and_engines_take_turns_on_a_gpu():
    said = []
    turns = Turns(Turning(said), Turning(said), shared=True)
    await turns.start()
    assert said == ["start", "offload", "start"], "an engine takes the memory that the learner has left"
    said.clear()
    async with turns.learners():
        said.append("learn")
    assert said == ["sleep", "reload", "learn", "offload", "wake"]
    said.clear()
    apart = Turns(Turning(said), Turning(said), shared=False)
    async with apart.learners():
        said.append("learn")
    assert said == ["learn"]
