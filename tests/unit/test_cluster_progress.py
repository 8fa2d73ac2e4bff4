"""Workers' totals add up the same whichever way, in whatever order and however often they come."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.progress import Counters, Totals

NAMES = [one.name for one in fields(Counters)]
steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(NAMES), st.integers(1, 9)), max_size=40)


@given(steps, st.randoms())
def test_lost_late_and_repeated_reports_change_nothing(done, rng):
    own = {worker: Counters().as_dict() for worker in "abc"}
    reports = []
    for worker, name, count in done:
        own[worker][name] += count
        reports.append((worker, dict(own[worker])))
    last = list(own.items())
    reports = [report for report in reports if rng.random() < 0.7] + rng.sample(reports, len(reports) // 2) + last
    rng.shuffle(reports)
    totals = Totals()
    for worker, counts in reports:
        totals.take(worker, counts)
    assert totals.sum() == {name: sum(counts[name] for counts in own.values()) for name in NAMES}
