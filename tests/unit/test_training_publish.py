"""A model that was not made for reading becomes a policy that reads as it was trained to."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from safetensors.torch import load_file, save_file

from infra.learner.group import check_room
from infra.readers import ReaderSpec
from infra.store.location import Store
from memagent.config import PoolConfig, load_config
from memagent.errors import ConfigError
from memagent.nano import bundled
from memagent.rl.config import load_recipe
from pipelines.training.checkpoints import Checkpoints, State
from pipelines.training.run import _publish


def as_downloaded(folder: Path) -> Path:
    """A copy of the bundled model with the files that any model of the hub has."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(Path(bundled(), name), folder / name)
    return folder


def test_its_candidate_is_published_with_the_reading_of_the_recipe(tmp_path):
    parent = as_downloaded(tmp_path / "Some-7B-Instruct")
    store = Store(str(tmp_path / "store"))
    reading = ["reading.template=nano", "reading.segment_tokens=128", "reading.layout=section-first", "reading.seed=3"]
    config = load_config(sets=[f"engine.model={parent}", *reading], store=store.url)
    checkpoints = Checkpoints(store, "a-run")
    checkpoints.metrics = [{"step": 4}]
    trained = load_file(parent / "model.safetensors")
    trained[min(trained)] = trained[min(trained)] + 0.5
    made = as_downloaded(tmp_path / "made")
    save_file(trained, made / "model.safetensors", metadata={"format": "pt"})
    for file in made.iterdir():
        store.put_file(file, *checkpoints.best(4), file.name)
    run = SimpleNamespace(
        reader=ReaderSpec(config), recipe=load_recipe("smoke"), data_version=None, model=parent, config=config
    )
    policy = _publish(run, store, checkpoints, State(best_step=4))
    assert policy.startswith("Some-7B-Instruct-")
    serving = ReaderSpec(load_config(sets=[f"engine.model={policy}"], store=store.url))
    assert (serving.reading.segment_tokens, serving.reading.layout) == (128, "section-first")
    assert serving.template.hash == run.reader.template.hash
    assert "seed" not in json.loads((Path(serving.folder) / "reading.json").read_text())


@pytest.mark.parametrize(("data", "declares"), [(("needles", "contracts=cuad"), True), (("needles", "qa"), False)])
def test_a_model_that_was_made_for_reading_keeps_the_reading_of_its_recipe(tmp_path, data, declares):
    store = Store(str(tmp_path / "store"))
    config = load_config(sets=["engine.model=nano", "reading.segment_tokens=128", "reading.seed=3"], store=store.url)
    checkpoints = Checkpoints(store, "a-run")
    checkpoints.metrics = [{"step": 4}]
    made = tmp_path / "made"
    shutil.copytree(bundled(), made)
    trained = load_file(made / "model.safetensors")
    trained[min(trained)] = trained[min(trained)] + 0.5
    save_file(trained, made / "model.safetensors", metadata={"format": "pt"})
    for file in made.iterdir():
        store.put_file(file, *checkpoints.best(4), file.name)
    run = SimpleNamespace(
        reader=ReaderSpec(config), recipe=load_recipe("smoke"), data_version=None, model=bundled(), config=config
    )
    run.data = data
    policy = _publish(run, store, checkpoints, State(best_step=4))
    own, base = (ReaderSpec(load_config(sets=[f"engine.model={name}"], store=store.url)) for name in (policy, "nano"))
    assert (own.reading.segment_tokens, base.reading.segment_tokens) == (128, 254)
    assert own.reading.model_copy(update={"segment_tokens": 254}) == base.reading
    scope = own.scheme.scope
    assert scope == (base.scheme.scope.unmeasured() if declares else None), "other questions: nothing is known of them"


def test_engines_beside_a_learner_on_gpus_need_their_own(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 16.0})
    recipe = load_recipe("reader-7b")
    check_room(recipe, PoolConfig.model_validate(recipe.pool))
    with pytest.raises(ConfigError, match=r"its engines have none: set pool\.gpus"):
        check_room(recipe, PoolConfig(max_size=8))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 8.0})
    with pytest.raises(ConfigError, match="8 learner ranks and 8 engines want 16 GPUs, and Ray has 8"):
        check_room(recipe, PoolConfig.model_validate(recipe.pool))
