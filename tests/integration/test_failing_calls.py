"""A night whose calls fail, a few of each target: the next one has the tables of an undisturbed night.

`python -m tests.failing_calls` fails every call.
"""

import pytest

from tests.failing_calls import trials

MOST = 3


def spread(calls: int) -> list[int]:
    """Return some numbers from the first call to the last."""
    return sorted({1 + i * (calls - 1) // (MOST - 1) for i in range(MOST)})


@pytest.mark.parametrize("target", ["store", "engine"])
def test_the_night_after_a_failed_call_has_what_an_undisturbed_one_has(tmp_path, model_folder, target):
    done = trials(target, tmp_path, model_folder, spread)
    assert len(done) == 2 * MOST and any(trial.error for trial in done)
    assert not [trial for trial in done if not trial.good]
