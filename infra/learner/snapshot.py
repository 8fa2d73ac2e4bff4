"""Checkpoints of a learner: each rank writes a share of the whole tensors, and reads a share of the files.

Files hold whole tensors, so that a training resumes with any number of ranks and any sharding; and no rank holds,
writes or fetches more than its share.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from infra.learner.checkpoint import MOMENTS, States
from memagent.errors import TrainingError

INDEX = "learner.json"
PARTS = ("weights", *MOMENTS)
"""What is kept of each parameter."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's share of a checkpoint, in main memory: training may go on while it is written."""

    tensors: dict[str, dict[str, Tensor]]
    """Part -> name of a parameter -> whole tensor in float32."""
    rank: int
    index: "SnapshotIndex"

    def write(self, folder: Path) -> list[Path]:
        """Write the share; return its files, the index of all shares last, which rank 0 writes."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / self.index.file(part, self.rank) for part in PARTS]
        for file, part in zip(files, PARTS, strict=True):
            save_file(self.tensors[part], file)
        if self.rank == 0:
            files.append(folder / INDEX)
            data = {"steps": self.index.steps, "shards": self.index.shards, "owners": self.index.owners}
            files[-1].write_text(json.dumps(data), encoding="utf-8")
        return files


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """Where a checkpoint's tensors stand."""

    steps: int
    """Optimiser steps taken."""
    shards: int
    """Files of each part; 0: one, as the first version wrote it."""
    owners: dict[str, int] = field(default_factory=dict)
    """Number of the file that has a parameter."""

    def file(self, part: str, shard: int) -> str:
        """Return the name of a file."""
        return f"{part}-{shard + 1:05d}-of-{self.shards:05d}.safetensors" if self.shards else f"{part}.safetensors"

    def files_of(self, rank: int, world: int) -> list[str]:
        """Return the files that a rank of so many reads."""
        return [self.file(part, shard) for shard in range(rank, max(1, self.shards), world) for part in PARTS]

    def reader_of(self, name: str, world: int) -> int:
        """Return the rank of so many that reads a parameter."""
        return self.owners.get(name, 0) % world


def read_index(data: bytes) -> SnapshotIndex:
    """Parse an index.

    Raises:
        ValueError: it is none.
    """
    stored = json.loads(data)
    return SnapshotIndex(int(stored["steps"]), int(stored.get("shards", 0)), dict(stored.get("owners", {})))


def take(states: States, rank: int, world: int, steps: int) -> Snapshot:
    """Copy this rank's share of weights and moments to main memory. All ranks call it together."""
    sizes = [(name, torch.Size(shape).numel()) for name, shape in states.shapes()]
    index = SnapshotIndex(steps, world, share_out(sizes, world))
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, parameter in states.parameters():
        for part in PARTS:
            whole = states.weight(parameter) if part == "weights" else states.moment(parameter, part)
            if index.owners[name] == rank:
                tensors[part][name] = whole.detach().to("cpu", torch.float32, copy=True).contiguous()
    return Snapshot(tensors, rank, index)


def share_out(sizes: Sequence[tuple[str, int]], world: int) -> dict[str, int]:
    """Share parameters out over ranks, the largest first, each to the rank that has the least."""
    held = [0] * world
    owners = {}
    for name, size in sorted(sizes, key=lambda item: (-item[1], item[0])):
        owner = held.index(min(held))
        owners[name] = owner
        held[owner] += size
    return owners


def restore(states: States, folder: Path, rank: int, world: int, prepare: Callable[[], None]) -> int:
    """Load a checkpoint of which `folder` has at least this rank's files; return the optimiser steps taken.

    Each tensor is broadcast by the rank that read it. All ranks call it together.

    Args:
        states: of the engine.
        folder: with `INDEX` and the files of `Index.files_of`.
        rank: of this process. world: how many there are.
        prepare: makes the optimiser's states, once the files are known to be whole.

    Raises:
        TrainingError: the checkpoint is incomplete or of another model.
    """
    try:
        index = read_index((folder / INDEX).read_bytes())
        files = iter(index.files_of(rank, world))
        mine: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
        for file, part in zip(files, _repeated(PARTS), strict=False):
            mine[part].update(load_file(folder / file))
        prepare()
        for name, parameter in states.parameters():
            shape, reader = states.shape(parameter), index.reader_of(name, world)
            own = {part: _spread(mine[part].pop(name, None), shape, reader, states.device) for part in PARTS}
            states.restore(parameter, own["weights"], {moment: own[moment] for moment in MOMENTS}, index.steps)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise TrainingError(f"checkpoint {folder} cannot be loaded: {type(error).__name__} {error}") from error
    return index.steps


def _repeated(parts: Sequence[str]) -> Iterator[str]:
    while True:
        yield from parts


def _spread(mine: Tensor | None, shape: Sequence[int], reader: int, device: torch.device) -> Tensor:
    """Return a tensor that one rank has read, on every rank.

    Raises:
        KeyError: the reader does not have it.
        ValueError: its shape is another.
    """
    distributed: Any = torch.distributed
    alone = not distributed.is_initialized() or distributed.get_world_size() == 1
    reads = alone or distributed.get_rank() == reader
    if reads and mine is None:
        raise KeyError("a parameter is missing")
    if reads and mine is not None and tuple(mine.shape) != tuple(shape):
        raise ValueError(f"a weight has the shape {tuple(shape)}, and the checkpoint's {tuple(mine.shape)}")
    whole = mine.to(device) if reads and mine is not None else torch.empty(tuple(shape), device=device)
    if not alone:
        distributed.broadcast(whole, reader)
    return whole
