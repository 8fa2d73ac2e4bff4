"""What a promotion check reads and which look it is."""

from memagent.evaluation.suites import Suite
from memagent.rl.promotion import PromotionSpec, decide
from pipelines.promote import _groups, _look, _names, _planned
from pipelines.promotion_questions import PromotionTarget, Questions


def record(incumbent, *tested_on):
    return {"incumbent": incumbent, "tested_on": list(tested_on)}


def rows(*records):
    return [{"promotion": one} for one in records]


def test_candidates_that_were_compared_with_the_same_policy_on_the_same_samples_count():
    mine = ["needles-1", "text-1", "text-2"]
    assert _look(rows(None), "toy@a", mine) == 1
    others = [record("toy@a", "text-2", "text-9"), record("toy@a", "text-8"), record("toy@b", "text-1")]
    assert _look(rows(None, *others), "toy@a", mine) == 2


def test_needles_of_another_seed_are_other_samples():
    questions = Questions(None, {})

    def names(seed, n, *lengths):
        return set(_names({"needles": Suite("needles", kinds=("niah",), lengths=lengths, n=n, seed=seed)}, questions))

    assert names(1, 4, 400) == names(1, 9, 400) < names(1, 4, 400, 800) and not names(1, 4, 400) & names(2, 4, 400)
    assert _names({}, Questions(None, {}, {}, ("0123456789abcdef",))) == ["0123456789ab"]


def results(scores):
    return [{"sample_id": name, "length": length, "answer": "", "score": score} for name, length, score in scores]


def test_questions_that_stood_before_the_incumbent_are_a_group_once_more():
    asked = {
        "q1": PromotionTarget("questions of a", "d1", True),
        "q2": PromotionTarget("questions of a", "d1", False),
        "q3": PromotionTarget("questions of a", "d2", True),
        "q4": PromotionTarget("questions of b", "d3", True),
    }
    questions = Questions(None, {}, asked)
    scores = results([("q1", 0, 1.0), ("q2", 0, 0.0), ("q3", 0, 1.0), ("q4", 0, 1.0), ("n1", 400, 1.0), ("n2", 40, 0)])
    groups = _groups(PromotionSpec(), questions, scores, scores)
    assert [(group.name, len(group.candidate), group.part, group.small) for group in groups] == [
        ("needles at 40 tokens", 1, False, "refuse"),
        ("needles at 400 tokens", 1, False, "refuse"),
        ("questions of a", 3, False, "refuse"),
        ("earlier questions of a", 2, True, "observe"),
        ("questions of b", 1, False, "refuse"),
    ]
    assert groups[2].documents == ("d1", "d1", "d2") and groups[0].documents == ("n2",)
    assert [group.margin for group in groups] == [0.1, 0.1, 0.05, 0.05, 0.05]


def test_power_is_planned_for_what_will_be_read():
    suites = {"needles": Suite("needles", kinds=("niah_single_1", "niah_single_2"), lengths=(400, 800), n=5)}
    asked = {f"q{i}": PromotionTarget("questions of a", f"d{i % 3}") for i in range(7)}
    planned = _planned(suites, PromotionSpec(), Questions(None, {}, asked))
    assert [sum(group.sizes) for group in planned] == [10, 10, 7] and sorted(planned[2].sizes) == [2, 2, 3]
    assert planned[0].margin == 0.1 and planned[2].margin == 0.05


def test_a_batch_of_wrong_gold_does_not_hide_what_it_costs():
    """The candidate learnt wrong gold of 20 new documents, is asked for it, and is worse on what stood before."""
    asked, ours, theirs = {}, [], []
    for i in range(600):
        earlier = i < 200
        asked[f"q{i}"] = PromotionTarget("questions of a", f"{'old' if earlier else 'new'} {i % 20}", earlier)
        ours.append((f"q{i}", 0, 0.6 if earlier else 0.9))
        theirs.append((f"q{i}", 0, 0.8 if earlier else 0.1))
    groups = _groups(PromotionSpec(), Questions(None, {}, asked), results(ours), results(theirs))
    decision = decide(groups, 0.015)
    assert decision["overall"]["difference"] > 0.4 and decision["overall"]["p"] < 0.001
    assert not decision["promoted"] and decision["reason"].startswith("worse on earlier questions of a: −0.200")
    assert decide(groups[:1], 0.015)["promoted"]
