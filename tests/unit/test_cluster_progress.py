"""Workers' totals add up the same whichever way, in whatever order and however often they come."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.progress import NOW, Counters, ProgressActor, Totals

NAMES = [one.name for one in fields(Counters) if one.name not in NOW]
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
    assert {name: totals.sum()[name] for name in NAMES} == {
        name: sum(counts[name] for counts in own.values()) for name in NAMES
    }


def test_what_is_now_falls_with_the_newest_report_and_when_a_worker_is_silent(monkeypatch):
    totals = Totals()
    for flying in (3, 7, 2):
        totals.take("a", {**Counters(readings=flying).as_dict(), "in_flight": flying})
    assert (totals.sum()["in_flight"], totals.sum()["readings"]) == (2, 7)
    board, clock = ProgressActor(), [0.0]
    monkeypatch.setattr("infra.cluster.progress.time.monotonic", lambda: clock[0])
    board.report("pass", "a", Counters(readings=4, engines=1, in_flight=3).as_dict())
    clock[0] = 50.0
    board.report("pass", "b", Counters(engines=1, in_flight=5).as_dict())
    clock[0] = 100.0
    reports = board.reports("pass")
    assert [reports[name]["in_flight"] for name in "ab"] == [0, 5]
    assert (reports["a"]["engines"], reports["a"]["readings"]) == (0, 4), "what it has done stays done"
