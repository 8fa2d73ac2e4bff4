"""Processes that end with their owner, even if it is killed.

vLLM's core waits for requests forever. If its owner and Ray are killed it stays, holding nearly all memory of a GPU,
and the next run cannot start. Likewise, a server that outlives its command keeps its port.

    python -m infra.system.processes PID MODULE ...     runs a module that ends with process PID
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import subprocess

_OWNER = "MEMAGENT_ENGINE_OWNER"
_GENTLY_SECONDS = 10.0
_LOOK_SECONDS = 0.5
terminating = threading.Event()
"""Set while this process, or the run in it, is to end: jobs are broken off, and not tried again."""


def own_engines() -> None:
    """Make this process the owner of the engines that it starts from now on."""
    os.environ[_OWNER] = str(os.getpid())


def end_with_owner() -> None:
    """End an engine's process when its owner ends. No effect in other processes."""
    owner = int(os.environ.get(_OWNER, os.getpid()))
    if owner != os.getpid():
        end_with(owner)


def end_with(owner: int) -> None:
    """End this process and its children when process `owner` ends, at once if it is gone already."""
    threading.Thread(target=_wait, args=(owner,), name="lifeline", daemon=True).start()


def ends_with_us(*module: str) -> list[str]:
    """Return the command of a module that ends with this process, even if it is killed."""
    return [sys.executable, "-P", "-m", "infra.system.processes", str(os.getpid()), *module]


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its child processes; SIGTERM first."""
    if process.poll() is None:
        end(tree(process.pid))
        process.wait()


def environment_of_children() -> dict[str, str]:
    """Return this process's environment for a child that imports modules from where this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def end_within(seconds: float) -> None:
    """End this process and those below it after some seconds, unless it has ended by itself: returns at once."""

    def kill() -> None:
        for process in tree(os.getpid())[1:]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os._exit(128 + signal.SIGTERM)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants that are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process]) -> None:
    """End processes: SIGTERM first, SIGKILL for those that remain."""
    left = list(processes)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
        left = psutil.wait_procs(left, timeout=_GENTLY_SECONDS)[1]


def _wait(owner: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(owner)
        # In a container zombies may never be reaped: they count as gone, which `wait` does not know.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_LOOK_SECONDS)
    while below := tree(os.getpid())[1:]:  # the main thread may start others in the meantime
        end(below)
    # The main thread may be in a kernel for seconds, or wait forever.
    os._exit(1)


def usable_memory() -> int:
    """Return the bytes of memory that this process's container has, or the machine."""
    total = int(psutil.virtual_memory().total)
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
