"""The gate's decision: from paired scores to a promotion or a refusal with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.config import validate
from memagent.errors import ConfigError
from memagent.rl.promotion import GateSpec, Group, decide

scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]))
pairs = st.lists(st.tuples(scores, scores), max_size=30)


def group(name, pairs):
    return Group(name, tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def test_a_better_candidate_is_promoted():
    short = Group("needles at 2,032 tokens", (1.0,) * 20, (1.0,) * 10 + (0.0,) * 10)
    long = Group("needles at 32,512 tokens", (1.0,) * 20, (1.0,) * 20)
    decision = decide([short, long], 0.05)
    assert decision.promoted and decision.reason.startswith("better: +0.250 [+0.11")
    assert decision.reason.endswith("n=40, p=0.002")
    said = decision.as_dict()
    assert [one["name"] for one in said["groups"]] == [short.name, long.name]
    assert (said["overall"]["candidate"], said["overall"]["incumbent"], said["overall"]["n"]) == (1.0, 0.75, 40)


def test_noise_is_refused_with_its_numbers():
    decision = decide([Group("questions", (1.0, 1.0, 0.0, 1.0), (1.0, 0.0, 1.0, 0.0))], 0.05)
    assert not decision.promoted
    assert decision.reason == "not better beyond noise: +0.250 [−1.00, +1.00], n=4, p=1"


def test_the_worse_one_is_named_so():
    decision = decide([Group("questions", (0.0,) * 8, (1.0,) * 8)], 0.05)
    assert not decision.promoted
    assert decision.reason.startswith("worse: −1.000 [−1.00, −1.00], n=8, p=0.0078; worse on questions: ")


def test_a_group_that_got_worse_outweighs_the_mean():
    won, lost = Group("short", (1.0,) * 40, (0.0,) * 40), Group("long", (0.0,) * 8, (1.0,) * 8)
    decision = decide([won, lost], 0.05)
    assert not decision.promoted
    assert decision.reason.startswith("worse on long: −1.000") and "short" not in decision.reason


def test_failures_count_as_wrong():
    failed = decide([Group("questions", (None,) * 8, (1.0,) * 8)], 0.05)
    wrong = decide([Group("questions", (0.0,) * 8, (1.0,) * 8)], 0.05)
    assert (failed.promoted, failed.reason) == (wrong.promoted, wrong.reason)
    assert failed.as_dict()["groups"][0]["candidate_failed"] == 8


def test_no_data_is_an_error():
    for empty in ([], [Group("questions", (), ())], [Group("questions", (1.0,), (1.0, 0.0))]):
        with pytest.raises(ValueError, match="samples that both"):
            decide(empty, 0.05)


@given(st.lists(pairs, min_size=1, max_size=3).filter(any))
def test_one_that_is_not_better_is_never_promoted(found):
    groups = [group(f"group {i}", one) for i, one in enumerate(found)]
    decision = decide(groups, 0.05)
    sums = [(sum(a or 0.0 for a, _ in one), sum(b or 0.0 for _, b in one)) for one in found]
    if sum(a for a, _ in sums) <= sum(b for _, b in sums):
        assert not decision.promoted
    if decision.promoted:
        assert decision.overall.paired().p < 0.05
        assert all(one.paired().difference >= 0 or one.paired().p >= 0.05 for one in groups)
    turned = decide([Group(one.name, one.incumbent, one.candidate) for one in groups], 0.05)
    assert not (decision.promoted and turned.promoted)


@given(pairs.filter(bool), st.randoms())
def test_the_order_of_samples_does_not_matter(found, random):
    mixed = random.sample(found, len(found))
    assert decide([group("a", found)], 0.05).reason == decide([group("a", mixed)], 0.05).reason


def test_the_lengths_follow_the_segments_of_the_reader():
    assert GateSpec().lengths_for(254) == (2032, 32512)
    assert GateSpec(lengths=(400, 800)).lengths_for(254) == (400, 800)
    with pytest.raises(ConfigError, match=r"gate\.alpha"):
        validate(GateSpec, {"alpha": 2}, "gate.")
    with pytest.raises(ConfigError, match="no such key"):
        validate(GateSpec, {"lenghts": [1]}, "gate.")
