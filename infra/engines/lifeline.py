"""An engine's processes end when the process that started them has, however that ended.

vLLM's core waits for requests for ever. After a SIGKILL of its owner nobody ends it where Ray has gone as well, and it
holds what it was given: on a GPU nearly all memory, so that the next run could not start.
"""

import os
import threading
from contextlib import suppress

import psutil

_OWNER = "MEMAGENT_ENGINE_OWNER"


def own_engines() -> None:
    """Make this process the owner of the engines that it starts from now on."""
    os.environ[_OWNER] = str(os.getpid())


def end_with_owner() -> None:
    """In an engine's process: end it when its owner ends, at once where that is gone. Elsewhere nothing happens."""
    owner = int(os.environ.get(_OWNER, os.getpid()))
    if owner != os.getpid():
        threading.Thread(target=_wait, args=(owner,), name="lifeline", daemon=True).start()


def _wait(owner: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(owner).wait()
    # The main thread may be in a kernel for seconds, or wait for what never comes.
    os._exit(1)
