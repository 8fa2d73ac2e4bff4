"""Workers' totals add up the same whichever way, in whatever order and however often they come."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.board import NOW, BoardActor, Counters, Totals

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
    board, clock = BoardActor(), [0.0]
    monkeypatch.setattr("infra.cluster.board.time.monotonic", lambda: clock[0])
    board.report("pass", "a", Counters(readings=4, engines=1, in_flight=3).as_dict())
    clock[0] = 50.0
    board.report("pass", "b", Counters(engines=1, in_flight=5).as_dict())
    clock[0] = 100.0
    reports, _ = board.reports("pass")
    assert [reports[name]["in_flight"] for name in "ab"] == [0, 5]
    assert (reports["a"]["engines"], reports["a"]["readings"]) == (0, 4), "what it has done stays done"


def test_a_board_knows_how_often_an_item_was_begun_and_what_its_workers_did_not_survive():
    board = BoardActor()
    first = board.begin("job", 7, "a", 9)
    assert (first.item, first.number, first.killers, first.broken) == (7, 0, (), "")
    board.note("job", 7, 3)
    assert board.begin("job", 7, "b", 9).killers == (3,)
    board.note("job", 7, 4)
    board.note("job", 7, None)
    third = board.begin("job", 7, "c", 9)
    assert (third.number, third.killers) == (2, (3,))
    assert board.begin("other", 7, "c", 9).number == 0, "jobs are apart"
    board.stop("job")
    assert board.begin("job", 8, "c", 9).stopped and not board.begin("other", 8, "c", 9).stopped


def test_workers_that_end_one_after_another_end_a_job_and_a_result_between_them_does_not():
    board = BoardActor()
    broken = [board.begin("job", 0, f"worker {i}", 2).broken for i in range(8)]
    assert [bool(words) for words in broken] == [False] * 6 + [True] * 2 and "6 in a row" in broken[6]
    for i in range(40):
        assert not board.begin("long", i, f"worker {i}", 2).broken
        board.done("long", i)
    assert not board.give_up("long", 2) and board.give_up("long", 2)
