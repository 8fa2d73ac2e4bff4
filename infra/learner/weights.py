"""A version's weights as files in a node's shared memory: written once a node, whatever the number of its engines."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from memagent.errors import TrainingError

_SHARED = Path("/dev/shm")  # noqa: S108  (folders in it are made by mkdtemp, or belong to this user alone)
_IN_USE = ".in-use"
FileContent = npt.NDArray[np.uint8]
"""The bytes of a file, as Ray maps them from its object store without a copy."""


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

    def take(self, key: str, files: Iterable[tuple[str, FileContent]]) -> Path:
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


def _write(files: Iterable[tuple[str, FileContent]], folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        for name, data in files:
            data.tofile(aside / Path(name).name)
        (aside / _IN_USE).touch()
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _base() -> Path | None:
    return _SHARED if _SHARED.is_dir() and os.access(_SHARED, os.W_OK) else None


_PATIENCE = timedelta(minutes=10)
_ALIGNED = 16
"""Alignment in bytes that suits all data types."""

Entry = tuple[str, tuple[int, ...], str]
"""Name, shape and torch's name of the data type."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address and layout of a broadcast of weights."""

    address: str
    port: int
    world: int
    """The sender, and as many receivers as there are engine processes."""
    layout: Sequence[Entry]
    bucket_bytes: int = 256 * 2**20


def send(meeting: Rendezvous, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> None:
    """Send all weights to the receivers, in the order of the layout.

    Raises:
        RuntimeError: a receiver did not come, or was lost.
    """
    given = iter(weights)
    with _group(meeting, 0, device) as group:
        for entries in _buckets(meeting.layout, meeting.bucket_bytes):
            places, size = _places(entries)
            bucket = torch.empty(size, dtype=torch.uint8, device=device)
            for (name, shape, dtype), at in zip(entries, places, strict=True):
                got, weight = next(given)
                if got != name:
                    raise RuntimeError(f"{got} was to be sent where {name} stands")
                _view(bucket, at, shape, dtype).copy_(weight)
            group.broadcast(bucket, 0).wait()


def receive(meeting: Rendezvous, rank: int, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by name as they arrive; `rank` counts the receivers from 1.

    Raises:
        RuntimeError: the sender did not come, or was lost.
    """
    with _group(meeting, rank, device) as group:
        for entries in _buckets(meeting.layout, meeting.bucket_bytes):
            places, size = _places(entries)
            # A new tensor each time: a loader may keep it until a layer is complete.
            bucket = torch.empty(size, dtype=torch.uint8, device=device)
            group.broadcast(bucket, 0).wait()
            for (name, shape, dtype), at in zip(entries, places, strict=True):
                yield name, _view(bucket, at, shape, dtype)


@contextmanager
def _group(meeting: Rendezvous, rank: int, device: torch.device) -> Iterator[Any]:
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        meeting.address, meeting.port, meeting.world, is_master=rank == 0, timeout=_PATIENCE, wait_for_workers=False
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = torch.distributed.ProcessGroupNCCL.Options()
        options._timeout = _PATIENCE
        group: Any = torch.distributed.ProcessGroupNCCL(store, rank, meeting.world, options)
    else:
        group = torch.distributed.ProcessGroupGloo(store, rank, meeting.world, _PATIENCE)
    try:
        yield group
        # The sender hosts the store, which must stay until everyone has received all.
        group.barrier().wait()
    finally:
        group.shutdown()


def _buckets(layout: Sequence[Entry], limit: int) -> Iterator[list[Entry]]:
    """Yield consecutive entries of at most `limit` bytes together; a larger one alone."""
    bucket: list[Entry] = []
    held = 0
    for entry in layout:
        size = _places([entry])[1]
        if bucket and held + size > limit:
            yield bucket
            bucket, held = [], 0
        bucket.append(entry)
        held += size
    if bucket:
        yield bucket


def _places(entries: Sequence[Entry]) -> tuple[list[int], int]:
    """Return the offset of each entry in bytes, and the total size."""
    places, end = [], 0
    for _, shape, dtype in entries:
        places.append(end)
        size = torch.Size(shape).numel() * getattr(torch, dtype).itemsize
        end += -(-size // _ALIGNED) * _ALIGNED
    return places, end


def _view(bucket: Tensor, at: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    kind = getattr(torch, dtype)
    return bucket[at : at + torch.Size(shape).numel() * kind.itemsize].view(kind).view(shape)
