import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.evaluation.metrics import (
    MATCHES,
    METRICS,
    containment,
    exact_match,
    f1,
    normalise,
    string_match_all,
    string_match_part,
)
from memagent.evaluation.stats import balanced_accuracy, mean, paired


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "contains", "token_f1"),
    [
        ("Paris", ["Paris"], 1, 1, 1),
        ("the Paris.", ["paris"], 1, 1, 1),
        ("the", ["Paris"], 0, 0, 0),
        ("1", ["1964"], 0, 0, 0),
        ("1964", ["1"], 0, 0, 0),
        ("in the year 1964", ["1964"], 0, 1, 0.5),
        ("", ["Paris"], 0, 0, 0),
        ("", [""], 1, 1, 1),
        ("something", [""], 0, 0, 0),
        ("the", [""], 0, 0, 0),
        ("", ["the"], 0, 0, 0),
        ("The", ["a"], 0, 0, 0),
        ("B.", ["b"], 1, 1, 1),
        ("A.", ["a"], 1, 1, 1),
        ("?", [""], 0, 0, 0),
        ("", ["?"], 0, 0, 0),
        ("?", ["!"], 0, 0, 0),
        ("?", ["?"], 1, 1, 1),
        ("New York, USA", ["London", "New York"], 0, 1, 0.8),
        ("Zürich", ["zürich"], 1, 1, 1),
        ("état", ["etat"], 0, 0, 0),
        ("a cat sat", ["cat sat mat"], 0, 0, 0.8),
    ],
)
def test_by_hand(prediction, gold, em, contains, token_f1):
    assert exact_match(prediction, gold) == em
    assert containment(prediction, gold) == contains
    assert f1(prediction, gold) == pytest.approx(token_f1, abs=1e-9)


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "contains", "token_f1"),
    [
        ("答案是李小龙。", "李小龙", 0, 1, 2 * 3 / 9),
        ("「李小龙」！", "李小龙", 1, 1, 1),
        ("李龙", "李小龙", 0, 0, 2 * 2 / 5),
        ("东京、Osaka，Kyoto", "osaka", 0, 1, 2 / 5),
        ("ＡＢＣ－１２３", "abc-123", 1, 1, 1),
        ("１，０００円", "1000円", 1, 1, 1),
        ("A社", "社", 0, 1, 2 / 3),
        ("答えは東京です", "東京", 0, 1, 2 * 2 / 9),
        ("คำตอบคือกรุงเทพ", "กรุงเทพ", 0, 1, 2 * 7 / 23),
        ("¿Dónde? «Münster»…", "dónde münster", 1, 1, 1),
        ("Jose\u0301", "José", 1, 1, 1),
        ("O\u2019Hara", "O'Hara", 1, 1, 1),
        ("O\u00b4Hara", "O\u02bcHara", 1, 1, 1),
        ("\u22127", "-7", 1, 1, 1),
        ("soft\u00adware", "soft\u200bware", 1, 1, 1),
        ("STRASSE", "Straße", 1, 1, 1),
        ("ΟΔΟΣ", "οδος", 1, 1, 1),
    ],
)
def test_other_languages_and_forms_of_characters(prediction, gold, em, contains, token_f1):
    assert exact_match(prediction, [gold]) == em
    assert containment(prediction, [gold]) == contains
    assert f1(prediction, [gold]) == pytest.approx(token_f1)


@given(st.text())
@settings(deadline=None)
def test_an_empty_answer_is_right_only_where_there_is_none(text):
    for metric in (exact_match, containment, f1, string_match_part, string_match_all):
        assert metric("", [text]) == metric("", [text, text]) == float(not text.strip())


def test_wilson_interval():
    one = mean("m", [1.0] * 90 + [0.0] * 10)
    assert (round(one.low, 3), round(one.high, 3)) == (0.826, 0.945)
    assert mean("m", []).n == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
@settings(deadline=None)
def test_the_interval_holds_the_mean(values):
    one = mean("m", values)
    assert 0 <= one.low <= one.value + 1e-9 and one.value - 1e-9 <= one.high <= 1


@given(st.text())
@settings(deadline=None)
def test_normalising_twice_changes_nothing_more_for_plain_words(text):
    once = normalise(text)
    assert normalise(once) == once or {"a", "an", "the"} & set(re.findall(r"\w+", once)), "articles go"


@pytest.mark.parametrize(
    ("prediction", "gold", "everything", "part"),
    [
        ("Paris", ["paris"], 1, 1),
        ("PARIS and Rome", ["Paris", "Rome"], 1, 1),
        ("Paris", ["Paris", "Rome"], 0.5, 1),
        ("the", ["Paris"], 0, 0),
        ("1", ["1964"], 0, 0),
        ("in 1964", ["1"], 1, 1),
        ("I do not know", ["no"], 1, 1),
        ("U.S.", ["US"], 0, 0),
        ("ZÜRICH", ["zürich"], 1, 1),
        ("", ["Paris"], 0, 0),
        ("", [""], 1, 1),
        ("Paris", [""], 0, 0),
        (" ", [""], 1, 1),
        ("Paris", [], 0, 0),
    ],
)
def test_string_match_by_hand(prediction, gold, everything, part):
    assert string_match_all(prediction, gold) == everything
    assert string_match_part(prediction, gold) == part


def published_string_match(prediction, gold):
    found = [1.0 if reference.lower() in prediction.lower() else 0.0 for reference in gold]
    return sum(found) / len(found), max(found)


words = st.lists(
    st.sampled_from(["the", "a", "Paris", "paris.", "1964", "1", "new-york", "Zürich", "état", "no", "not", "“no”"])
).map(" ".join)
filled = st.lists(words.filter(str.strip), min_size=1, max_size=4)


