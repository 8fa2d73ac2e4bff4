"""LoRA's factors as an adapter folder that PEFT loads: ``adapter_config.json`` and ``adapter_model.safetensors``."""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from memagent.rl.config import Recipe

_SUFFIXES = {".down": ".lora_A.weight", ".up": ".lora_B.weight"}
_PREFIX = "base_model.model."


def write_adapter(factors: dict[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Write low-rank factors (arXiv 2106.09685) under the names that PEFT gives them.

    Args:
        factors: by the names of `memagent.rl.model.adapt`: ``LAYER.down`` [rank, in] and ``LAYER.up`` [out, rank].
        recipe: model, rank and alpha.
        folder: is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_PREFIX + _named(name): tensor.contiguous() for name, tensor in factors.items()}
    layers = {name.rpartition(".")[0] for name in factors}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": recipe.model,
        "r": recipe.learner.lora_rank,
        "lora_alpha": recipe.learner.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)  # safetensors makes the file private to its owner


def _named(name: str) -> str:
    layer, _, factor = name.rpartition(".")
    return layer + _SUFFIXES[f".{factor}"]
