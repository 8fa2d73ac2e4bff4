import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memagent.config import Config, ReadingConfig, load_config
from pipelines.cli.init import configuration_file
from pipelines.cli.main import app


def test_every_key_stands_in_the_file_once_with_what_it_does():
    text = configuration_file({})
    names = ("engine", "reading", "pool", "ingest", "ray", "logging", "cost", "quality", "schedule")
    assert tomllib.loads(text) == {name: {} for name in names}
    sections = re.split(r"\n\[(\w+)\]\n", "\n[top]\n" + text)[1:]
    keys = {
        name: re.findall(r"^# (\w+)(?: = |: not set)", body, re.M)
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }
    assert keys["reading"] == list(ReadingConfig.model_fields)
    for name in ("engine", "pool", "ingest", "ray"):
        assert keys[name] == list(Config.model_fields[name].annotation.model_fields)
    assert "Tokens of a segment at most" in text


def test_what_stands_as_a_comment_is_the_default(tmp_path):
    text = re.sub(r"^# (\w+ = )", r"\1", configuration_file({"engine.model": "nano"}), flags=re.M)
    path = tmp_path / "all.toml"
    path.write_text(text)
    everything, nothing = load_config(str(path)).model_dump(), load_config().model_dump()
    assert everything.pop("reading") == ReadingConfig().model_dump() and nothing.pop("reading") == {}
    assert everything == nothing


def invoke(*argv, answers=None):
    return CliRunner().invoke(app, ["init", *map(str, argv)], input=answers)


def test_init_writes_what_is_given_and_asks_nothing_without_a_terminal(tmp_path):
    path = tmp_path / "m.toml"
    given = ["--store", "s3://bucket/x", "--engine", "openai", "--model", "gpt", "--tokenizer", "t"]
    assert "memagent ask FOLDER" in invoke("-o", path, *given).output
    config = load_config(str(path))
    assert (config.store, config.engine.kind, config.engine.model) == ("s3://bucket/x", "openai", "gpt")
    assert config.engine.tokenizer == "t"


def test_init_asks_five_things_on_a_terminal(tmp_path, monkeypatch):
    asked = []

    def prompt(words, default, **_):
        asked.append(words)
        return {"GPUs": 2, "side by side": 3}.get(
            next((k for k in ("GPUs", "side by side") if k in words), ""), default
        )

    monkeypatch.setattr("pipelines.cli.init._asks", lambda: True)
    monkeypatch.setattr("pipelines.cli.init.typer.prompt", prompt)
    assert invoke("-o", tmp_path / "m.toml").exit_code == 0
    config = load_config(str(tmp_path / "m.toml"))
    assert len(asked) == 5
    assert Path(config.store).is_absolute(), "commands in other folders use the same store"
    assert (config.pool.gpus, config.pool.max_size, config.engine.tensor_parallel) == (2, 3, 2)


def test_init_asks_again_for_an_answer_that_cannot_be_used(tmp_path, monkeypatch):
    said = {"engine": ["magic", "openai"], "address": ["http://127.0.0.1:8000/v1"]}

    def prompt(words, default, **_):
        return next((answers.pop(0) for key, answers in said.items() if key in words and answers), default)

    monkeypatch.setattr("pipelines.cli.init._asks", lambda: True)
    monkeypatch.setattr("pipelines.cli.init.typer.prompt", prompt)
    done = invoke("-o", tmp_path / "m.toml")
    assert done.exit_code == 0 and "no engine 'magic'" in done.output
    config = load_config(str(tmp_path / "m.toml"))
    assert (config.engine.kind, config.engine.base_url) == ("openai", "http://127.0.0.1:8000/v1")


def test_init_leaves_a_file_alone_and_refuses_what_cannot_be_used(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text("mine")
    assert "--force" in str(invoke("-o", path).exception)
    assert path.read_text() == "mine"
    assert "no engine 'magic'" in str(invoke("-o", tmp_path / "n.toml", "--engine", "magic").exception)
    assert not (tmp_path / "n.toml").exists()


@pytest.mark.parametrize("value", ['a "quoted" name', "C:\\folder", "ä"])
def test_values_of_every_kind_come_back(tmp_path, value):
    path = tmp_path / "m.toml"
    path.write_text(configuration_file({"store": value, "engine.tensor_parallel": 2}))
    assert load_config(str(path)).store == value
