"""The model is Qwen2: our logits are those of transformers, and it copies before any training."""

import json
import random

import pytest
import torch

from examples.nano.export import config
from examples.nano.model import Qwen2, Rows, Shape

SHAPE = Shape(vocab=128, hidden=128, layers=3, heads=4, inner=192)


def _one_row(ids):
    return Rows(torch.tensor(ids), torch.tensor([0]), 0, 1, len(ids))


def test_logits_equal_those_of_transformers():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    ours = Qwen2(SHAPE, seed=2).eval()
    theirs = Qwen2ForCausalLM(Qwen2Config(**json.loads(json.dumps(config(SHAPE, 0, 8))))).float().eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected and missing == ["lm_head.weight"]
    theirs.tie_weights()
    ids = torch.randint(9, 128, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        mine = ours.logits(ours(_one_row(ids)))
        other = theirs(torch.tensor([ids])).logits[0].float()
    torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_a_new_model_repeats_what_it_has_seen():
    shape = Shape(vocab=1000)
    model = Qwen2(shape, seed=3)
    run = torch.randperm(900, generator=torch.Generator().manual_seed(1))[:60].tolist()
    with torch.no_grad():
        said = model.logits(model(_one_row(run + run))).argmax(-1)[63:-1]
    right = (said == torch.tensor(run[4:])).float().mean()
    assert right > 0.5, "the copying circuit of the initial weights does not work"


@pytest.mark.parametrize("between", [1, 2, 3, 4])
def test_a_new_model_finds_a_value_by_a_key_further_back(between):
    """Values with the same tokens before them: only the key tells which one follows."""
    model, rng = Qwen2(Shape(), seed=1), random.Random(0)
    right = 0
    for _ in range(60):
        same = [rng.randrange(20, 3000) for _ in range(between)]
        pairs = [([rng.randrange(20, 3000), rng.randrange(20, 3000)], rng.randrange(20, 3000)) for _ in range(4)]
        run = []
        for key, value in pairs:
            run += [rng.randrange(20, 3000) for _ in range(20)] + key + same + [value]
        key, value = rng.choice(pairs)
        with torch.no_grad():
            said = model.logits(model(_one_row(run + key + same))[-1:]).argmax(-1).item()
        right += said == value
    assert right > 30, f"{right} of 60 right, and guessing gives 15"


def test_the_seed_decides_the_weights():
    one, same, other = (Qwen2(SHAPE, seed).state_dict() for seed in (1, 1, 2))
    name = "model.layers.2.mlp.up_proj.weight"
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])


@pytest.mark.parametrize("lengths", [[5, 16], [16, 1]])
def test_positions_go_on_where_the_prefix_ends(lengths):
    rows = Rows(torch.zeros(2 * 16 + 2 * 3 * 4, dtype=torch.long), torch.tensor(lengths), 16, 3, 4)
    place = rows.positions()
    assert place[:32].tolist() == [*range(16), *range(16)]
    branches = place[32:].view(2, 3, 4)
    for row, length in enumerate(lengths):
        for branch in branches[row]:
            assert branch.tolist() == list(range(length, length + 4))
