"""vLLM's core process on few cores: it also runs the model, and is forked from a server that has imported vLLM.

vLLM runs an engine in three processes: one takes requests (ours), one schedules, one computes. Each imports vLLM, which
takes 7 to 10 seconds, and by vLLM's own way one begins when the other is done. On few cores scheduling is not worth a
process of its own. The other two import side by side: a fork server (`multiprocessing.forkserver`) imports while this
process does, and the core is forked from it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from infra.processes import usable_cores

_FEW_CORES = 4
"""Up to so many cores, a process that only schedules is not worth a core."""
_PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.layers.quantization.online.base",
)
"""Modules that a core imports; those missing in another vLLM version are skipped."""
_READ_AT_START = ("LD_PRELOAD", "OMP_NUM_THREADS")
"""Variables that a process reads only at its start: a core that needs other values is not forked."""
_started_with: dict[str, str | None] = {}
"""Values of `_READ_AT_START` in the fork server's environment; empty if none was started."""


def computes_in_core(world_size: int = 1) -> bool:
    """Whether the core process also runs the model on CPU: few cores, and no thread binding by the user."""
    return world_size == 1 and usable_cores() <= _FEW_CORES and _binding() in ("auto", "nobind")


def preload_core() -> None:
    """Start the fork server, where vLLM is its CPU build and its core will compute; call it before importing vLLM.

    Costs about 0.4 GB, which the core shares. The server ends with this process and its engine.
    """
    if _started_with or not _cpu_build() or not computes_in_core():
        return
    # The server imports from the same paths as this process, whatever its working folder.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with _environment(LD_PRELOAD=_allocator_and_threads(), PYTHONPATH=path, **_threads()):
        forkserver.set_forkserver_preload(list(_PRELOADED))
        forkserver.ensure_running()
        _started_with.update(_read_at_start())


@contextmanager
def compute_in_core(parallel: Any) -> Iterator[None]:
    """Let the engine that is started in the body run the model in its core process, forked if a fork server is ready.

    One process less saves its imports and the core that it would keep busy with waiting. The number of threads is
    vLLM's: all cores but one. With thread binding by vLLM's variable, vLLM's own way is used.

    Args:
        parallel: vLLM's `ParallelConfig`; its executor is changed.
    """
    if not computes_in_core(parallel.world_size):
        yield
        return
    parallel.distributed_executor_backend = "uni"
    with _environment(**_threads()):
        if _started_with != _read_at_start():
            yield
            return
        from vllm.v1.engine import utils

        before, utils.get_mp_context = utils.get_mp_context, _ForkedCore
        try:
            yield
        finally:
            utils.get_mp_context = before


class _ForkedCore(ForkServerContext):
    """The multiprocessing context with which vLLM starts its core, instead of a spawning one."""

    def Process(self, target: Callable[..., None], name: str, kwargs: dict[str, Any]) -> ForkServerProcess:  # type: ignore[override]
        """Return the process, not started; it gets this process's environment, not the server's."""
        return ForkServerProcess(target=_run, args=(target, dict(os.environ)), name=name, kwargs=kwargs)


def _run(target: Callable[..., None], environment: dict[str, str], **arguments: Any) -> None:
    import setproctitle

    setproctitle.getproctitle()  # locates the title by the start of the environment, which is about to move
    os.environ.clear()
    os.environ.update(environment)
    target(**arguments)


def _binding() -> str:
    return os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")


def _threads() -> dict[str, str]:
    # Ray sets OMP_NUM_THREADS to the CPUs that a worker requests, not to those available.
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() - 1))} if _binding() == "auto" else {}


def _read_at_start() -> dict[str, str | None]:
    return {name: os.environ.get(name) or None for name in _READ_AT_START}  # the loader treats empty as unset


def _cpu_build() -> bool:
    """Return whether vLLM is its CPU build; asking vLLM would import it."""
    if any(distributions(name="vllm-cpu")):
        return True
    return any("cpu" in build.version for build in distributions(name="vllm"))


def _allocator_and_threads() -> str:
    """Return LD_PRELOAD as vLLM will set it for its core: PyTorch's OpenMP, and the allocator that vLLM brings."""
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


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables in the body."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
