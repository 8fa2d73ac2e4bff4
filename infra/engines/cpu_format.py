"""The number format of an engine on a CPU: the fastest one that fits the memory."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import psutil
from safetensors import safe_open

from memagent.config import EngineConfig
from memagent.number_format import HalfFormat, format_speed

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class EngineFormat:
    """A number format and the reason for it."""

    dtype: str
    reason: str


def cpu_format(model: str, config: EngineConfig) -> EngineFormat:
    """Choose the format of weights and activations for an engine on this CPU; a format set by the user is kept.

    Args:
        model: folder of the model, or its name on the hub.
        config: of the engine; a choice is made only with ``dtype = auto``.
    """
    if config.dtype != "auto":
        return EngineFormat(config.dtype, "engine.dtype says so")
    half = _half_format(Path(model))
    speed = format_speed(half)
    if speed.fastest != "float32":
        return EngineFormat(speed.fastest, str(speed))
    need = _FLOAT32_BYTES * parameters(Path(model)) + config.kv_cache_gib * 2**30
    free = psutil.virtual_memory().available
    if need > free:
        return EngineFormat(
            half,
            f"{speed}, but float32 weights need {need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            "expect that it reads slowly",
        )
    return EngineFormat("float32", str(speed))


def parameters(folder: Path) -> int:
    """Count the parameters of a model folder's safetensors; 0 if there is no such folder on this machine."""
    total = 0
    for path in folder.glob("*.safetensors") if folder.is_dir() else ():
        with safe_open(path, framework="numpy") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def _half_format(folder: Path) -> HalfFormat:
    """Return the 16-bit format of a model: its own, or bfloat16 if it has none or is not on this machine."""
    path = folder / "config.json"
    if not path.is_file():
        return "bfloat16"
    config = json.loads(path.read_text(encoding="utf-8"))
    return "float16" if "float16" in (config.get("dtype"), config.get("torch_dtype")) else "bfloat16"
