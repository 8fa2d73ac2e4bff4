"""The plan's arithmetic against real models: parameters, states and activations of a rank."""

import json
from dataclasses import replace

import pytest
import torch

from memagent.rl.config import Recipe
from memagent.rl.footprint import FAMILIES, ModelShape, rank_memory
from memagent.rl.model import load_model

TOKENS = 512
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def config(kind, **sizes):
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **{**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, **sizes})


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_as_transformers_makes_them(kind, tied):
    from transformers import AutoModelForCausalLM

    made = config(kind, tie_word_embeddings=tied, head_dim=16, pad_token_id=0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    shape = ModelShape.of(json.loads(made.to_json_string()))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def activations(shape, learner):
    parts = rank_memory(shape, Recipe.model_validate({"learner": learner}))
    return next(part.bytes for part in parts if part.name == "activations")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_a_real_forward_pass_keeps(tmp_path, dtype, checkpointing):
    from transformers import Qwen2ForCausalLM

    made = config("qwen2")
    Qwen2ForCausalLM(made).save_pretrained(tmp_path)
    model = load_model(tmp_path, getattr(torch, dtype), checkpointing=checkpointing).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    ids = torch.arange(TOKENS) % 300
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, torch.arange(TOKENS), [(TOKENS,)], torch.arange(TOKENS - 4, TOKENS))
    learner = {"dtype": dtype, "token_budget": TOKENS, "activation_checkpointing": checkpointing}
    shape = ModelShape.of(json.loads(made.to_json_string()))
    expected = activations(shape, learner)
    if checkpointing:  # one layer is computed again in the backward pass, after this
        plain = {**learner, "activation_checkpointing": False}
        expected -= activations(replace(shape, layers=shape.layers + 1), plain) - activations(shape, plain)
    measured = sum(size for size, _ in kept.values())
    assert expected == pytest.approx(measured, rel=0.1)
