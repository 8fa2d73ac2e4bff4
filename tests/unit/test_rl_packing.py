"""Packing loses nothing, keeps to its budget and is even."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.rl.packing import balance, items, pack
from tests.unit.rl_samples import group

LENGTHS = st.lists(st.integers(1, 400), max_size=60)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 600))
def test_every_conversation_is_packed_once_within_the_budget(lengths, ranks, budget):
    shares = balance(lengths, ranks, budget)
    assert len(shares) == ranks and len({len(share) for share in shares}) == 1
    bins = [bin_ for share in shares for bin_ in share]
    assert sorted(i for bin_ in bins for i in bin_) == list(range(len(lengths)))
    for bin_ in bins:
        assert len(bin_) <= 1 or sum(lengths[i] for i in bin_) <= budget


@given(st.lists(st.integers(90, 110), min_size=8, max_size=60))
def test_ranks_carry_about_the_same(lengths):
    loads = [sum(lengths[i] for bin_ in share for i in bin_) for share in balance(lengths, 2, 1000)]
    assert abs(loads[0] - loads[1]) <= 2 * max(lengths)


def test_nothing_to_pack_gives_every_rank_an_empty_micro_batch():
    assert balance([], 2, 10) == [[[]], [[]]]
    with pytest.raises(ValueError):
        balance([1], 0, 10)


@given(st.integers(0, 50))
def test_targets_are_the_responses(seed):
    flat = items(group([1, 0, 0], seed).trajectories)
    row = pack(flat)
    assert sum(row.lengths) == len(row.ids) == len(row.positions)
    said = [token for item in flat for token in item.conversation.response_ids]
    assert [row.ids[i] for i in row.targets] == said
    assert len(row.logprobs) == len(row.advantages) == row.response_tokens == len(said)
    begins = [0]
    for length in row.lengths[:-1]:
        begins.append(begins[-1] + length)
    assert [row.positions[i] for i in begins] == [0] * len(begins)
    assert not set(begins) & set(row.targets), "a first token has nothing before it to be predicted from"
