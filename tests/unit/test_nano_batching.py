"""Trees: a branch's states are those of the same turn alone, and losses sit on the right tokens."""

import random

import pytest
import torch

from examples.nano.batching import Example, Tree, Weights, collate, grow
from examples.nano.model import Qwen2, Shape

SHAPE = Shape(vocab=64, hidden=64, layers=2, heads=2, inner=96)
QUIET = Weights(prompt_share=0.0)


def _ids(rng, n):
    return [rng.randrange(9, 64) for _ in range(n)]


@pytest.fixture
def turns():
    rng = random.Random(0)
    bare = [1, *_ids(rng, 20), 2]
    examples = [Example([*bare, *_ids(rng, n), 3], [*_ids(rng, m), 0], "kind") for n, m in ((5, 1), (9, 4), (3, 7))]
    return bare, examples


def test_a_tree_is_its_turns(turns):
    bare, examples = turns
    tree = grow(examples, bare)
    assert tree.prefix == bare
    assert [tree.prefix + branch.prompt for branch in tree.branches] == [e.prompt for e in examples]
    assert [branch.response for branch in tree.branches] == [e.response for e in examples]


def test_branches_see_their_segment_and_themselves_only(turns):
    bare, examples = turns
    model = Qwen2(SHAPE, seed=1)
    batch = collate([grow(examples, bare), grow(examples[::-1], bare)], random.Random(0), QUIET, pad=8)
    together = model.logits(model(batch.rows)[batch.select])
    alone = []
    for example in [*examples, *examples[::-1]]:
        one = collate([Tree([], [example])], random.Random(0), QUIET, pad=8)
        alone.append(model.logits(model(one.rows)[one.select]))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_losses_are_on_the_responses(turns):
    bare, examples = turns
    batch = collate([grow(examples, bare)], random.Random(0), QUIET, pad=8)
    assert batch.target.tolist() == [token for e in examples for token in e.response]
    assert batch.owner.tolist() == [i for i, e in enumerate(examples) for _ in e.response]
    assert batch.rows.ids[batch.select].tolist() == [
        token for e in examples for token in (e.prompt + e.response)[len(e.prompt) - 1 : -1]
    ]
    first = [weight for i, e in enumerate(examples) for weight in [QUIET.first] + [1.0] * (len(e.response) - 1)]
    assert batch.weight.tolist() == first


def test_some_prompt_tokens_have_a_small_loss(turns):
    bare, examples = turns
    batch = collate([grow(examples, bare)], random.Random(0), Weights(prompt_share=0.5, prompt=0.25), pad=8)
    own = batch.owner < 0
    assert 10 <= int(own.sum()) <= 25
    assert set(batch.weight[own].tolist()) == {0.25}
    assert batch.target[own].tolist() == batch.rows.ids[batch.select[own] + 1].tolist()


def test_too_long_a_sequence_is_refused(turns):
    long = Example([1] * 200, [0], "kind")
    with pytest.raises(ValueError, match="longer than 128"):
        collate([Tree([], [long])], random.Random(0), QUIET, pad=8)
