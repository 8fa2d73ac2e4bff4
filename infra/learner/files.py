"""Model folders as the learner reads and writes them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "reading.json")
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
        (folder / file).chmod(0o644)  # safetensors makes it readable by its owner alone
    if len(shards) > 1:
        index = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(tensor.nbytes for tensor in weights.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _name(i: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{i + 1:05d}-of-{count:05d}.safetensors"
