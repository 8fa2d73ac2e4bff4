"""What an evaluation refuses before anything is started for it."""

from pathlib import Path

import pytest

import pipelines.evaluate
from memagent.config import load_config
from memagent.errors import ConfigError, UsageError
from memagent.evaluation.suites import Suite


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(config: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(pipelines.evaluate, "lazy_ray", started)


@pytest.mark.usefixtures("no_ray")
def test_a_model_that_cannot_read_is_said_before_ray_starts(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    (tmp_path / "bare" / "model.safetensors").write_bytes(b"weights")
    made = Suite("needles", lengths=(1000,))
    for model, engine, said in (
        (str(tmp_path / "bare"), "vllm", r"bare has no tokenizer\.json"),
        ("m", "openai", "engine.tokenizer"),
    ):
        config = load_config(store=str(tmp_path / "store"), engine__kind=engine, engine__model=model)
        with pytest.raises(ConfigError, match=said):
            pipelines.evaluate.evaluate(made, config)
    with pytest.raises(UsageError, match="wants lengths in tokens"):
        pipelines.evaluate.evaluate(Suite("needles"), config)
