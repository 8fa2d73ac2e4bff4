"""Model folders of the learner, and the parameters and optimiser states of a DeepSpeed engine as whole tensors."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from memagent.errors import TrainingError
from memagent.reading.scope import SCOPE_FILE
from memagent.rl.model import FACTORS, adapted

_COPIED = (
    *("generation_config.json", "reading.json", SCOPE_FILE),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
_SHARD_BYTES = 2 * 2**30


def write_model(weights: dict[str, Tensor], like: Path, folder: Path) -> None:
    """Write a model folder: weights of one data type beside the configuration and tokenizer of the folder `like`.

    Files are of a bounded size, with an index where there are several.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if (like / name).is_file():
            shutil.copyfile(like / name, folder / name)
    config = json.loads((like / "config.json").read_text(encoding="utf-8"))
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config |= dict.fromkeys({"dtype", "torch_dtype"} & config.keys() or {"dtype"}, dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_torch_state_dict(weights, folder, max_shard_size=_SHARD_BYTES)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors makes the file private to its owner


MOMENTS = ("exp_avg", "exp_avg_sq")


class States:
    """The parameters of a DeepSpeed engine and their optimiser states, gathered one tensor at a time."""

    def __init__(self, engine: Any, device: torch.device) -> None:
        """Wrap an engine with ZeRO, which keeps float32 weights of its own."""
        self._engine = engine
        self.device = device

    def parameters(self) -> list[tuple[str, Any]]:
        """Return the trained parameters by name."""
        named = self._engine.module.model.named_parameters()
        return [(name, parameter) for name, parameter in named if parameter.requires_grad]

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return name and shape of each tensor of `model_weights`."""
        named = self._engine.module.model.named_parameters()
        return [(name, whole_shape(one)) for name, one in named if not name.endswith(FACTORS)]

    def model_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's whole weights by their names in its folder; LoRA changes are merged in."""
        model = self._engine.module.model
        changed = adapted(model)
        for name, parameter in model.named_parameters():
            if name.endswith(FACTORS):
                continue
            weight = self.weight(parameter)
            if name in changed:
                layer = changed[name]
                weight = weight.float() + layer.scale * self.weight(layer.up).float() @ self.weight(layer.down).float()
            yield name, weight

    def weight(self, parameter: Any) -> Tensor:
        """Return the whole weight: in float32, or in the model's own data type if it is frozen."""
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        if not parameter.requires_grad:
            with deepspeed.zero.GatheredParameters([parameter]):
                kept: Tensor = parameter.detach().clone()
            return kept
        whole: Tensor = safe_get_full_fp32_param(parameter)
        return whole

    def moment(self, parameter: Any, name: str) -> Tensor:
        """Return the whole Adam moment `name`, which there is after the first step."""
        from deepspeed.utils import safe_get_full_optimizer_state

        whole: Tensor = safe_get_full_optimizer_state(parameter, name)
        return whole

    def restore(self, parameter: Any, weight: Tensor, moments: dict[str, Tensor], steps: int) -> None:
        """Restore a weight and its moments after `steps` optimiser steps."""
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        count = torch.tensor(float(steps))
        safe_set_full_fp32_param(parameter, weight.to(self.device))
        # That was the optimiser's copy; the forward pass uses another one.
        with torch.no_grad(), deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(weight)
        for name, moment in moments.items():
            safe_set_full_optimizer_state(parameter, moment.to(self.device), name)
        inner = getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)
        for state in inner.state.values():
            if "step" in state:
                state["step"] = count.clone()


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a parameter, also of a sharded one, which has no shape of its own."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


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

    def write(self, folder: Path) -> Iterator[Path]:
        """Write the share, a file whenever the next one is asked for: who uploads them needs room for one at a time.

        The index of all shares is last; rank 0 writes it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            file = folder / self.index.file(part, self.rank)
            save_file(self.tensors[part], file)
            yield file
        if self.rank == 0:
            (folder / INDEX).write_text(json.dumps(asdict(self.index)), encoding="utf-8")
            yield folder / INDEX


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """Where a checkpoint's tensors stand."""

    steps: int
    """Optimiser steps taken."""
    shards: int
    """Files of each part."""
    owners: dict[str, int]
    """Number of the file that has a parameter."""

    def file(self, part: str, shard: int) -> str:
        """Return the name of a file."""
        return f"{part}-{shard + 1:05d}-of-{self.shards:05d}.safetensors"

    def files_of(self, rank: int, world: int) -> list[str]:
        """Return the files that a rank of so many reads."""
        return [self.file(part, shard) for shard in range(rank, self.shards, world) for part in PARTS]

    def reader_of(self, name: str, world: int) -> int:
        """Return the rank of so many that reads a parameter."""
        return self.owners[name] % world


def read_index(data: bytes) -> SnapshotIndex:
    """Parse an index.

    Raises:
        ValueError: it is none.
    """
    try:
        return SnapshotIndex(**json.loads(data))
    except TypeError as error:
        raise ValueError(f"no index of a checkpoint: {error}") from error


def take(states: States, rank: int, world: int, steps: int) -> Snapshot:
    """Copy this rank's share of weights and moments to main memory. All ranks call it together."""
    sizes = [(name, math.prod(whole_shape(parameter))) for name, parameter in states.parameters()]
    index = SnapshotIndex(steps, world, share_out(sizes, world))
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, parameter in states.parameters():
        for part in PARTS:
            if part == "weights":
                whole = states.weight(parameter)
            else:
                whole = states.moment(parameter, part) if steps else torch.zeros(whole_shape(parameter))
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

    Each tensor is broadcast by the rank that read it. All ranks call it together. `prepare` makes the optimiser's
    states, once the files are known to be whole.

    Raises:
        TrainingError: the checkpoint is incomplete or of another model.
    """
    try:
        index = read_index((folder / INDEX).read_bytes())
        mine: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
        for file, part in zip(index.files_of(rank, world), cycle(PARTS), strict=False):
            mine[part].update(load_file(folder / file))
        prepare()
        for name, parameter in states.parameters():
            shape, reader = whole_shape(parameter), index.reader_of(name, world)
            own = {part: _spread(mine[part].pop(name, None), shape, reader, states.device) for part in PARTS}
            states.restore(parameter, own["weights"], {moment: own[moment] for moment in MOMENTS}, index.steps)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise TrainingError(f"checkpoint {folder} cannot be loaded: {type(error).__name__} {error}") from error
    return index.steps


def _spread(mine: Tensor | None, shape: tuple[int, ...], reader: int, device: torch.device) -> Tensor:
    """Return a tensor that one rank has read, on every rank; a KeyError or ValueError says what is wrong with it."""
    distributed: Any = torch.distributed
    alone = not distributed.is_initialized() or distributed.get_world_size() == 1
    reads = alone or distributed.get_rank() == reader
    if reads and mine is None:
        raise KeyError("a parameter is missing")
    if reads and mine is not None and tuple(mine.shape) != shape:
        raise ValueError(f"a weight has the shape {shape}, and the checkpoint's {tuple(mine.shape)}")
    whole = mine.to(device) if reads and mine is not None else torch.empty(shape, device=device)
    if not alone:
        distributed.broadcast(whole, reader)
    return whole
