"""The report of an evaluation: what is reckoned for its pictures."""

import pyarrow as pa
import pytest

from memagent.records import Turn
from pipelines.report import evaluation
from pipelines.report.evaluation import draw, over_the_span


def turn(step: int, tokens: int) -> Turn:
    ids = list(range(tokens))
    return Turn("r", 0, step, "update", "h", step, ids, "", ids, "", True, 1, 0, "stop", 0.0)


def test_a_memory_stands_until_the_next_one_is_written():
    found = over_the_span([turn(0, 1), turn(9, 20), turn(14, 30), turn(19, 30)])
    assert [share for share, _ in found] == [(place + 0.5) / 20 for place in range(20)]
    assert [tokens for _, tokens in found] == [1] * 10 + [20] * 5 + [30] * 5


def test_one_segment_has_one_memory():
    assert {tokens for _, tokens in over_the_span([turn(0, 7)])} == {7}


@pytest.mark.parametrize(
    ("versions", "names"), [("aab", ["p@a", "p@a [run-1]", "p@b"]), ("aaa", ["p", "p [run-1]", "p [run-2]"])]
)
def test_two_versions_of_a_policy_are_lines_of_their_own(tmp_path, monkeypatch, versions, names):
    runs = [{"run_id": f"run-{n}", "policy_id": f"p@{one}", "method": "memagent"} for n, one in enumerate(versions)]
    row = {"length": 1_000, "score": 1.0, "depth": None, "tokens": None, "seconds": None, "confidence": None}
    monkeypatch.setattr(
        evaluation, "score_table", lambda store: pa.Table.from_pylist([{**run, "control": ""} for run in runs])
    )
    monkeypatch.setattr(evaluation, "run_results", lambda store, run_id: pa.Table.from_pylist([row]))
    seen = []
    monkeypatch.setattr(
        evaluation.pictures, "accuracy_by_length", lambda rows, folder: seen.extend(one["method"] for one in rows) or []
    )
    draw(None, [run["run_id"] for run in runs], tmp_path)
    assert seen == names
