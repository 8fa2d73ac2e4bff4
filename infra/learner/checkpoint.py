"""Model folders of the learner, and the parameters and optimiser states of a DeepSpeed engine as whole tensors."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from memagent.rl.model import FACTORS, adapted

_COPIED = (
    *("config.json", "generation_config.json", "reading.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
_SHARD_BYTES = 2 * 2**30
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def data_types(folder: Path) -> dict[str, torch.dtype]:
    """Return the data types of the weights that a folder holds, by name."""
    found: dict[str, torch.dtype] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a mapping
                found[name] = _DTYPES.get(opened.get_slice(name).get_dtype(), torch.float32)
    return found


def write_model(weights: dict[str, Tensor], like: Path, folder: Path) -> None:
    """Write a model folder: new weights beside the configuration and tokenizer of the folder `like`.

    Files are of a bounded size, with an index where there are several.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if (like / name).is_file():
            shutil.copyfile(like / name, folder / name)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > _SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files = [_name(i, len(shards)) for i in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # safetensors makes the file private to its owner
    if len(shards) > 1:
        index = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(tensor.nbytes for tensor in weights.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _name(i: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{i + 1:05d}-of-{count:05d}.safetensors"


MOMENTS = ("exp_avg", "exp_avg_sq")


class States:
    """The parameters of a DeepSpeed engine and their optimiser states, gathered one tensor at a time."""

    def __init__(self, engine: Any, device: torch.device, *, sharded: bool) -> None:
        """Wrap an engine; `sharded` says that DeepSpeed keeps float32 weights of its own."""
        self._engine = engine
        self.device = device
        self._sharded = sharded

    def parameters(self) -> list[tuple[str, Any]]:
        """Return the trained parameters by name."""
        named = self._engine.module.model.named_parameters()
        return [(name, parameter) for name, parameter in named if parameter.requires_grad]

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return name and whole shape of each trained parameter."""
        return [(name, self.shape(parameter)) for name, parameter in self.parameters()]

    @staticmethod
    def shape(parameter: Any) -> tuple[int, ...]:
        """Return the whole shape of a parameter, which may be sharded."""
        return tuple(_shape(parameter))

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return name and shape of each tensor of `model_weights`."""
        named = self._engine.module.model.named_parameters()
        return [(name, tuple(_shape(one))) for name, one in named if not name.endswith(FACTORS)]

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
        whole: Tensor | None = safe_get_full_fp32_param(parameter) if self._sharded else None
        return parameter.detach() if whole is None else whole

    def moment(self, parameter: Any, name: str) -> Tensor:
        """Return the whole Adam moment `name`; zeros before the first step."""
        from deepspeed.utils import safe_get_full_optimizer_state

        zeros = torch.zeros(tuple(_shape(parameter)))
        if not self._sharded:
            kept: Tensor = self._engine.optimizer.state.get(parameter, {}).get(name, zeros)
            return kept
        whole: Tensor | None = safe_get_full_optimizer_state(parameter, name)
        return zeros if whole is None else whole

    def restore(self, parameter: Any, weight: Tensor, moments: dict[str, Tensor], steps: int) -> None:
        """Restore a weight and its moments after `steps` optimiser steps."""
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        count = torch.tensor(float(steps))
        if not self._sharded:
            with torch.no_grad():
                parameter.copy_(weight)
            kept = {name: moment.clone().to(self.device) for name, moment in moments.items()}
            self._engine.optimizer.state[parameter] = {**kept, "step": count}
            return
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


def _shape(parameter: Any) -> Any:
    # A sharded parameter has no shape of its own.
    return getattr(parameter, "ds_shape", parameter.shape)
