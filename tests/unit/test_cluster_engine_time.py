"""An engine's time is shared out whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.loaded_engine import EngineTimeMeter


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_case_by_hand():
    clock = Clock()
    shared = EngineTimeMeter(clock)
    clock.now += 5  # nobody is there
    one = shared.begin()
    clock.now += 2  # alone
    two = shared.begin()
    clock.now += 4  # two of them
    assert shared.end(one) == pytest.approx(4)
    clock.now += 1
    assert shared.end(two) == pytest.approx(3)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=60))
def test_the_shares_add_up_to_the_busy_time(steps):
    clock = Clock()
    shared, running, spent, busy = EngineTimeMeter(clock), [], 0.0, 0.0
    for begins, seconds in steps:
        if begins:
            running.append(shared.begin())
        elif running:
            spent += shared.end(running.pop(0))
        busy += seconds if running else 0.0
        clock.now += seconds
    spent += sum(shared.end(began) for began in running)
    assert spent == pytest.approx(busy, abs=1e-6)
