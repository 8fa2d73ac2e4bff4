"""Writing a trained reader as a model folder in Hugging Face format."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from examples.nano.model import Shape
from examples.nano.sft import newest_checkpoint
from examples.nano.tokenizer import CONTROL
from memagent.errors import UsageError
from memagent.reading.tokens import load_tokenizer
from memagent.records import Json

WINDOW = 1024
READING: Json = {
    "template": "nano",
    "layout": "section-first",
    "gate": True,
    "segment_tokens": 254,
    "boundary": "soft",
    "memory_tokens": 64,
    "answer_tokens": 64,
    "parallel_spans": 1,
}
"""How the model reads; written as ``reading.json``."""


def export(run: Path, out: Path) -> Path:
    """Write the newest checkpoint of the run in folder `run` to `out`, weights in bfloat16.

    A ``README.md`` that stands in `out` is left as it is.

    Raises:
        UsageError: the run has no checkpoint.
    """
    newest = newest_checkpoint(run)
    if newest is None:
        raise UsageError(f"{run} holds no checkpoint yet. Train first: python -m examples.nano train --out {run}")
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(torch.bfloat16) for name, w in load_file(newest / "model.safetensors").items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    shutil.copyfile(run / "tokenizer.json", out / "tokenizer.json")
    tokenizer = load_tokenizer(str(out))
    shape = Shape(vocab=tokenizer.vocab_size)
    _write(out / "config.json", config(shape, tokenizer.id("<|end|>") or 0, tokenizer.id("<|pad|>") or 0))
    _write(out / "generation_config.json", {"eos_token_id": tokenizer.id("<|end|>"), "do_sample": False})
    _write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "additional_special_tokens": [token for token in CONTROL if token not in ("<|end|>", "<|pad|>")],
            "clean_up_tokenization_spaces": False,
            "model_max_length": WINDOW,
        },
    )
    _write(out / "reading.json", READING)
    return out


def config(shape: Shape, end: int, pad: int) -> Json:
    """Return the model's ``config.json``."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.inner,
        "hidden_act": "silu",
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
    }


def _write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
