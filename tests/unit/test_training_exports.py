"""A run keeps its weights in Hugging Face format every so many steps and at its end, and lists them."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from infra.store.location import Store
from memagent.rl.config import StageRecipe, load_recipe
from pipelines.cli.main import app
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.loop import Loop, Turns
from pipelines.training.monitors import Monitors
from pipelines.training.records import exported_models
from pipelines.training.rollouts import Sampled
from tests.support.rl_samples import group


class Learner:
    """Writes a file wherever it is asked to."""

    async def learn(self, groups):
        return [{"tokens": 1.0, "trained_tokens": 1.0}]

    async def call(self, method, *args, **named):
        getattr(self, method.__name__)(*args, **named)

    def export_to(self, url, *parts, adapter=False):
        if adapter:
            Store(url).write_bytes(b"a" * 10, *parts, "adapter_model.safetensors")
            return
        Store(url).write_bytes(b"w" * 100, *parts, "model.safetensors")
        Store(url).write_bytes(b"{}", *parts, "config.json")

    def save(self, url, *parts):
        Store(url).write_bytes(b"c", *parts, "weights.safetensors")
        self.writing = url, parts

    def saved(self):
        url, parts = self.writing
        assert Store(url).exists(*parts, "weights.safetensors")


class Sampler:
    """Two rollouts a step."""

    async def batch(self, step):
        groups = [group([1, 0], step)]
        return Sampled(groups, step, [("t", groups[0])])

    async def close(self):
        pass


@pytest.mark.parametrize("lora", [0, 4])
def test_every_so_many_steps_and_the_last(tmp_path, lora, monkeypatch):
    monkeypatch.setattr(
        "pipelines.training.loop.learning_metrics", lambda steps, seconds, compute, taught: {"trained_tokens": 1.0}
    )
    sets = ["stage.max_steps=5", "stage.export_every=2", f"learner.lora_rank={lora}"]
    recipe, store = load_recipe("smoke", sets), Store(str(tmp_path))
    checkpoints = Checkpoints(store, "train-x")
    loop = Loop(
        recipe,
        checkpoints,
        learner := Learner(),
        Sampler(),
        pool=None,
        turns=Turns(learner, None, shared=False),
        validation=None,
        monitors=Monitors(store, "train-x", StageRecipe()),
        show=lambda _: None,
    )
    asyncio.run(loop.run())
    models = exported_models(store, "train-x")
    steps = [2, 4, 5]
    assert [model.step for model in models if model.kind == "model"] == steps
    assert [model.step for model in models if model.kind == "adapter"] == (steps if lora else [])
    assert [(model.step, model.size_bytes) for model in models if model.kind == "best"] == [(5, 102)]
    done = CliRunner().invoke(app, ["train", "exports", "last", "--store", str(tmp_path), "--json"])
    listed = json.loads(done.stdout)
    assert [one["folder"] for one in listed] == [model.folder for model in models]
    assert all((tmp_path / one["folder"]).is_dir() for one in listed)
