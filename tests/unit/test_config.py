from pathlib import Path

import pytest

from infra.models import cache_folder
from memagent.config import Config, ReadingConfig, load_config
from memagent.errors import ConfigError


def test_precedence(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMAGENT_STORE", "from-environment")
    file = tmp_path / "c.toml"
    file.write_text('store = "from-file"\n[engine]\nmodel = "file"\nkind = "openai"\n[pool]\nmax_size = 4\n')
    config = load_config(str(file), ["engine.model=set", "pool.min_size=2"], engine__kind="scripted", store=None)
    assert (config.store, config.engine.model, config.engine.kind) == ("from-file", "set", "scripted")
    assert (config.pool.min_size, config.pool.max_size) == (2, 4)
    assert load_config().store == "from-environment"


def test_a_model_gives_defaults_that_the_user_overrides():
    config = load_config(sets=["reading.parallel_spans=3"])
    reading = config.reading_config({"segment_tokens": 256, "parallel_spans": 2})
    assert (reading.segment_tokens, reading.parallel_spans) == (256, 3)


def test_the_environment_names_a_file_or_holds_the_whole_configuration(tmp_path, monkeypatch):
    file = tmp_path / "operator.toml"
    file.write_text('store = "of-the-file"\n[pool]\nmax_size = 4\n')
    monkeypatch.delenv("MEMAGENT_STORE", raising=False)
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", str(file))
    assert (load_config().store, load_config().pool.max_size) == ("of-the-file", 4)
    monkeypatch.setenv("MEMAGENT_CONFIG", '{"pool": {"max_size": 8}}')
    assert (load_config().store, load_config().pool.max_size) == (".memagent", 8), "the file is not read then"
    monkeypatch.setenv("MEMAGENT_CONFIG", "{}")
    assert load_config() == Config(), "nor where the whole configuration is that of the defaults"
    monkeypatch.setenv("MEMAGENT_STORE", "of-the-environment")
    assert load_config().store == "of-the-environment"
    monkeypatch.setenv("MEMAGENT_STORE", "")
    assert load_config().store == ".memagent", "an empty variable counts as none"


@pytest.mark.parametrize("value", ["/etc/memagent.toml", "[1]", '{"engine": '])
def test_an_environment_that_is_no_configuration_says_which_variable_names_a_file(value, monkeypatch):
    monkeypatch.setenv("MEMAGENT_CONFIG", value)
    with pytest.raises(ConfigError, match=r"^\$MEMAGENT_CONFIG is no JSON object; .* \$MEMAGENT_CONFIG_FILE$"):
        load_config()


def test_downloaded_policies_are_cached_where_the_platform_keeps_caches(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMAGENT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "memagent"
    monkeypatch.setenv("MEMAGENT_CACHE", "~/own")
    assert cache_folder() == Path("~/own").expanduser()


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["engine.knd=1"], "engine.knd: no such key"),
        (["reading.nope=1"], "reading.nope: no such key"),
        (["reading.parallel_spans=0"], "reading.parallel_spans"),
        (["engine"], "section.key=value"),
        (["store.x=1", "store=2"], "store"),
        (["pool.min_size=3"], "pool.max_size 1 is below"),
        (["engine.kind=magic"], "engine.kind"),
    ],
)
def test_wrong_keys_are_named(sets, says):
    with pytest.raises(ConfigError, match=says):
        load_config(sets=sets)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("[engine\n")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_config(str(bad))


def test_hash_changes_with_every_key_and_with_the_wording():
    base = ReadingConfig()
    hashes = {base.hash("a"), base.hash("b")}
    changes = {"segment_tokens": 64, "parallel_spans": 2, "gate": True, "layout": "section-first", "temperature": 0.5}
    hashes |= {ReadingConfig(**{name: value}).hash("a") for name, value in changes.items()}
    assert len(hashes) == 2 + len(changes)


def test_every_key_is_documented():
    for section in (Config, *(field.annotation for field in Config.model_fields.values())):
        for name, field in getattr(section, "model_fields", {}).items():
            documented = field.description or hasattr(field.annotation, "model_fields")
            assert documented, f"{section.__name__}.{name} has no docstring"


def test_what_is_kept_holds_no_secret():
    config = load_config(
        sets=["engine.base_url=http://me:hush@host/v1", 'ray.runtime_env={env_vars = {KEY = "hush"}}'],
    )
    assert "hush" not in str(config.public()) and "KEY" in str(config.public())
    assert config.ray.runtime_env["env_vars"]["KEY"] == "hush", "and what is used is as it was given"


def test_a_key_that_is_off_changes_no_hash():
    assert ReadingConfig(span_segments=0).hash("t") == ReadingConfig().hash("t")
    assert ReadingConfig(span_segments=9).hash("t") != ReadingConfig().hash("t")
    limited = ReadingConfig(parallel_spans=2, span_segments=10)
    assert [limited.parallel_spans_of(n) for n in (1, 20, 21, 100)] == [2, 2, 3, 10]
