"""vLLM's core process on few cores: it also runs the model, with threads and allocator that vLLM would give a worker.

vLLM runs an engine in three processes: one takes requests (ours), one schedules, one computes. Each imports vLLM, which
takes seconds, one after another. On few cores scheduling is not worth a process, and a core that is forked from ours
imports nothing again. What libraries read when they are loaded must then be in our environment from our start.
"""

import gc
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from infra.processes import usable_cores

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_FEW_CORES = 4
"""Up to so many cores, a process that only schedules is not worth a core."""
_TAIL_BYTES = 200_000
_ERROR = re.compile(r"^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a traceback, also where a logger has put its prefix before it."""


def computes_in_core(world_size: int = 1) -> bool:
    """Whether the core process also runs the model on CPU: few cores, and no thread binding by the user."""
    return world_size == 1 and usable_cores() <= _FEW_CORES and _binding() in ("auto", "nobind")


def core_threads() -> dict[str, str]:
    """Return the variable that gives a core which computes all cores but one, unless the user binds threads."""
    # Ray sets OMP_NUM_THREADS to the CPUs that a worker requests, not to those available.
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() - 1))} if _binding() == "auto" else {}


def forking_environment(world_size: int) -> dict[str, str]:
    """Return the variables of a process that forks its core; none where vLLM starts it in its own way.

    Args:
        world_size: processes that compute.
    """
    if not is_cpu_build() or not computes_in_core(world_size) or os.environ.get(START_METHOD, "fork") != "fork":
        return {}
    return {START_METHOD: "fork", "LD_PRELOAD": _allocator_and_threads(), **core_threads()}


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection while vLLM is imported, and exempt what the imports have made from it: that stays.

    They make a million objects, which the collector would look at repeatedly, for a quarter of the time until an
    engine runs. A later start in the same process changes nothing: an engine that ended must be collected.
    """
    if "vllm" in sys.modules:
        yield
        return
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def last_error(output: Path = Path("/proc/self/fd/2")) -> str:
    """Return the last error in a file, by default this process's error output, if it is a file; else nothing.

    vLLM's other processes write there, and say no more than that they failed to this one.
    """
    try:
        if not stat.S_ISREG(output.stat().st_mode):
            return ""
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    errors = [line for line in _ERROR.findall(text) if "initialization failed" not in line]
    return errors[-1][:500] if errors else ""


def _binding() -> str:
    return os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")


def is_cpu_build() -> bool:
    """Return whether vLLM is its CPU build; asking vLLM would import it."""
    if any(distributions(name="vllm-cpu")):
        return True
    return any("cpu" in build.version for build in distributions(name="vllm"))


def _allocator_and_threads() -> str:
    """Return LD_PRELOAD as vLLM sets it for its processes: PyTorch's OpenMP, and the allocator that vLLM brings."""
    before = os.environ.get("LD_PRELOAD", "")
    preload = [before] if before else []
    torch, vllm = _package("torch"), _package("vllm")
    openmp = [*(torch.parent / "torch.libs").glob("libgomp*.so*"), *(torch / "lib").glob("libgomp*.so*")]
    if openmp and not any(name in before for name in ("libomp", "libgomp", "libiomp")):
        preload.append(str(openmp[0]))
    allocator = [*(vllm / "libs").glob("libtcmalloc_minimal*.so*"), *(vllm / "libs").glob("libtcmalloc.so*")]
    if allocator and "libtcmalloc" not in before:
        preload.insert(0, str(allocator[0]))
    return ":".join(preload)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is installed"
    return Path(spec.origin).parent
