"""What a flow's callers may set."""

from importlib.metadata import EntryPoint

import pytest

from memagent.config import load_config
from memagent.errors import ConfigError
from memagent.reading.engine import ENGINES
from pipelines.flows.parameters import check, settings_for


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch):
    for name in ("MEMAGENT_CONFIG", "MEMAGENT_CONFIG_FILE", "MEMAGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "item",
    [
        "engine.trust_remote_code=true",
        " engine.trust_remote_code = true",
        "engine={trust_remote_code=true}",
        'engine={"base_url"="http://evil.example/v1"}',
        "engine.base_url=http://evil.example/v1",
        "engine.api_key_env=AWS_SECRET_ACCESS_KEY",
        "ray.jobs_address=http://evil.example:8265",
        "ray.runtime_env.pip=['evil']",
        "ray={address='auto'}",
        "engine.options.address=http://evil.example",
        "engine={options={address='http://evil.example'}}",
    ],
)
def test_what_is_the_operators_is_refused_however_it_is_written(item, tmp_path):
    with pytest.raises(ConfigError, match=r"sets: (engine\.|ray).* is not for a flow's parameters"):
        settings_for(None, ["flush_seconds=1", item], None)
    key, _, value = item.partition("=")
    file = tmp_path / "caller.toml"
    file.write_text(f"{key} = {value if value[0] in '{[t' else repr(value)}\n")
    with pytest.raises(ConfigError, match="config: "):
        settings_for(str(file), None, None)


def test_a_recipe_of_a_caller_is_no_way_round():
    with pytest.raises(ConfigError, match=r"recipe: engine\.base_url"):
        check(engine={"base_url": "http://evil.example/v1"})
    check(engine={"dtype": "float32"})


def test_a_recipe_imports_only_rewards_that_the_operator_allows(tmp_path, monkeypatch):
    check(rewards=["exact", "task"])
    with pytest.raises(ConfigError, match=r"the reward os:system would import code that the operator has not allowed"):
        check(rewards=["exact", "os:system"])
    with pytest.raises(ConfigError, match=r"sets: reward_functions is not for a flow's parameters"):
        check(sets=["reward_functions=['os:system']"])
    file = tmp_path / "operator.toml"
    file.write_text("reward_functions = ['mine:score']\n")
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", str(file))
    check(rewards=["mine:score"])
    with pytest.raises(ConfigError, match="os:system"):
        check(rewards=["mine:score", "os:system"])


def test_callers_add_to_what_the_operator_has_configured(tmp_path, monkeypatch):
    file = tmp_path / "operator.toml"
    file.write_text(
        "[engine]\nbase_url = 'http://own.example/v1'\nkind = 'openai'\n[ray]\njobs_address = 'http://own:8265'\n"
    )
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", str(file))
    caller = tmp_path / "caller.toml"
    caller.write_text("[engine]\nmodel = 'theirs'\nmax_num_seqs = 8\n")
    given = settings_for(str(caller), ["engine.max_num_seqs=4", "reading.parallel_spans=2"], "/their/store")
    assert given.engine.base_url == "http://own.example/v1" and given.ray.jobs_address == "http://own:8265"
    assert (given.engine.model, given.engine.max_num_seqs, given.reading["parallel_spans"]) == ("theirs", 4, 2)
    assert given.store == "/their/store"
    # A process that was given the whole configuration has no use for the file, which may be on another machine.
    monkeypatch.setenv("MEMAGENT_CONFIG", given.model_dump_json())
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", "/no/such/file")
    assert load_config() == given


def test_where_a_models_own_code_is_trusted_callers_choose_no_other_model(monkeypatch):
    settings_for(None, ["engine.model=nano"], None)
    trusting = load_config(None, ["engine.trust_remote_code=true", "engine.model=own/model"])
    monkeypatch.setenv("MEMAGENT_CONFIG", trusting.model_dump_json(exclude_unset=True))
    assert settings_for(None, ["engine.max_num_seqs=4"], None).engine.trust_remote_code
    for item in ("engine.model=evil/model", "engine.tokenizer=evil/model"):
        with pytest.raises(ConfigError, match="is not for a flow's parameters"):
            settings_for(None, [item], None)


def test_an_engine_of_another_package_is_the_operators_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(ENGINES, "_brought", {"hosted": [EntryPoint("hosted", "nowhere:make", ENGINES.group)]})
    with pytest.raises(ConfigError, match=r"sets: engine\.kind is not for a flow's parameters"):
        check(sets=["engine.kind=hosted"])
    with pytest.raises(ConfigError, match=r"recipe: engine\.kind"):
        check(engine={"kind": "hosted"})
    check(sets=["engine.kind=scripted"])
    file = tmp_path / "operator.toml"
    file.write_text("[engine]\nkind = 'hosted'\noptions = {address = 'https://own.example'}\n")
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", str(file))
    assert settings_for(None, ["engine.kind=hosted"], None).engine.options == {"address": "https://own.example"}


@pytest.mark.parametrize("item", ["store=/tmp/other", " store = '/tmp/other'"])
def test_the_store_is_a_parameter_of_its_own(item, tmp_path):
    with pytest.raises(ConfigError, match="give it as `store`"):
        settings_for(None, [item], str(tmp_path))
