"""LoRA's factors as a file for other tools: what they add to the model is what was trained."""

import json

import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from infra.learner.rank import write_adapter
from memagent.rl.config import load_recipe
from memagent.rl.model import FACTORS, adapt, adapted


def small_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=False,
        )
    )


def trained(model: Qwen2ForCausalLM, rank: int, alpha: float) -> dict[str, torch.Tensor]:
    """Give a model factors as training would leave them; return them by name."""
    adapt(model, rank, alpha)
    for name, parameter in model.named_parameters():
        if name.endswith(FACTORS):
            torch.nn.init.normal_(parameter, std=0.1)
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def test_an_adapter_adds_what_was_trained_under_pefts_names(tmp_path):
    recipe = load_recipe("smoke", ["learner.lora_rank=3", "learner.lora_alpha=12.0"])
    plain, model = small_model(), small_model()
    factors = trained(model, 3, 12.0)
    write_adapter(factors, recipe, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"]) == ("LORA", "CAUSAL_LM", 3, 12)
    layers = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == layers and config["base_model_name_or_path"] == "nano"
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2
    for name, layer in adapted(model).items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        down, up = tensors.pop(f"{path}.lora_A.weight"), tensors.pop(f"{path}.lora_B.weight")
        plain.get_parameter(name).data += config["lora_alpha"] / config["r"] * up @ down
        assert down.shape == (3, layer.weight.shape[1]) and up.shape == (layer.weight.shape[0], 3)
    assert not tensors
    ids = torch.arange(20)[None]
    assert torch.allclose(plain(ids).logits, model(ids).logits, atol=1e-5)
