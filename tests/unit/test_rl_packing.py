"""Packing loses nothing, keeps to its budget and is even."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.rl.packing import PackedItem, Unit, balance, gradient_shares, items, pack, units
from memagent.rl.reward import Reward
from memagent.rl.trajectory import Conversation, Trajectory
from tests.support.rl_samples import alike, conversation, group, trajectory

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


def alone(flat):
    return [Unit((item,)) for item in flat]


@given(st.integers(0, 50))
def test_targets_are_the_responses(seed):
    flat = items(group([1, 0, 0], seed).trajectories)
    row = pack(alone(flat))
    assert sum(sum(block) for block in row.blocks) == len(row.ids) == len(row.positions)
    said = [token for item in flat for token in item.conversation.response_ids]
    assert [row.ids[i] for i in row.targets] == said
    assert len(row.logprobs) == len(row.advantages) == len(row.targets) == len(said)
    begins = [0]
    for block in row.blocks[:-1]:
        begins.append(begins[-1] + sum(block))
    assert [row.positions[i] for i in begins] == [0] * len(begins)
    assert not set(begins) & set(row.targets), "a first token has nothing before it to be predicted from"


@given(st.integers(0, 200), st.integers(50, 900))
def test_sharing_keeps_every_conversation_and_computes_fewer_tokens(seed, budget):
    flat = alike(random.Random(seed), 12)
    made = units(flat, budget)
    key = lambda item: (item.conversation.prompt_ids, item.conversation.response_ids, item.advantage)  # noqa: E731
    assert sorted(map(key, flat)) == sorted(key(item) for unit in made for item in unit.items)
    for unit in made:
        assert len(unit.items) == 1 or unit.tokens <= budget
        for item in unit.items:
            assert unit.shared < len(item.conversation.prompt_ids), "the last token of a prompt is each one's own"
            assert item.conversation.prompt_ids[: unit.shared] == unit.items[0].conversation.prompt_ids[: unit.shared]
        row = pack([unit])
        assert len(row.ids) == unit.tokens == sum(row.blocks[0])
        said = [token for item in unit.items for token in item.conversation.response_ids]
        assert [row.ids[i] for i in row.targets] == said
        places = [p for item in unit.items for p in range(len(item.conversation.prompt_ids), item.conversation.tokens)]
        assert [row.positions[i] for i in row.targets] == places
    whole = sum(item.conversation.tokens for item in flat)
    assert sum(unit.tokens for unit in made) <= whole
    assert units(flat, budget, share=False) == alone(flat)
    if budget > 800:
        assert sum(unit.tokens for unit in made) < whole / 2


def test_a_shared_prefix_is_as_long_as_it_can_be():
    same = [PackedItem(Conversation([*range(40), last], [1], [0.0], "update"), 0.0) for last in (7, 8)]
    assert [unit.shared for unit in units(same, 1000)] == [40]
    twins = [PackedItem(Conversation([*range(40)], [said], [0.0], "update"), 0.0) for said in (7, 8)]
    assert [unit.shared for unit in units(twins, 1000)] == [39]
    short = [PackedItem(Conversation([1, 2, 3], [said], [0.0], "answer"), 0.0) for said in (7, 8)]
    assert [unit.shared for unit in units(short, 1000)] == [0, 0]


@pytest.mark.parametrize("head", [10, 38, 200])
def test_a_common_head_does_not_hide_the_longer_prefixes_behind_it(head):
    """All prompts of a template begin alike; the rollouts of a group share the section behind that as well."""
    rng = random.Random(head)
    start = [rng.randrange(1000) for _ in range(head)]
    flat = []
    for _ in range(5):
        section = [rng.randrange(1000) for _ in range(400)]
        for rollout in range(16):
            memory = [1000 + rollout, *(rng.randrange(1000) for _ in range(40))]
            flat.append(PackedItem(Conversation([*start, *section, *memory], [1, 2], [0.0, 0.0], "update"), 0.0))
    rng.shuffle(flat)
    made = units(flat, 10_000)
    assert sorted(len(unit.items) for unit in made) == [16] * 5
    assert {unit.shared for unit in made} == {head + 400}
    computed = sum(unit.tokens for unit in made)
    assert sum(item.conversation.tokens for item in flat) > 6 * computed


def test_with_equal_trajectories_each_has_the_same_sum_of_weights_over_its_tokens():
    rng = random.Random(0)
    trajectories = [replace(trajectory(rng, 1.0, conversations=(n, n)), advantage=a) for n, a in ((1, 1.0), (6, -1.0))]
    plain, equal = items(trajectories), items(trajectories, 0.0)
    assert [item.advantage for item in plain] == [1.0] + [-1.0] * 6
    sums = {}
    for item in equal:
        sign = 1 if item.advantage > 0 else -1
        sums[sign] = sums.get(sign, 0.0) + item.advantage * len(item.conversation.response_ids)
    mean = sum(one.response_tokens for one in trajectories) / 2
    assert sums == {1: pytest.approx(mean), -1: pytest.approx(-mean)}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.sampled_from([1.0, 0.5, 0.0]), st.integers(0, 9))
def test_a_trajectory_weighs_as_its_tokens_to_the_power(conversations, power, seed):
    rng = random.Random(seed)
    made = [replace(trajectory(rng, 1.0, conversations=(n, n)), advantage=1.0) for n in conversations]
    weights = [sum(one.advantage * len(one.conversation.response_ids) for one in part) for part in _parts(made, power)]
    assert sum(weights) == pytest.approx(sum(one.response_tokens for one in made)), "the mean is over all tokens"
    powers = [one.response_tokens**power for one in made]
    assert weights == pytest.approx([sum(weights) * value / sum(powers) for value in powers])


def _parts(trajectories, power):
    flat = iter(items(trajectories, power))
    return [[next(flat) for _ in one.conversations] for one in trajectories]


def test_a_trajectory_that_is_split_gains_weight_by_token_less_by_root_and_none_by_trajectory():
    """What splitting a reading into twice as many conversations, of as many tokens each, changes of the gradient."""
    rng = random.Random(0)
    said = [conversation(rng, response=(4, 4)) for _ in range(6)]
    short, long = (Trajectory("s", 0, tuple(said[:n]), Reward(1.0, 1.0, 1.0), advantage=1.0) for n in (2, 4))
    share = {power: gradient_shares([short, long], items([short, long], power)) for power in (1.0, 0.5, 0.0)}
    assert share[1.0] == pytest.approx({2: 1 / 3, 4: 2 / 3})
    root = 2**0.5
    assert share[0.5] == pytest.approx({2: 1 / (1 + root), 4: root / (1 + root)})
    assert share[0.0] == pytest.approx({2: 0.5, 4: 0.5})
    nothing = [replace(short, advantage=0.0)]
    assert gradient_shares(nothing, items(nothing)) == {}
