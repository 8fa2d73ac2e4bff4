"""A version's weights as files in a node's shared memory: written once a node, whatever the number of its engines."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from memagent.errors import TrainingError

_SHARED = Path("/dev/shm")  # noqa: S108  (folders in it are made by mkdtemp, or belong to this user alone)
_IN_USE = ".in-use"


def memory_folder() -> Path:
    """Make a folder in shared memory, or in the temporary folder if there is none."""
    return Path(tempfile.mkdtemp(prefix="memagent-weights-", dir=_base()))


class NodeWeights:
    """The weights that an engine uses: a folder that it shares with the other engines of its node.

    A folder is deleted by the last process that leaves it. A process that dies leaves it, too, and whoever leaves one
    later deletes it.
    """

    def __init__(self, base: Path | None = None) -> None:
        """Prepare; `base` is where the folders are, by default the node's shared memory."""
        self._base = (base or _base() or Path(tempfile.gettempdir())) / f"memagent-weights-{os.getuid()}"
        self._lock: int | None = None
        self.folder: Path | None = None

    def take(self, key: str, files: Iterable[tuple[str, bytes]]) -> Path:
        """Use the files of `key` in place of the ones before; the first process of a node that comes writes them.

        Raises:
            TrainingError: there is no room.
        """
        try:
            self._base.mkdir(mode=0o700, exist_ok=True)
            with (self._base / ".lock").open("w") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX)
                folder = self._base / key
                if not folder.is_dir():
                    _write(files, folder)
                lock = os.open(folder / _IN_USE, os.O_RDONLY)
                fcntl.flock(lock, fcntl.LOCK_SH)
                self._leave()
                self._lock, self.folder = lock, folder
                self._sweep()
        except OSError as error:
            raise TrainingError(f"the weights cannot be written to {self._base}: {error}") from error
        return folder

    def leave(self) -> None:
        """Use none any more."""
        if self.folder is not None:
            with suppress(OSError), (self._base / ".lock").open("w") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX)
                self._leave()
                self._sweep()

    def _leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock, self.folder = None, None

    def _sweep(self) -> None:
        """Delete the folders that no process uses."""
        for folder in self._base.iterdir():
            if not folder.is_dir():
                continue
            with suppress(OSError):
                lock = os.open(folder / _IN_USE, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)


def _write(files: Iterable[tuple[str, bytes]], folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        for name, data in files:
            (aside / Path(name).name).write_bytes(data)
        (aside / _IN_USE).touch()
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _base() -> Path | None:
    return _SHARED if _SHARED.is_dir() and os.access(_SHARED, os.W_OK) else None
