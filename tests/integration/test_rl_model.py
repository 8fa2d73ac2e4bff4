"""Packed rows give what unpacked ones give."""

import json
import random

import pytest
import torch

from examples.nano.export import config
from examples.nano.model import Shape
from memagent.errors import UsageError
from memagent.nano import bundled
from memagent.rl import model as head
from memagent.rl.footprint import FAMILIES
from memagent.rl.model import TokenHead, load_model
from memagent.rl.packing import Unit, items, pack, units
from tests.support.rl_samples import alike, group


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    shape = Shape(vocab=64, hidden=32, layers=2, heads=4, inner=48)
    made = config(shape, 0, 1) | {"num_key_value_heads": 2, "torch_dtype": "float32"}
    Qwen2ForCausalLM(Qwen2Config(**json.loads(json.dumps(made)))).save_pretrained(path)
    return path


def score(model, row, temperature=1.0):
    return model(torch.tensor(row.ids), torch.tensor(row.positions), row.blocks, torch.tensor(row.targets), temperature)


def alone(flat):
    return pack([Unit((item,)) for item in flat])


def test_packed_equals_unpacked(folder):
    model = load_model(folder)
    flat = items(group([1, 0, 1, 0], 3).trajectories)
    together, entropy = score(model, alone(flat))
    apart = [score(model, alone([item])) for item in flat]
    torch.testing.assert_close(together, torch.cat([part[0] for part in apart]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.cat([part[1] for part in apart]), atol=1e-5, rtol=1e-5)


def test_gradients_of_packed_rows_equal_those_of_unpacked_ones(folder):
    flat = items(group([1, 0], 5).trajectories)
    packed, single = load_model(folder), load_model(folder)
    score(packed, alone(flat))[0].sum().backward()
    for item in flat:
        score(single, alone([item]))[0].sum().backward()
    for (name, one), two in zip(packed.named_parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_shared_gives_the_same_probabilities_and_gradients(folder, checkpointing):
    flat = alike(random.Random(1), 9)
    made = units(flat, 10_000)
    assert any(unit.shared for unit in made)
    shared, single = load_model(folder, checkpointing=checkpointing), load_model(folder)
    shared.train()
    together = score(shared, pack(made))[0]
    apart = score(single, alone([item for unit in made for item in unit.items]))[0]
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 1, len(together))
    (together * weights).sum().backward()
    (apart * weights).sum().backward()
    for (name, one), two in zip(shared.named_parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_a_conversation_is_scored_as_transformers_scores_it(folder):
    from transformers import Qwen2ForCausalLM

    flat = items(group([1, 0], 7).trajectories)
    ours = score(load_model(folder), alone(flat), temperature=0.7)[0].tolist()
    theirs = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = []
    for item in flat:
        said = item.conversation
        with torch.no_grad():
            logits = theirs(torch.tensor([said.prompt_ids + said.response_ids])).logits[0] / 0.7
        every = logits.log_softmax(-1)
        start = len(said.prompt_ids)
        expected += [every[start + i - 1, token].item() for i, token in enumerate(said.response_ids)]
    assert ours == pytest.approx(expected, abs=1e-5)


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
OWN = {
    "gemma3_text": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 8,
    },
    "mistral": {"sliding_window": 8},
    "phi3": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}
"""What makes attention of a family its own: windows that are shorter than the conversations."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_scored_as_by_its_own_attention(family, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **OWN.get(family, {})))
    made.save_pretrained(tmp_path)
    flat = alike(random.Random(2), 9)
    together = units(flat, 10_000)
    assert any(unit.shared for unit in together)
    ours = score(load_model(tmp_path), pack(together))[0].tolist()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    expected = []
    for said in (item.conversation for unit in together for item in unit.items):
        assert len(said.prompt_ids) > 16, "longer than the window"
        with torch.no_grad():
            logits = theirs(torch.tensor([said.prompt_ids + said.response_ids])).logits[0]
        every, start = logits.log_softmax(-1), len(said.prompt_ids)
        expected += [every[start + i - 1, token].item() for i, token in enumerate(said.response_ids)]
    assert ours == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "granite", "gpt_oss"])
def test_a_model_of_another_family_is_refused_with_those_that_are_trained(family, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=f"{family}.*cannot be trained.*qwen2"):
        load_model(tmp_path)


def test_checkpointing_changes_nothing(folder):
    row = alone(items(group([1, 0], 9).trajectories))
    plain, saving = load_model(folder), load_model(folder, checkpointing=True)
    saving.train()
    for model in (plain, saving):
        score(model, row)[0].sum().backward()
    for one, two in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_the_head_scores_like_softmax_and_has_its_gradients(monkeypatch, rows, bias):
    monkeypatch.setattr(head, "_LOGITS_BYTES", rows * 4 * 11)
    torch.manual_seed(0)
    linear = torch.nn.Linear(5, 11, bias=bias)
    states, ids, weight = torch.randn(7, 5, requires_grad=True), torch.randint(0, 11, (7,)), torch.randn(7)
    scores, entropy = TokenHead(linear)(states, ids, 0.7)
    every = torch.log_softmax(linear(states) / 0.7, -1)
    torch.testing.assert_close(scores, every.gather(-1, ids[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(every.exp() * every).sum(-1).detach())
    assert not entropy.requires_grad
    parameters = [states, *linear.parameters()]
    ours = torch.autograd.grad((scores * weight).sum(), parameters)
    theirs = torch.autograd.grad((every.gather(-1, ids[:, None])[:, 0] * weight).sum(), parameters)
    torch.testing.assert_close(ours, theirs)


def test_a_head_without_targets_has_zero_gradients():
    linear = torch.nn.Linear(5, 11)
    scores, _ = TokenHead(linear)(torch.randn(0, 5), torch.zeros(0, dtype=torch.long))
    scores.sum().backward()
    assert linear.weight.grad is not None and not linear.weight.grad.any()


def test_the_entropy_is_that_of_the_next_token(folder):
    model = load_model(folder)
    with torch.no_grad():
        model.model.lm_head.weight.zero_()
        _, entropy = score(model, alone(items(group([1, 0], 2).trajectories)))
    torch.testing.assert_close(entropy, torch.full_like(entropy, float(torch.log(torch.tensor(64.0)))))


def test_the_bundled_reader_loads():
    model = load_model(bundled())
    rng = random.Random(0)
    flat = items(group([1, 0], rng.randrange(9)).trajectories)
    assert torch.isfinite(score(model, alone(flat))[0]).all()


def test_an_incomplete_folder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="safetensors"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_model(tmp_path)