@given(words, filled)
@settings(deadline=None)
def test_agreement_with_the_published_definitions(prediction, gold):
    assert (string_match_all(prediction, gold), string_match_part(prediction, gold)) == pytest.approx(
        published_string_match(prediction, gold)
    )


@given(st.text(), st.lists(st.text(), max_size=4))
@settings(deadline=None)
def test_every_metric_is_a_share_and_blind_to_the_order_of_gold(prediction, gold):
    for metric in {**METRICS, **MATCHES}.values():
        assert 0 <= metric(prediction, gold) <= 1
        assert metric(prediction, gold) == pytest.approx(metric(prediction, gold[::-1]))
    assert string_match_part(prediction, gold) >= string_match_all(prediction, gold)


def test_a_failure_stays_in_the_average():
    assert mean("m", [1.0, None]).value == 0.5


def test_rounding_does_not_break_the_interval():
    one = mean("m", [1 + 1e-16] * 3 + [1.0000000000000002] * 100_000)
    assert one.low <= one.high <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
@settings(max_examples=50, deadline=None)  # numpy is imported when it is first needed
def test_pairs_are_symmetric_and_blind_to_order(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other, back = paired(a, b, draws=200), paired(b, a, draws=200), paired(a[::-1], b[::-1], draws=200)
    assert one == back
    assert (one["difference"], one["p"], one["better"]) == (-other["difference"], other["p"], other["worse"])
    assert one["low"] == pytest.approx(-other["high"])
    assert -1 <= one["low"] <= one["difference"] <= one["high"] <= 1
    assert 0 < one["p"] <= 1


@given(st.lists(st.floats(0, 1), max_size=40))
@settings(deadline=None)
def test_a_run_does_not_differ_from_itself(values):
    same = paired(values, values)
    assert (same["difference"], same["p"], same["better"], same["worse"]) == (0, 1, 0, 0)


def test_right_and_wrong_give_the_exact_mcnemar_test():
    # 8 better, 1 worse: two-sided binomial, 2 * (1 + 9) / 2**9.
    one = paired([1.0] * 8 + [0.0] + [1.0] * 20, [0.0] * 8 + [1.0] + [1.0] * 20)
    assert (one["method"], one["n"], one["better"], one["worse"]) == ("exact", 29, 8, 1)
    assert one["p"] == pytest.approx(20 / 512)


def test_students_interval():
    # Differences 1, 2, 3, 4, 5 tenths: mean 0.3, deviation 0.158114, t(4) = 2.77645.
    one = paired([0.1, 0.2, 0.3, 0.4, 0.5], [0.0] * 5)
    assert one["difference"] == pytest.approx(0.3)
    assert one["high"] - one["difference"] == pytest.approx(2.77645 * 0.158114 / 5**0.5, abs=1e-5)
    assert one["p"] == pytest.approx(2 / 2**5)


@pytest.mark.parametrize(("n", "t"), [(6, 2.57058), (11, 2.22814), (31, 2.04227), (128, 1.97882)])
def test_student_against_the_tables(n, t):
    values = [0.5 + 0.01 * (-1) ** i for i in range(n)]
    one = paired(values, [0.5] * n)
    deviation = statistics.stdev(value - 0.5 for value in values)
    assert one["high"] - one["difference"] == pytest.approx(t * deviation / n**0.5, rel=2e-3)


def test_many_different_sizes_are_drawn_and_near_the_exact_value():
    sizes = [0.01 * (i + 1) for i in range(14)]
    signs = [1, 1, 1, -1, 1, 1, -1, 1, 1, 1, -1, 1, 1, 1]
    a = [0.5 + sign * size for sign, size in zip(signs, sizes, strict=True)]
    exact = paired(a, [0.5] * 14)
    # Two differences too small to matter make it too many to count.
    drawn = paired([*a, 0.5 + 1e-9, 0.5 - 1.1e-9], [0.5] * 16)
    assert (exact["method"], drawn["method"]) == ("exact", "monte carlo")
    assert drawn["p"] == pytest.approx(exact["p"], abs=0.02)
    assert drawn == paired([*a, 0.5 + 1e-9, 0.5 - 1.1e-9], [0.5] * 16)
    assert paired([0.5 + 0.001 * i for i in range(1, 40)], [0.0] * 39, draws=500)["p"] == pytest.approx(1 / 501)


def test_pairs_of_failures_and_of_unlike_runs():
    assert paired([None, 1.0], [1.0, None])["difference"] == 0
    assert paired([], [])["p"] == 1
    one = paired([1.0], [0.0])
    assert (one["low"], one["high"], one["p"]) == (0.0, 1.0, 1.0)
    with pytest.raises(ValueError):
        paired([1.0], [])
    assert paired([1.0], [0.0])["n"] == 1


def test_a_constant_answer_gets_one_half():
    verdicts = [(True, True)] * 5 + [(False, False)] * 95
    one = balanced_accuracy(verdicts)
    assert (one.value, one.n) == (0.5, 100)
    assert 0 < one.low < 0.5 < one.high < 1
    assert balanced_accuracy([(True, True)]) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
@settings(deadline=None)
def test_balanced_accuracy_is_within_its_interval(verdicts):
    one = balanced_accuracy(verdicts)
    assert one == balanced_accuracy(verdicts[::-1])
    assert (one is None) == (len({gold for gold, _ in verdicts}) < 2)
    if one is not None:
        assert 0 <= one.low <= one.value + 1e-9 and one.value - 1e-9 <= one.high <= 1


@given(st.integers(1, 400), st.integers(0, 400))
def test_a_mean_stands_in_its_interval(n: int, right: int) -> None:
    one = mean("share", [1.0] * min(n, right) + [0.0] * max(0, n - right))
    assert 0.0 <= one.low <= one.value <= one.high <= 1.0
