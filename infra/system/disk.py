"""A full disk: how it is known, and room that is held so that what was done so far can still be written."""

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, and of a quota that is used up."""


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that a disk is full."""
    return isinstance(error, OSError) and error.errno in _FULL


class DiskReserve:
    """Room on the disk of a folder, until it is given up or its process ends; nothing is left of it then."""

    def __init__(self, folder: str, size: int) -> None:
        """Hold `size` bytes in a folder, which is made, where the file system can. Raises OSError: the disk is full."""
        self._file: BinaryIO | None = None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - open while room is held
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            self.give_up()
            if is_full(error):
                raise
            # Some network file systems cannot hold room: the run goes on without.

    def give_up(self) -> None:
        """Leave the room to whoever writes next."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.give_up()
