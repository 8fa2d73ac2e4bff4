"""What of a turn log goes on: invariants of carrying, resuming and reading it."""

from dataclasses import replace
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.store.location import Corpus, Store
from infra.store.turns import TurnWriter, carry, resume_points, turns
from memagent.records import Turn
from pipelines.operate.optimize import compact_turns

CHANGES = st.lists(st.booleans(), min_size=1, max_size=12)


def _log(changes: list[bool], reading: str = "old") -> list[Turn]:
    """A reading whose memory is the number of the last segment that changed it."""
    log = []
    memory = 0
    for step, changed in enumerate(changes):
        memory = step + 1 if changed else memory
        log.append(
            Turn(
                reading_id=reading,
                span=0,
                step=step,
                kind="update",
                content_hash="h",
                segment_index=step,
                response_ids=[memory],
                response=str(memory),
                memory_ids=[memory],
                memory=str(memory),
                changed=changed,
                prompt_tokens=7,
                cached_tokens=3,
                finish_reason="stop",
                seconds=1.0,
                logprobs=[-0.5],
            )
        )
    return log


def test_a_reading_resumes_with_the_updates_that_were_empty() -> None:
    log = _log([True, False, False, False, False])
    log[2] = replace(log[2], finish_reason="empty")
    with TemporaryDirectory() as folder:
        corpus = Corpus(Store(folder), "c")
        writer = TurnWriter(corpus, "run", "p")
        for turn in log:
            writer.add(turn)
        writer.flush()
        assert [turn.step for turn in resume_points(corpus, ["old"])["old"]] == [0, 2, 4]


@given(CHANGES, st.integers(0, 14))
def test_a_carried_beginning_ends_with_the_memory_after_it(changes: list[bool], keep: int) -> None:
    log = _log(changes)
    carried = carry(log, "new", min(keep, len(log)))
    if keep == 0:
        assert carried == []
        return
    at = min(keep, len(log)) - 1
    assert carried[-1].step == at
    assert carried[-1].memory == log[at].memory
    assert [turn.step for turn in carried] == sorted({turn.step for turn in carried})
    assert {turn.step for turn in carried if turn.changed} == {t.step for t in log[: at + 1] if t.changed}
    for turn in carried:
        assert (turn.kind, turn.reading_id, turn.carried_from) == ("carried", "new", "old")
        assert (turn.prompt_tokens, turn.response_ids, turn.logprobs, turn.seconds) == (0, [], None, 0.0)


@given(CHANGES, st.integers(1, 12), st.integers(1, 12))
def test_carrying_twice_is_carrying_once(changes: list[bool], first: int, second: int) -> None:
    log = _log(changes)
    first = min(first, len(log))
    second = min(second, first)
    again = carry(carry(log, "middle", first), "new", second)
    if not any(changes[:second]) and second < first:
        assert again == []  # there is no memory yet to go on from
        return
    once = carry(log, "new", second)
    assert [(t.step, t.memory, t.changed, t.carried_from) for t in again] == [
        (t.step, t.memory, t.changed, t.carried_from) for t in once
    ]


@given(CHANGES, st.integers(1, 14))
def test_a_log_that_ends_before_is_carried_as_far_as_it_reaches(changes: list[bool], more: int) -> None:
    log = _log(changes)
    assert carry(log, "new", len(changes) + more) == carry(log, "new", len(changes))


@settings(max_examples=20, deadline=None)
@given(CHANGES, st.data())
def test_the_log_is_the_same_however_it_was_written(changes: list[bool], data: st.DataObject) -> None:
    log = _log(changes)
    with TemporaryDirectory() as folder:
        store = Store(folder)
        writers = [TurnWriter(Corpus(store, "c"), "run", "p") for _ in range(2)]
        for turn in data.draw(st.permutations(log + log[:2])):  # some twice, as after a retry
            writer = data.draw(st.sampled_from(writers))
            writer.add(turn)
            if data.draw(st.booleans()):
                writer.flush()
        for writer in writers:
            writer.flush()
        assert turns(Corpus(store, "c"), ["old"]) == log
        resumed = resume_points(Corpus(store, "c"), ["old"])["old"]
        assert resumed[-1] == log[-1]
        assert [turn for turn in resumed if turn.changed] == [turn for turn in log if turn.changed]
        compact_turns(Corpus(store, "c"), "run")
        assert turns(Corpus(store, "c"), ["old"]) == log


@settings(max_examples=20, deadline=None)
@given(CHANGES, st.integers(1, 12))
def test_a_finished_reading_is_carried_from_its_log(changes: list[bool], keep: int) -> None:
    log = _log(changes)
    answer = replace(log[-1], step=len(log), kind="answer", changed=False, segment_index=-1)
    with TemporaryDirectory() as folder:
        store = Store(folder)
        writer = TurnWriter(Corpus(store, "c"), "run", "p")
        for turn in [*log, answer]:
            writer.add(turn)
        writer.flush()
        resumed = resume_points(Corpus(store, "c"), ["old"])["old"]
    assert resumed[-1] == answer and resumed[-2] == log[-1]
    carried = carry(resumed, "new", keep)
    reached = min(keep, len(log))
    assert (carried[-1].step, carried[-1].memory_ids) == (reached - 1, log[reached - 1].memory_ids)
