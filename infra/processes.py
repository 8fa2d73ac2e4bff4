"""Processes end when the one that started them has, however that ended.

vLLM's core waits for requests for ever. After a SIGKILL of its owner nobody ends it where Ray has gone as well, and it
holds what it was given: on a GPU nearly all memory, so that the next run could not start. A server that outlives its
command keeps the port.

    python -m infra.processes PID MODULE ...     runs a module that ends with process PID
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

_OWNER = "MEMAGENT_ENGINE_OWNER"
_GENTLY_SECONDS = 10.0
_LOOK_SECONDS = 0.5


def own_engines() -> None:
    """Make this process the owner of the engines that it starts from now on."""
    os.environ[_OWNER] = str(os.getpid())


def end_with_owner() -> None:
    """In an engine's process: end it when its owner ends. Elsewhere nothing happens."""
    owner = int(os.environ.get(_OWNER, os.getpid()))
    if owner != os.getpid():
        end_with(owner)


def end_with(owner: int) -> None:
    """End this process and all that it has started when process `owner` ends, at once where that is gone."""
    threading.Thread(target=_wait, args=(owner,), name="lifeline", daemon=True).start()


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started; nothing of what has ended meanwhile."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process]) -> None:
    """End processes, gently first."""
    left = list(processes)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
        left = psutil.wait_procs(left, timeout=_GENTLY_SECONDS)[1]


def _wait(owner: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(owner)
        # In a container nobody may ever take note of its end: a zombie is gone, too, which `wait` does not say.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_LOOK_SECONDS)
    while below := tree(os.getpid())[1:]:  # the main thread may start others meanwhile
        end(below)
    # The main thread may be in a kernel for seconds, or wait for what never comes.
    os._exit(1)


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
