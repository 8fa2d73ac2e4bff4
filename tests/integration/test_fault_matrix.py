"""The fault matrix, without its faults: what is counted of trials, those that fail among them."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import faults
from benchmarks.fault_trials import Outcome, Scene


class Archive:
    """Gives every trial a folder of its own."""

    engine = "scripted"

    def __init__(self, base):
        self._base = base

    def scene(self, name, rng):
        (self._base / name).mkdir()
        return Scene(self._base / name, self._base, self.engine, calm={}, after=rng.randrange(10))


@pytest.fixture
def trials(monkeypatch):
    """A case that comes to something else each time, the third time to an error of any class."""
    outcomes = iter([Outcome(1, 0, 0, 0.004, 2.0), Outcome(0, 2, 0, 0.012, 5.0), KeyError("answers")])

    def trial(scene):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setitem(faults._CASES, "driver", ("driver killed", trial))


def test_trials_are_summed_up_and_one_that_fails_is_counted_and_told(tmp_path, trials, capsys):
    with ThreadPoolExecutor(1) as pool:
        (rows,) = faults.measure(["driver"], 3, Archive(tmp_path), pool)
    assert {row.name for row in rows} == {"driver killed, scripted"}
    counts = {row.column: (row.value, row.note) for row in rows}
    assert [counts[name][0] for name in ("times", "failed", "lost", "double", "differing")] == [3, 1, 1, 2, 0]
    assert counts["done again"] == (0.8, "at most 1.20%") and counts["recovered after"] == (3.5, "at most 5.0 s")
    said = capsys.readouterr()
    assert "scripted, driver: KeyError('answers')" in said.out and "Traceback" in said.err
    assert not list(tmp_path.iterdir()), "a trial takes its folder with it"


def test_runs_with_hundreds_of_faults_are_made_less_often():
    assert [faults.trials_of("driver", times) for times in (1, 10)] == [1, 10]
    assert [faults.trials_of("503", times) for times in (1, 10)] == [1, 4]


def test_a_fault_comes_after_a_tenth_and_before_four_fifths_of_the_run():
    drawn = [faults.moment(1000, random.Random(seed)) for seed in range(200)]
    assert 100 <= min(drawn) < 200 and 700 < max(drawn) <= 800
