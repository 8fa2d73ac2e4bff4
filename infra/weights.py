"""Weights on their way from the learner to the engines: safetensors in buckets, through Ray's object store.

The object store is shared memory on one machine and goes over the network to others, so that one path
serves a laptop and a cluster. Engines read from a folder in memory.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from memagent.errors import TrainingError

_SHARED = Path("/dev/shm")  # noqa: S108  (folders in it are made by mkdtemp)


def memory_folder() -> Path:
    """Make a folder in shared memory, or among the temporary files where a machine has none."""
    base = _SHARED if _SHARED.is_dir() and os.access(_SHARED, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="memagent-weights-", dir=base))


def put_files(files: Iterable[tuple[str, bytes]], folder: Path) -> Path:
    """Write a model folder, file by file; what stood there is gone.

    Raises:
        TrainingError: there is no room.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        for name, data in files:
            (folder / Path(name).name).write_bytes(data)
    except OSError as error:
        raise TrainingError(f"the weights cannot be written to {folder}: {error}") from error
    return folder
