"""Group-relative advantages, dynamic sampling and minibatches."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.rl.reward import Reward
from memagent.rl.rollout import Batch, pass_rate
from memagent.rl.trajectory import Group, advantages, from_dict, minibatches, with_advantages
from tests.support.rl_samples import group

REWARDS = st.lists(st.floats(-2, 2), min_size=2, max_size=16)


def test_hand_made_groups():
    assert advantages([1, 0, 0, 1]) == [0.5, -0.5, -0.5, 0.5]
    assert advantages([1, 0, 0, 0], "rloo") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert advantages([1, 0], "mean-std") == pytest.approx([1, -1], abs=1e-5)


@given(REWARDS)
def test_advantages_sum_to_zero_and_keep_the_order(rewards):
    for baseline in ("mean", "mean-std", "rloo"):
        values = advantages(rewards, baseline)
        assert math.fsum(values) == pytest.approx(0, abs=1e-6)
        pairs = sorted(zip(rewards, values, strict=True))
        assert all(a[1] <= b[1] + 1e-12 for a, b in itertools.pairwise(pairs))


@given(REWARDS)
def test_rloo_is_the_reward_above_the_mean_of_the_others(rewards):
    n = len(rewards)
    for i, value in enumerate(advantages(rewards, "rloo")):
        others = [reward for j, reward in enumerate(rewards) if j != i]
        assert value == pytest.approx(rewards[i] - math.fsum(others) / (n - 1), abs=1e-9)


@given(st.floats(-5, 5), st.integers(2, 16))
def test_equal_rewards_give_exactly_nothing(value, n):
    for baseline in ("mean", "mean-std", "rloo"):
        assert advantages([value] * n, baseline) == [0.0] * n


@pytest.mark.parametrize("rewards", [[1.0], [], [1.0, math.nan], [math.inf, 0.0]])
def test_what_cannot_be_compared_is_refused(rewards):
    with pytest.raises(ValueError):
        advantages(rewards)


def test_every_conversation_of_a_trajectory_gets_its_advantage():
    from memagent.rl.packing import items

    paid = with_advantages(group([1, 0, 0], conversations=(2, 4)))
    flat = items(paid.trajectories)
    assert len(flat) == sum(len(t.conversations) for t in paid.trajectories)
    expected = [t.advantage for t in paid.trajectories for _ in t.conversations]
    assert [item.advantage for item in flat] == expected


def test_longer_trajectories_weigh_no_more_in_the_baseline():
    short = with_advantages(group([1, 0], conversations=(1, 1)))
    long = with_advantages(group([1, 0], conversations=(9, 9)))
    assert [t.advantage for t in short.trajectories] == [t.advantage for t in long.trajectories]


def test_equal_groups_are_dropped_and_refilled():
    batch = Batch(size=2)
    assert batch.missing == 2
    assert not batch.take(group([1, 1])) and not batch.take(group([0, 0]))
    assert batch.take(group([1, 0])) and batch.missing == 1
    assert batch.take(group([0, 1])) and batch.missing == 0
    assert (batch.all_right, batch.all_wrong, len(batch.kept), batch.seen) == (1, 1, 2, 4)
    with pytest.raises(ValueError, match="full"):
        batch.take(group([1, 0]))


def test_half_right_is_not_right_and_a_date_in_another_format_is():
    batch = Batch(size=1)
    for score in (0.5, 1.0):
        paid = Reward(score, 0.0, 0.0, {"task": score})
        batch.take(Group("s", tuple(replace(one, reward=paid) for one in group([0, 0]).trajectories)))
    assert (batch.all_right, batch.all_wrong) == (1, 1)


def test_a_policy_that_is_right_everywhere_ends_the_sampling():
    batch = Batch(size=4, most=6)
    while batch.missing:
        batch.take(group([1, 1]))
    assert batch.seen == 6 and not batch.kept


def test_failed_groups_count_towards_the_limit():
    batch = Batch(size=2, most=3, failed=3)
    assert batch.missing == 0


def test_equal_groups_can_be_kept():
    batch = Batch(size=1, keep_equal=True)
    assert batch.take(group([0, 0]))


def test_minibatches_hold_whole_groups():
    groups = [group([1, 0, 1], sample=f"s{i}") for i in range(5)]
    parts = list(minibatches(groups, 2))
    assert [len(part) for part in parts] == [6, 6, 3]
    assert [t.sample_id for part in parts for t in part] == [f"s{i}" for i in range(5) for _ in range(3)]


def test_pass_rate_counts_rollouts():
    assert pass_rate([group([1, 0]), group([0, 0])]) == 0.25
    assert pass_rate([]) == 0.0


def test_a_recorded_trajectory_comes_back():
    one = group([1, 0]).trajectories[0]
    assert from_dict(json.loads(json.dumps(one.as_dict()))) == one


def test_tokens_without_log_probabilities_are_refused():
    from memagent.rl.trajectory import Conversation

    with pytest.raises(ValueError, match="log-probabilities"):
        Conversation([1], [2, 3], [-0.1], "update")
