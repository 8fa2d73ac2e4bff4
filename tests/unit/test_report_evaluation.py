"""The report of an evaluation: what is reckoned for its pictures."""

from memagent.records import Turn
from pipelines.report.evaluation import over_the_span


def turn(step: int, tokens: int) -> Turn:
    ids = list(range(tokens))
    return Turn("r", 0, step, "update", "h", step, ids, "", ids, "", True, 1, 0, "stop", 0.0)


def test_a_memory_stands_until_the_next_one_is_written():
    found = over_the_span([turn(0, 1), turn(9, 20), turn(14, 30), turn(19, 30)])
    assert [share for share, _ in found] == [(place + 0.5) / 20 for place in range(20)]
    assert [tokens for _, tokens in found] == [1] * 10 + [20] * 5 + [30] * 5


def test_one_segment_has_one_memory():
    assert {tokens for _, tokens in over_the_span([turn(0, 7)])} == {7}
