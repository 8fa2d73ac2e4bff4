"""What names policies and readings: a change here has everything read anew, in every store that there is."""

import json
from pathlib import Path

import pytest

import infra.engines.openai
from infra.readers import ReaderSpec, _brought
from memagent.config import Config, EngineConfig, load_config
from memagent.errors import ConfigError


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model folder whose name and content are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(infra.engines.openai, "listed_weights", lambda config, served: '{"root": "w"}')
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: Path("/models") / self.name)
    folder = Path("model")
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "reading.json").write_text('{"template": "plain", "segment_tokens": 512}')
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "policy_id"),
    [("vllm", "model-c8c0f0@7a6273edb791"), ("openai", "model-a7fd53@eb5689f346ee"), ("scripted", "scripted@1")],
)
@pytest.mark.parametrize(
    ("method", "config_hash"),
    [("memagent", "e844fc59ac4ce6455ea2e9d727f97d44"), ("bm25", "8256863a77895ddeb562cf3901b9a9d9")],
)
def test_names_of_built_in_readers_stay(model, kind, policy_id, method, config_hash):
    reader = ReaderSpec(load_config(store="store", engine__kind=kind, engine__model=model, method=method))
    assert (reader.policy.policy_id, reader.config_hash) == (policy_id, config_hash)


def test_a_policy_of_another_package_goes_by_engine_model_and_options(model):
    def named(model: str, **options: object) -> tuple[str, str]:
        policy = _brought(EngineConfig.model_construct(kind="mine", options=options), Path(model), model)
        return policy.name, policy.policy_id

    plain, plain_id = named(model)
    assert plain.startswith("mine-model-") and plain_id.startswith(f"{plain}@")
    assert named(model, server="a")[0] not in (plain, named(model, server="b")[0])
    assert named("hub/name") == named("hub/name") and named("hub/name")[0] == "mine-hub/name"
    Path(model, "model.safetensors").write_bytes(b"other weights")
    assert named(model)[0] == plain and named(model)[1] != plain_id, "another version of the same policy"


def test_options_are_plain_data_and_kept_without_logins():
    config = load_config(sets=['engine.options={at=["http://me:secret@host/v1"], n=3, deep={on=true}}'])
    public = config.public()
    assert public["engine"]["options"] == {"at": ["http://host/v1"], "n": 3, "deep": {"on": True}}
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
    with pytest.raises(ConfigError, match=r"engine\.options\.since"):
        load_config(sets=["engine.options.since=2026-01-01"])


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("engine.kind=nobodys", r"engine\.kind: .*no engine 'nobodys'\. There are: vllm, openai, scripted"),
        ("method=nobodys", r"method: .*no method 'nobodys'\. There are: memagent, truncate, bm25, map-reduce"),
    ],
)
def test_an_unknown_name_is_refused_with_the_configuration(item, said):
    with pytest.raises(ConfigError, match=said):
        load_config(sets=[item])


def test_a_tokenizer_that_is_given_apart_is_named_by_its_key(model):
    served = {"engine__kind": "openai", "engine__model": "m", "sets": ["engine.tokenizer=./nowhere"]}
    reader = ReaderSpec(load_config(store="store", **served))
    with pytest.raises(ConfigError, match=r"^engine\.tokenizer: no model at '\./nowhere'"):
        _ = reader.tokenizer
    with pytest.raises(ConfigError, match=r"^no model at '/models/model'"):
        _ = ReaderSpec(load_config(store="store", engine__model=model)).tokenizer
