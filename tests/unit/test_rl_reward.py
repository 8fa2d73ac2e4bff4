"""Rewards pay for what they say, and only for that."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import ConfigError
from memagent.rl.config import load_recipe
from memagent.rl.reward import FUNCTIONS, Answered, check_rewards, overlong, reward, reward_code


def said(answer, gold, found=None, formed=True):
    return Answered(answer, bool(answer) if found is None else found, gold, formed)


@pytest.mark.parametrize(
    ("answer", "gold", "strict", "lenient"),
    [
        ("Paris", ["paris"], 1, 1),
        ("The city of Paris", ["Paris"], 0, 1),
        ("Lyon", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
        ("", [""], 1, 1),
        ("Paris", [""], 0, 0),
        ("1964", ["1"], 0, 0),
        ("the", ["Paris"], 0, 0),  # nothing is left of it after normalisation
    ],
)
def test_strict_and_lenient(answer, gold, strict, lenient):
    paid = reward(said(answer, gold), {"exact": 1.0})
    assert (paid.strict, paid.lenient, paid.total) == (strict, lenient, strict)


@pytest.mark.parametrize(
    ("answer", "gold", "value"), [("", [""], 1), ("x", [""], -1), ("", ["x"], -1), ("x", ["y"], 0), ("x", ["x"], 0)]
)
def test_abstention(answer, gold, value):
    assert FUNCTIONS["abstention"](said(answer, gold)) == value


def test_weights_add_up_and_parts_are_kept():
    paid = reward(said("red fox", ["red wolf"], formed=False), {"exact": 1.0, "f1": 0.5, "format": 0.1})
    assert paid.parts == {"exact": 0.0, "f1": pytest.approx(0.5), "format": 0.0}
    assert paid.total == pytest.approx(0.25)


def test_an_answer_of_articles_alone_is_not_a_right_not_found():
    assert reward(said("the", [""]), {"exact": 1.0, "contains": 1.0, "f1": 1.0}).total == 0


def test_no_gold_cannot_be_paid():
    with pytest.raises(ValueError, match="without gold"):
        reward(said("x", []), {"exact": 1.0})
    with pytest.raises(ConfigError, match="no reward function 'kindness'"):
        reward(said("x", ["x"]), {"kindness": 1.0})


def test_overlong_falls_linearly_to_minus_one():
    assert [overlong(n, 100, 20) for n in (0, 80, 90, 100, 120)] == [0, 0, -0.5, -1, -1]
    assert overlong(100, 100, 0) == 0


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 100))
def test_overlong_is_bounded_and_never_rises(length, limit, soft):
    assert -1 <= overlong(length + 1, limit, soft) <= overlong(length, limit, soft) <= 0


OWN = """
class Table:
    text = "no function"

def brief(said):
    return 1.0 if len(said.answer.split()) <= 2 else 0

def broken(said):
    return said.nothing

def words(said):
    return "one"
"""


def test_a_reward_of_ones_own_is_named_by_its_place(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(OWN)
    recipe = load_recipe("smoke", ['reward.weights={exact=1.0, "own_rewards:brief"=0.5}'])  # imports nothing yet
    with pytest.raises(ConfigError, match=r"'own_rewards:brief' cannot be imported: ModuleNotFoundError.*PYTHONPATH"):
        check_rewards(recipe.reward.weights)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_rewards(recipe.reward.weights)
    paid = reward(said("Paris", ["Paris"]), recipe.reward.weights)
    assert paid.total == 1.5 and paid.parts == {"exact": 1.0, "own_rewards:brief": 1.0}
    assert reward(said("it is Paris", ["Paris"]), recipe.reward.weights).total == 0.0
    (before,) = reward_code(recipe.reward.weights)
    (tmp_path / "own_rewards.py").write_text(OWN + "# changed\n")
    assert reward_code(recipe.reward.weights) != [before] and reward_code(["exact"]) == []
    for name, message in {
        "own_rewards:gone": "AttributeError",
        "own_rewards:broken": r"raised AttributeError.*of a right answer",
        "own_rewards:words": "returned 'one' of a right answer; a finite number is needed",
        "own_rewards:__name__": "is a str, not a function",
    }.items():
        with pytest.raises(ConfigError, match=message):
            check_rewards([name])
    del sys.modules["own_rewards"]  # another test has one of this name
