"""The number format of an engine: a model's own, and on a CPU the fastest that loses nothing and fits the memory."""

import json
import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import psutil
from safetensors import safe_open

from memagent.config import EngineConfig

HalfFormat = Literal["bfloat16", "float16"]

_TOKENS, _IN, _OUT = 256, 256, 768
"""Shape of the timed product [_TOKENS, _IN] x [_IN, _OUT]: a step's tokens through a small model's layer."""
_ROUNDS = 12
_MARGIN = 1.1
"""float32 doubles the memory of the weights, so it must be faster beyond noise."""


@dataclass(frozen=True, slots=True)
class FormatSpeed:
    """Seconds of one matrix product on this processor, by number format."""

    half: HalfFormat
    half_seconds: float
    float32_seconds: float

    @property
    def fastest(self) -> str:
        """The format to compute in: `half`, unless float32 is faster beyond noise."""
        return "float32" if self.float32_seconds * _MARGIN < self.half_seconds else self.half

    @property
    def flops(self) -> float:
        """Floating-point operations a second of one core in the fastest format."""
        seconds = self.float32_seconds if self.fastest == "float32" else self.half_seconds
        return 2 * _TOKENS * _IN * _OUT / seconds

    def __str__(self) -> str:
        """Say which format is faster, and by how much."""
        ratio = self.half_seconds / self.float32_seconds
        return f"a matrix product in {self.half} takes {ratio:.1f} times as long as in float32 on this processor"


@lru_cache(maxsize=2)
def format_speed(half: HalfFormat = "bfloat16") -> FormatSpeed:
    """Time a matrix product in float32 and in a 16-bit format on one core. Takes a fraction of a second, once.

    The shortest of several rounds counts and the formats take turns, so that a busy machine does not decide. One
    thread, since several that wait for each other on a busy machine are all as slow as the one without a core.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        best = _shortest(half)
    finally:
        torch.set_num_threads(threads)
    return FormatSpeed(half, best[half], best["float32"])


def _shortest(half: HalfFormat) -> dict[str, float]:
    import torch

    best: dict[str, float] = {}
    with torch.no_grad():
        operands = {
            name: (torch.ones(_TOKENS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype))
            for name, dtype in (("float32", torch.float32), (half, getattr(torch, half)))
        }
        for _ in range(_ROUNDS + 1):  # the first round also builds the kernels, so it is never the shortest
            for name, (x, weight) in operands.items():
                began = time.perf_counter()
                torch.nn.functional.linear(x, weight)
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)
    return best


_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class EngineFormat:
    """A number format and the reason for it."""

    dtype: str
    reason: str


def cpu_format(model: str, config: EngineConfig) -> EngineFormat:
    """Choose the format for a model on this CPU, where ``dtype = auto``; one that is set by the user is kept."""
    if config.dtype != "auto":
        return EngineFormat(config.dtype, "engine.dtype says so")
    own, reason = own_format(Path(model)), "the model's own weights are float32"
    if own != "float32":
        speed = format_speed(own)
        if speed.fastest != "float32":
            return EngineFormat(own, str(speed))
        reason = str(speed)
    need = _FLOAT32_BYTES * parameters(Path(model)) + config.kv_cache_gib * 2**30
    free = psutil.virtual_memory().available
    if need > free:
        return EngineFormat(
            "bfloat16" if own == "float32" else own,
            f"{reason}, but float32 weights need {need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            "expect that it reads slowly",
        )
    return EngineFormat("float32", reason)


def parameters(folder: Path) -> int:
    """Count the parameters of a model folder's safetensors; 0 if there is no such folder on this machine."""
    total = 0
    for path in folder.glob("*.safetensors") if folder.is_dir() else ():
        with safe_open(path, framework="numpy") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def own_format(folder: Path) -> Literal["float32", "bfloat16", "float16"]:
    """Return the format of a model's weights; bfloat16 if its ``config.json`` names none or is not on this machine."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    named = (config.get("dtype"), config.get("torch_dtype"))
    return "float32" if "float32" in named else "float16" if "float16" in named else "bfloat16"
