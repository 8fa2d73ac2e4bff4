"""The promotion check's decision: from paired scores to a promotion or a refusal with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.config import validate
from memagent.errors import ConfigError
from memagent.rl.promotion import PromotionSpec, QuestionGroup, decide, level, too_few

scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]))
pairs = st.lists(st.tuples(scores, scores), max_size=30)


def scored(name, candidate, incumbent, questions=1, **options):
    """A group with so many questions on each document."""
    documents = tuple(f"{name} {i // questions}" for i in range(len(candidate)))
    return QuestionGroup(name, tuple(candidate), tuple(incumbent), documents, **options)


def group(name, pairs):
    return scored(name, [a for a, _ in pairs], [b for _, b in pairs])


def test_a_better_candidate_is_promoted():
    short = scored("needles at 2,032 tokens", [1.0] * 100, [1.0] * 80 + [0.0] * 20)
    long = scored("needles at 32,512 tokens", [1.0] * 100, [1.0] * 100)
    record = decide([short, long], 0.025)
    assert record["promoted"] and record["reason"].startswith("better: +0.100 [+0.06, +0.14], n=200 in 200 documents")
    assert [one["name"] for one in record["groups"]] == [short.name, long.name]
    assert (record["overall"]["candidate"], record["overall"]["incumbent"], record["overall"]["n"]) == (1.0, 0.9, 200)
    assert record["groups"][1]["p_margin"] < 0.025 and record["groups"][1]["documents"] == 100


def test_noise_is_refused_with_its_numbers():
    decision = decide([scored("questions", [1.0] * 101 + [0.0] * 99, [1.0] * 100 + [0.0] * 100)], 0.025)
    assert not decision["promoted"]
    assert decision["reason"] == "not better beyond chance: +0.005 [−0.00, +0.01], n=200 in 200 documents, p=0.5"


def test_questions_of_one_document_are_no_independent_evidence():
    right, wrong = [1.0] * 60 + [0.0] * 60, [0.0] * 120
    assert decide([scored("questions", right, wrong)], 0.025)["promoted"]
    assert not decide([scored("questions", right, wrong, questions=20)], 0.025)["promoted"]


def test_needles_do_not_hide_that_users_questions_halve():
    """What was promoted before: ten of ten questions right, then five of ten."""
    needles = scored("needles at 2,032 tokens", [1.0] * 100, [0.0] * 100)
    for small in ("refuse", "observe"):
        users = scored("questions of contracts", [1.0] * 5 + [0.0] * 5, [1.0] * 10, small=small)
        decision = decide([needles, users], 0.025)
        assert not decision["promoted"] and decision["reason"].startswith("worse on questions of contracts: −0.500")


def test_a_group_that_got_worse_outweighs_the_mean():
    won, lost = scored("short", [1.0] * 100, [0.0] * 100), scored("long", [1.0] * 80 + [0.0] * 20, [1.0] * 100)
    decision = decide([won, lost], 0.025)
    assert not decision["promoted"]
    assert decision["reason"].startswith("worse on long: −0.200") and "short" not in decision["reason"]


def test_a_loss_that_is_not_ruled_out_is_refused():
    won = scored("short", [1.0] * 100, [0.0] * 100)
    even = scored("long", [1.0, 0.0] * 50, [0.0, 1.0] * 50)
    decision = decide([won, even], 0.025)
    assert decision["reason"].startswith("a loss is not ruled out on long: +0.000") and not decision["promoted"]
    assert decide([won, scored("long", [1.0, 0.0] * 50, [1.0, 0.0] * 50)], 0.025)["promoted"]


def test_a_group_of_few_questions_is_refused_or_observed():
    won, few = scored("needles", [1.0] * 100, [0.0] * 100), [1.0] * 10
    assert decide([won, scored("questions", few, few)], 0.025)["reason"].startswith(
        "too few to rule out a loss on questi"
    )
    assert decide([won, scored("questions", few, few, small="observe")], 0.025)["promoted"]
    documents = [f"document {i}" for i in range(100)]
    assert too_few(documents[:60], 0.05, 0.025, 0.1) and not too_few(documents, 0.05, 0.025, 0.1)
    assert too_few(documents[:10] * 10, 0.05, 0.025, 0.1)  # a hundred questions on ten documents


def test_a_part_of_a_group_is_tested_and_not_counted_again():
    both = scored("questions", [1.0] * 200, [1.0] * 100 + [0.0] * 100)
    part = scored("earlier questions", [0.0] * 100, [1.0] * 100, part=True)
    decision = decide([both, part], 0.025)
    assert decision["overall"]["n"] == 200 and decision["overall"]["difference"] == 0.5
    assert decision["reason"].startswith("worse on earlier questions: −1.000") and not decision["promoted"]


def test_failures_count_as_wrong():
    failed = decide([scored("questions", [None] * 8, [1.0] * 8)], 0.025)
    wrong = decide([scored("questions", [0.0] * 8, [1.0] * 8)], 0.025)
    assert (failed["promoted"], failed["reason"]) == (wrong["promoted"], wrong["reason"])
    assert failed["groups"][0]["candidate_failed"] == 8


def test_no_data_is_an_error():
    for empty in ([], [scored("questions", [], [])], [QuestionGroup("questions", (1.0,), (1.0, 0.0), ("a",))]):
        with pytest.raises(ValueError, match="samples that both"):
            decide(empty, 0.025)


@given(st.lists(pairs, min_size=1, max_size=3).filter(any))
def test_one_that_is_not_better_is_never_promoted(rows):
    groups = [group(f"group {i}", one) for i, one in enumerate(rows) if one]
    decision = decide(groups, 0.025)
    sums = [(sum(a or 0.0 for a, _ in one), sum(b or 0.0 for _, b in one)) for one in rows]
    if sum(a for a, _ in sums) <= sum(b for _, b in sums):
        assert not decision["promoted"]
    if decision["promoted"]:
        assert decision["overall"]["p"] < 0.025
        assert all(one["p_margin"] < 0.025 for one in decision["groups"])
    turned = decide(
        [QuestionGroup(one.name, one.incumbent, one.candidate, one.documents) for one in groups],
        0.025,
    )
    assert not (decision["promoted"] and turned["promoted"])


def test_further_candidates_pay_for_further_looks():
    levels = [level(0.025, look) for look in range(1, 2001)]
    assert levels[0] == pytest.approx(0.0152, abs=1e-4) and levels == sorted(levels, reverse=True)
    assert 0.0249 < sum(levels) < 0.025


def test_the_lengths_follow_the_segments_of_the_reader():
    assert PromotionSpec().lengths_for(254) == (2032, 32512)
    assert PromotionSpec(lengths=(400, 800)).lengths_for(254) == (400, 800)
    with pytest.raises(ConfigError, match=r"check\.alpha"):
        validate(PromotionSpec, {"alpha": 2}, "check.")
    with pytest.raises(ConfigError, match="no such key"):
        validate(PromotionSpec, {"lenghts": [1]}, "check.")
