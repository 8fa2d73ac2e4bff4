"""What may teach, and what may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.quality.curation import SPLITS, Qa, agreement, families, gather, leaks, split_of
from memagent.quality.verdicts import as_meant
from memagent.records import stable_hash


def row(question="Who signed?", answers=("Ada",), source="gold", documents=("d1",), stream=None, **kwargs):
    return Qa(
        question, tuple(answers), tuple(stream or (f"h-{'-'.join(documents)}",)), tuple(documents), source, **kwargs
    )


def reasons(*rows, **kwargs):
    return gather(rows, **kwargs).reasons


def side(name, wanted):
    return next(f"{name}{i}" for i in range(200) if split_of([f"{name}{i}"]) == wanted)


def test_good_rows_are_kept_with_their_provenance():
    one, two = row(reading_id="r1"), row("When?", ["1 May"], "feedback")
    harvest = gather([one, two])
    assert set(harvest.kept) == {one, two} and not harvest.dropped


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row("  "), "no question"),
        (row(answers=()), "no answer"),
        (row(answers=("Ada", "")), "no answer"),
        (row(documents=(), stream=("h",)), "no document"),
        (row(tags=("secret",)), "excluded"),
        (row(source="agreement", share=0.4), "no agreement"),
    ],
)
def test_unfit_rows_are_dropped_with_a_reason(bad, reason):
    harvest = gather([bad], exclude=["secret"], least_share=0.5)
    assert not harvest.kept and harvest.reasons == {reason: 1}


def test_nothing_to_find_is_an_answer():
    assert gather([row(answers=("",))]).kept


def test_the_better_source_wins_whatever_the_order():
    told, guessed = row(answers=["Ada"], source="feedback"), row(answers=["Bob"], source="agreement", share=1.0)
    for rows in ([told, guessed], [guessed, told]):
        harvest = gather(rows)
        assert harvest.kept == [told] and harvest.reasons == {"a better source": 1}


def test_a_contradiction_within_a_source_takes_both():
    assert reasons(row(answers=["Ada"]), row(answers=["Bob"])) == {"contradictory": 2}
    assert reasons(row(answers=["Ada"]), row("who signed", answers=["the ada."])) == {"duplicate": 1}


def test_a_contradicted_gold_does_not_let_a_guess_in():
    harvest = gather([row(answers=["Ada"]), row(answers=["Bob"]), row(answers=["Ada"], source="generated")])
    assert not harvest.kept and harvest.reasons == {"a better source": 1, "contradictory": 2}


def test_near_duplicates_on_one_stream_are_dropped():
    long = "Which law governs this agreement between the two parties named above"
    assert reasons(row(long), row(long + " here")) == {"near-duplicate": 1}
    assert reasons(row(long), row(long + " here", answers=["Bob"])) == {}
    assert reasons(row(long), row(long + " here", documents=("d2",))) == {}


def test_evidence_of_duplicates_is_put_together():
    kept = gather([row(evidence=(("h", 3),)), row(evidence=(("h", 1), ("h", 3)))]).kept
    assert kept[0].evidence == (("h", 1), ("h", 3))


DOCUMENTS = [("a",), ("b",), ("a", "b"), (side("d", "test"),), (side("d", "test"), side("e", "train"))]
ROWS = st.builds(
    row,
    question=st.sampled_from(["Who signed?", "who signed", "When was it?", " ", "Which law governs it here?"]),
    answers=st.sampled_from([(), ("Ada",), ("Bob",), ("",)]),
    source=st.sampled_from(["feedback", "gold", "agreement", "generated"]),
    documents=st.sampled_from(DOCUMENTS),
    share=st.sampled_from([None, 0.2, 0.9]),
    reading_id=st.sampled_from(["r1", "r2"]),
)


@given(st.lists(ROWS, max_size=25))
def test_every_row_is_kept_or_dropped_once_and_ids_are_unique(rows):
    harvest = gather(rows, least_share=0.5)
    assert len(harvest.kept) + len(harvest.dropped) == len(rows)
    ids = [one.qa_id for one in harvest.kept]
    assert len(set(ids)) == len(ids)
    again = gather(harvest.kept, least_share=0.5)
    assert not again.dropped and set(again.kept) == set(harvest.kept)


@given(st.lists(ROWS, max_size=25), st.randoms(use_true_random=False), st.sampled_from([None, {"ada"}]))
def test_the_order_of_rows_does_not_matter(rows, rng, banned):
    rejected = {one.qa_id: banned for one in rows[:2]} if banned else {}
    shuffled = list(rows)
    rng.shuffle(shuffled)
    one, two = (gather(some, least_share=0.5, rejected=rejected) for some in (rows, shuffled))
    assert one.kept == two.kept and one.reasons == two.reasons


@given(st.lists(ROWS, max_size=25))
def test_no_document_is_on_two_sides(rows):
    sides = {}
    for one in gather(rows).kept:
        for name in one.documents:
            assert sides.setdefault(name, split_of(one.documents)) == split_of(one.documents)


def test_a_document_is_on_one_side_and_the_shares_hold():
    sides = [split_of([f"doc-{i}"]) for i in range(4000)]
    assert [sides.count(side) / 4000 for side in SPLITS] == pytest.approx([0.8, 0.1, 0.08, 0.02], abs=0.02)
    assert split_of(["b", "a"]) == split_of(["a", "b"])


def test_the_side_of_a_document_is_the_place_of_its_hash():
    for i in range(500):
        name = f"doc-{i}"
        share = int(stable_hash(0, [name])[:12], 16) / 16**12
        sides = ((0.8, "train"), (0.9, "validation"), (0.98, "promotion"), (1.0, "test"))
        assert split_of([name]) == next(side for limit, side in sides if share < limit)


def test_a_row_over_documents_of_two_sides_does_not_teach():
    held, learnt, other = side("d", "test"), side("e", "train"), side("f", "train")
    mixed, pure = row(documents=(held, learnt)), row(documents=(learnt, other))
    assert split_of(mixed.documents) == "test", "training sees no held-out document"
    assert leaks([mixed, pure, row(documents=(held,))]) == {mixed.qa_id}
    harvest = gather([mixed, pure])
    assert harvest.kept == [pure] and harvest.reasons == {"on both sides of the split": 1}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("123456")), max_size=20))
def test_a_text_is_on_one_side_however_many_documents_have_it(versions):
    family = families(versions)
    assert set(family) == {doc for doc, _ in versions}
    for doc, text in versions:
        assert len({family[other] for other, same in versions if same == text}) == 1
        assert family[family[doc]] == family[doc]
    assert families(versions + versions) == family
    first = list(dict.fromkeys(doc for doc, _ in versions))
    assert all(first.index(family[doc]) <= first.index(doc) for doc in family)


def test_documents_that_share_nothing_stand_for_themselves():
    assert families([("a", "1"), ("b", "2"), ("a", "3")]) == {"a": "a", "b": "b"}


def test_what_was_rejected_does_not_teach_whoever_says_it():
    agreed = row(answers=["Ada"], source="agreement", share=1.0)
    either = row("When?", ["1 May", "2 May"])
    rejected = {agreed.qa_id: {"ada"}, either.qa_id: {as_meant("2 May")}}
    harvest = gather([agreed, either, row("When was it?", ["2 May"])], rejected=rejected)
    assert harvest.reasons == {"rejected": 1}
    assert sorted(one.answers for one in harvest.kept) == [("1 May",), ("2 May",)]


def test_readings_that_agree_on_nothing_found_do_not_teach():
    assert reasons(row(answers=[""], source="agreement", share=1.0)) == {"nothing found": 1}
    assert not reasons(row(answers=[""], source="feedback"))


def test_agreement_is_a_share_of_all_readings():
    assert agreement([("Ada", True), ("the Ada", True), ("Bob", True), ("", False)]) == ("Ada", 0.5)
    assert agreement([("", False), ("Ada", True), ("x", False)]) == ("", pytest.approx(2 / 3))
    assert agreement([("Ada", True), None, None]) == ("Ada", pytest.approx(1 / 3))
    assert agreement([None, None]) == ("", 0.0)
    with pytest.raises(ValueError):
        agreement([])
