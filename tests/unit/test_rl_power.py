"""The power that a promotion check states before it reads, against simulated checks."""

import numpy
import pytest

from memagent.rl.promotion import (
    PlannedGroup,
    QuestionGroup,
    decide,
    documents_needed,
    level,
    power,
    state,
)
from tests.unit.test_clustered import drawn


def promoted(rng, documents, questions, gain, alpha, correlation=0.1):
    differences, which = drawn(rng, documents, questions, gain, correlation)
    ours, theirs = (differences > 0).astype(float), (differences < 0).astype(float)
    group = QuestionGroup("questions", tuple(ours), tuple(theirs), tuple(map(str, which)))
    return decide([group], alpha, 0.1)["promoted"]


def test_the_documents_that_are_needed_find_five_points_four_times_in_five():
    """200 runs: fewer than 140 promotions have a probability below 0.1% if the power is 80%."""
    alpha, rng = level(0.025, 1), numpy.random.default_rng(3)
    documents = documents_needed(20, alpha=alpha)
    assert sum(promoted(rng, documents, 20, 0.05, alpha) for _ in range(200)) >= 140
    assert sum(promoted(rng, documents, 20, 0.0, alpha) for _ in range(200)) <= 10


def test_more_documents_and_fewer_on_each_tell_more():
    few, many = PlannedGroup((20,) * 50), PlannedGroup((1,) * 1000)
    assert power([few], alpha=0.015) < power([PlannedGroup((20,) * 100)], alpha=0.015) < 1
    assert power([few], alpha=0.015) < power([many], alpha=0.015)
    assert power([few], alpha=0.015, correlation=0.0) == pytest.approx(power([many], alpha=0.015), abs=0.05)
    assert power([few, many], alpha=0.015) <= power([many], alpha=0.015) + 0.1
    assert documents_needed(1, alpha=0.015, gain=0.0001) is None
    with pytest.raises(ValueError, match="needs samples"):
        power([], alpha=0.015)


def test_too_few_questions_are_said_before_reading():
    record = state([PlannedGroup((6,) * 13)], alpha=0.025, look=2, correlation=0.1)
    assert record["power"] < 0.2 and record["alpha"] == pytest.approx(level(0.025, 2))
    assert (
        "n=78 in 13 documents, candidate 2" in record["warning"]
        and "with 6 each, it takes 254 documents" in record["warning"]
    )
    assert state([PlannedGroup((1,) * 2000)], alpha=0.025, look=1, correlation=0.1)["warning"] == ""
