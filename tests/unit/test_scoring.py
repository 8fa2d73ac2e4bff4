import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.scoring import containment, exact_match, f1, mean, normalise, score


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
        ("the", [""], 1, 1, 1),
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


def test_failures_stay_in_the_average():
    by_name = {one.metric: one for one in score([("a b", ["a b"]), (None, ["x"]), (None, [""])])}
    assert by_name["exact match"].n == 3
    assert by_name["exact match"].value == pytest.approx(1 / 3)


def test_wilson_interval():
    one = mean("m", [1.0] * 90 + [0.0] * 10)
    assert (round(one.low, 3), round(one.high, 3)) == (0.826, 0.945)
    assert mean("m", []).n == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_the_interval_holds_the_mean(values):
    one = mean("m", values)
    assert 0 <= one.low <= one.value + 1e-9 and one.value - 1e-9 <= one.high <= 1


@given(st.text())
def test_normalising_twice_changes_nothing_more_for_plain_words(text):
    once = normalise(text)
    assert normalise(once) == once or any(word in ("a", "an", "the") for word in once.split())
