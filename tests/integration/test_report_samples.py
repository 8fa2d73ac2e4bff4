"""The samples that an evaluation's report shows, with the memories of its log."""

import pytest

from infra.store.location import Corpus
from infra.store.turns import TurnWriter
from memagent.records import Turn
from pipelines.report.evaluation import shown_samples
from pipelines.views.memory import DiffPassage, histories
from tests.support.made_up_run import local_store


def turn(reading: str, step: int, memory: str, span: int = 0, kind: str = "update", changed: bool = True) -> Turn:
    return Turn(reading, span, step, kind, "h", step, [1], memory, [1], memory, changed, 1, 0, "stop", 0.0)


def row(number: int, failure: str = "", lost: int | None = None) -> dict:
    answer = None if failure == "reading failed" else "" if failure else "4711"
    known = dict(sample_id=f"s{number}", task="niah", length=1000, depth=0.5, question="Which?", gold=["4711", ""])
    scored = dict(answer=answer, score=float(not failure), exact=0.0, reading_id=f"r{number}", failure=failure)
    return known | scored | dict(tokens=2000, seconds=1.0, segments=40, lost_step=lost, lost_segment=lost)


@pytest.fixture
def corpus(tmp_path):
    return Corpus(local_store(tmp_path), "suite")


def log(corpus: Corpus, *turns: Turn) -> None:
    writer = TurnWriter(corpus, "run", "toy@0000")
    for one in turns:
        writer.add(one)
    writer.flush()


def test_wrong_samples_come_first_and_keep_their_numbers(corpus):
    log(corpus, turn("r3", 0, "4711"), turn("r3", 1, "4711", changed=False), turn("r3", 2, "4711", kind="answer"))
    rows = [row(1), row(2), row(3, "noted and not used"), row(4, "reading failed")]
    shown = shown_samples(corpus, rows, 3)
    assert [(one["anchor"], one["wrong"]) for one in shown] == [
        ("sample-3", True),
        ("sample-4", True),
        ("sample-1", False),
    ]
    assert [one["answer"] for one in shown] == ["not found", "(failed)", "4711"]
    assert shown[0]["gold"] == ["4711", "not in the text"]
    (change,) = shown[0]["memory"].changes
    assert (change.where, change.parts) == ("Segment 1", [DiffPassage("added", "4711")])
    assert shown[0]["memory"].left_out == 0
    assert shown[1]["memory"] is None and shown[2]["memory"] is None, "the log has none"


@pytest.mark.parametrize(("lost", "first", "last"), [(20, 9, 32), (2, 1, 24), (None, 17, 40)])
def test_of_many_changes_those_around_the_loss_are_shown(corpus, lost, first, last):
    turns = [turn("r1", step, f"memory {step}") for step in range(40)]
    log(corpus, *turns, turn("r1", 40, "memory 39", kind="answer", changed=False))
    (shown,) = shown_samples(corpus, [row(1, "noted and overwritten", lost)], 9)
    changes = [change.where for change in shown["memory"].changes]
    assert (changes[0], changes[-1], len(changes)) == (f"Segment {first}", f"Segment {last}", 24)
    assert shown["memory"].left_out == 16
    assert shown["cause"] == "noted and overwritten" + (f", at segment {lost + 1}" if lost is not None else "")


def test_a_page_has_room_for_so_many_memories(corpus, monkeypatch):
    monkeypatch.setattr("pipelines.report.evaluation._ROOM", 25)
    for number in (1, 2, 3):
        log(corpus, turn(f"r{number}", 0, "twenty characters ok"))
    shown = shown_samples(corpus, [row(number) for number in (1, 2, 3)], 9)
    assert [one["memory"] is not None for one in shown] == [True, False, False]


def test_spans_have_memories_of_their_own(corpus):
    log(corpus, turn("r", 0, "a b"), turn("r", 5, "c", span=1), turn("r", 9, "c d", span=1))
    log(corpus, turn("r", 0, "a b c d", span=2, kind="merge"))
    history = histories(corpus, ["r"])["r"]
    assert [change.where for change in history.changes] == [
        "Segment 1",
        "Segment 6, span 2",
        "Segment 10, span 2",
        "The memories of the spans are put together",
    ]
    assert history.changes[2].parts == [DiffPassage("same", "c"), DiffPassage("added", " d")]
    assert history.stream(20, 0) == ("c" + "n" * 14 + "c" + "n" * 3 + "c", [0, 15, 19, -1])


def test_of_a_resumed_reading_the_logs_of_all_its_runs_are_told(corpus):
    later = TurnWriter(corpus, "later", "toy@0000")
    later.add(turn("r1", 1, "second"))
    later.flush()
    log(corpus, turn("r1", 0, "first"), turn("r2", 0, "alone"))
    told = histories(corpus, ["r1"], "later") | histories(corpus, ["r2"], "run")
    assert {name: [change.after for change in one.changes] for name, one in told.items()} == {
        "r1": ["first", "second"],
        "r2": ["alone"],
    }
    assert histories(corpus, ["nothing"], "run") == {}
