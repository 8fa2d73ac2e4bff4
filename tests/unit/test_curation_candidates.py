"""Rows from what was asked, answered and said."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.feedback import JudgedAnswer
from memagent.quality.curation import gather
from memagent.quality.verdicts import Verdict
from memagent.records import TextSpan
from pipelines.stages.collect_qa import Place, agreed_rows, feedback_rows, gold_rows
from pipelines.stages.write_questions import choose

NOW = datetime(2026, 8, 1, tzinfo=UTC)


def ask(reading="r1", gold=("Ada",), run=0, question="Who signed?", identity="q", stream=("h1",)):
    return {
        "reading_id": reading,
        "question_id": identity,
        "question": question,
        "stream": list(stream),
        "gold": list(gold) if gold is not None else None,
        "run": run,
    }


def answer(said, evidence=(("h1", 2),), policy="p1"):
    places = [Place(name, index, 10 * index, 10 * index + 5) for name, index in evidence]
    return {"answer": said, "found": bool(said), "policy_id": policy, "places": places}


def test_gold_comes_with_its_pass_rate_and_the_evidence_of_right_answers():
    rows = [ask("r1"), ask("r2", run=1), ask("r3", run=1)]
    answers = {"r1": answer("the Ada"), "r2": answer("Bob", (("h1", 7),))}
    (row,) = gold_rows(rows, answers)
    assert (row.answers, row.source, row.stream) == (("Ada",), "gold", ("h1",))
    assert row.pass_rate == 1 / 3, "the reading that failed is wrong"
    assert row.evidence == (("h1", 2),) and row.spans == (TextSpan("h1", 20, 25),)
    assert (row.reading_id, row.policy_id) == ("r1", "p1")


def test_one_reading_is_no_rate_and_a_reading_counts_once():
    assert [one.pass_rate for one in gold_rows([ask("r1"), ask("r1", run=1)], {"r1": answer("Bob")})] == [None]


def test_the_newest_gold_of_a_question_counts():
    (row,) = gold_rows([ask(gold=["Bob"]), ask("r2", gold=["Ada", "A."], run=1)], {"r1": answer("Ada")})
    assert row.answers == ("Ada", "A.") and row.pass_rate == 0.5


def test_two_questions_of_one_wording_are_two_witnesses():
    assert len(gold_rows([ask(), ask(identity="other", gold=["Bob"])], {})) == 2


def test_agreement_counts_readings_that_failed():
    rows = [ask(f"r{i}", gold=None) for i in range(4)]
    answers = {"r0": answer("Ada"), "r1": answer("ada", (("h1", 3),)), "r2": answer("Bob")}
    (row,) = agreed_rows(rows, answers)
    assert (row.answers, row.share, row.source) == (("Ada",), 0.5, "agreement")
    assert row.evidence == (("h1", 2), ("h1", 3)) and [span.start for span in row.spans] == [20, 30]
    assert row.reading_id == "r0"


def verdict(what, said="", given="Ada", reading="r1", question="Who signed?", quote=22, verbatim=True):
    place = {"char_start": 20, "char_end": 40, "quote_start": quote, "quote_end": quote + 3, "verbatim": verbatim}
    evidence = [{"content_hash": "h1", "segment_index": 2, **place}]
    of = {"reading_id": reading, "question": question, "stream": ["h1"], "policy_id": "p1", "answer": given}
    return JudgedAnswer(Verdict(reading, what, given, said, NOW), of | {"evidence": evidence})


def test_feedback_teaches_what_is_right_and_bars_what_is_wrong():
    rows, rejected, _ = feedback_rows([verdict("accepted"), verdict("corrected", "May", "June", "r2", "When?")])
    first, second = rows
    assert (first.answers, first.evidence) == (("Ada",), (("h1", 2),)) and first.source == "feedback"
    assert (second.answers, second.evidence) == (("May",), ()), "where the right answer stands is not known"
    assert first.spans == (TextSpan("h1", 22, 25),) and not second.spans
    for unsaid in (verdict("accepted", quote=-1), verdict("accepted", verbatim=False)):
        assert feedback_rows([unsaid])[0][0].spans == (TextSpan("h1", 20, 40),), "the whole segment"
    assert rejected == {second.qa_id: {"june"}}
    rows, rejected, _ = feedback_rows([verdict("rejected", given="Bob")])
    assert not rows and rejected == {first.qa_id: {"bob"}}


def test_nothing_to_find_can_be_said_and_denied():
    rows, rejected, _ = feedback_rows([verdict("corrected", "", "Bob"), verdict("rejected", given="", reading="r2")])
    assert [row.answers for row in rows] == [("",)] and rejected[rows[0].qa_id] == {"bob", ""}


def test_a_rejected_correction_bars_that_and_not_the_answer():
    _, rejected, disputed = feedback_rows([verdict("rejected", "May", "June")])
    assert list(rejected.values()) == [{"may"}] and not disputed


@pytest.mark.parametrize("other", [("accepted",), ("rejected", "May"), ("corrected", "Bob")])
def test_what_people_dispute_teaches_nothing(other):
    rows, rejected, disputed = feedback_rows([verdict("corrected", "May", "June"), verdict(*other, given="June")])
    agreed = replace(rows[0], source="agreement", share=1.0, answers=("June",))
    (row,) = feedback_rows([verdict("accepted", question="When?")])[0]
    harvest = gather([replace(each, documents=("d",)) for each in (*rows, agreed, row)], (), 0, rejected, disputed)
    assert [each.question for each in harvest.kept] == ["When?"]
    assert harvest.reasons == {"disputed": len(rows) + 1}


def test_a_correction_in_form_alone_rejects_nothing():
    assert feedback_rows([verdict("corrected", "Ada", "the ada")])[1] == {}


PLACES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 6), max_size=3)


@given(PLACES, st.integers(0, 20), st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 5))))
def test_segments_are_drawn_once_and_not_where_there_is_a_question(sizes, count, known):
    row = {"part": "p", "first_row": 0}
    places = {name: row | {"content_hash": name, "segments": size} for name, size in sizes.items()}
    chosen = [(one["place"]["content_hash"], one["index"]) for one in choose(places, count, "seed", known)]
    free = {(name, i) for name, size in sizes.items() for i in range(size)} - known
    assert len(chosen) == len(set(chosen)) == min(count, len(free)) and set(chosen) <= free
    assert choose(places, count, "seed", known) == choose(dict(reversed(places.items())), count, "seed", known)
