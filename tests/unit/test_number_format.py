"""Which number format is fast here is measured, and the engine's follows it."""

import json
import math
from types import SimpleNamespace

import pytest

from infra.engines import cpu_format as formats
from infra.engines.cpu_format import FormatSpeed, cpu_format, format_speed, parameters
from memagent.config import EngineConfig
from memagent.nano import bundled

SLOW_HALF = FormatSpeed("bfloat16", half_seconds=20e-3, float32_seconds=2e-3)
FAST_HALF = FormatSpeed("bfloat16", half_seconds=1e-3, float32_seconds=2e-3)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_both_formats_are_timed(half):
    speed = format_speed(half)
    assert speed.fastest in (half, "float32")
    assert math.isfinite(speed.half_seconds) and speed.half_seconds > 0 and speed.float32_seconds > 0
    assert 1e8 < speed.flops < 1e14


def test_float32_wins_only_beyond_noise():
    assert SLOW_HALF.fastest == "float32"
    assert FAST_HALF.fastest == "bfloat16"
    assert FormatSpeed("bfloat16", 1.05, 1.0).fastest == "bfloat16", "it takes half the memory"
    assert "10.0 times as long" in str(SLOW_HALF)


def test_auto_follows_the_processor_and_what_is_set_stays(monkeypatch):
    folder = str(bundled())
    for speed, expected in ((SLOW_HALF, "float32"), (FAST_HALF, "bfloat16")):
        monkeypatch.setattr(formats, "format_speed", lambda half, speed=speed: speed)
        assert cpu_format(folder, EngineConfig()).dtype == expected
        assert str(speed) in cpu_format(folder, EngineConfig()).reason
        assert cpu_format(folder, EngineConfig(dtype="bfloat16")).dtype == "bfloat16"
        assert cpu_format(folder, EngineConfig(dtype="float32")).dtype == "float32"


def test_float32_weights_that_do_not_fit_are_left_in_the_models_format(monkeypatch):
    monkeypatch.setattr(formats, "format_speed", lambda half: SLOW_HALF)
    monkeypatch.setattr(formats.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    chosen = cpu_format(str(bundled()), EngineConfig())
    assert chosen.dtype == "bfloat16"
    assert "GiB" in chosen.reason


def test_a_model_of_float16_is_compared_in_float16(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr(formats, "format_speed", lambda half: timed.append(half) or FAST_HALF)
    for key in ("torch_dtype", "dtype"):
        (tmp_path / "config.json").write_text(json.dumps({key: "float16"}))
        cpu_format(str(tmp_path), EngineConfig())
    cpu_format("somebody/a-model-on-the-hub", EngineConfig())
    assert timed == ["float16", "float16", "bfloat16"]


def test_weights_in_float32_stay_so_unless_the_user_says_otherwise_or_they_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "format_speed", lambda half: FAST_HALF)
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float32"}))
    chosen = cpu_format(str(tmp_path), EngineConfig())
    assert (chosen.dtype, chosen.reason) == ("float32", "the model's own weights are float32")
    assert cpu_format(str(tmp_path), EngineConfig(dtype="bfloat16")).dtype == "bfloat16"
    monkeypatch.setattr(formats.psutil, "virtual_memory", lambda: SimpleNamespace(available=0))
    assert cpu_format(str(tmp_path), EngineConfig()).dtype == "bfloat16"


def test_parameters_are_counted(tmp_path):
    assert 1e6 < parameters(bundled()) < 1e7
    assert parameters(tmp_path) == parameters(tmp_path / "missing") == 0
