"""Small model folders for tests: a tokenizer, a configuration, and weights that tell versions apart."""

import json
from pathlib import Path

import numpy
from safetensors.numpy import save_file

from infra.store.policies import Provenance
from tests.support.texts import toy_tokenizer


def provenance(parent: str = "", run_id: str = "run") -> Provenance:
    """Return a made-up provenance."""
    return Provenance(parent, run_id, 3, {"steps": 2}, {"reward": 0.5}, "abc")


def model(folder: Path, number: int = 0) -> Path:
    """Write a whole model folder; `number` is its weights."""
    folder.mkdir(parents=True)
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    reading = {"template": "nano", "layout": "section-first", "gate": True, "segment_tokens": 128}
    texts = {
        "config.json": {"model_type": "qwen2", "max_position_embeddings": 1024},
        "generation_config.json": {},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "reading.json": reading | {"memory_tokens": 64, "answer_tokens": 32},
    }
    for name, data in texts.items():
        (folder / name).write_text(json.dumps(data))
    save_file({"weight": numpy.full(4, number, numpy.float32)}, folder / "model.safetensors")
    return folder
