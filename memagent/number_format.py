"""The number format in which a processor is fastest: measured, since no processor flag tells it.

Without AVX-512 or AMX a 16-bit matrix product on x86 runs kernels that convert every operand; the same model then reads
several times slower than in float32. With them the 16-bit format is faster.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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
