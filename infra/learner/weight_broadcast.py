"""Weights from the learner's first rank to all engines over a process group: NCCL between GPUs, gloo between CPUs.

A process group is made for each version and left again, so engines may join and leave in between. Weights travel in
buckets of whole tensors; neither side holds more than one bucket besides its model.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

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
