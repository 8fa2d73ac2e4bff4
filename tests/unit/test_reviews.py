"""What verdicts come to."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.quality.verdicts import ABSENT, COUNTING, Verdict, current, disputed, review

START = datetime(2026, 8, 1, tzinfo=UTC)


def say(kind, answer="", who="anna", at=0, given="Nevada", reading="r1", decides=False):
    return Verdict(reading, kind, given, answer, START + timedelta(seconds=at), who, decides=decides)


def test_what_was_corrected_is_shown_and_stays_right_when_the_text_is_read_again():
    verdicts = [say("corrected", "Delaware")]
    found = review(verdicts, "Nevada")
    assert found is not None and (found.status, found.answer, found.reviewers) == ("corrected", "Delaware", ("anna",))
    again = review(verdicts, "the Delaware")
    assert again is not None and (again.status, again.answer) == ("accepted", "the Delaware")


@pytest.mark.parametrize(
    ("given", "right"),
    [
        *[("15", "1.5"), ("-5", "5"), ("106", "10⁶"), ("35 days", "3-5 days"), ("31/2", "3½"), ("1,5", "15")],
        *[("5", ".5"), ("$5", "-$5"), ("$5", "($5)"), ("10", "10%"), (">5", "<5"), ("1e6", "1e-6"), ("AA+", "AA")],
        *[
            ("O+", "O−"),
            ("C++", "C"),
            ("a net of $1,234", "a net of $(1,234)"),
            ("5.2%", "(5.2)%"),
            ("EUR 5", "EUR (5)"),
        ],
        *[("$5.2 million", "$(5.2) million"), ("5 million", "(5) million"), ("Class shares", "Class A shares")],
    ],
)
def test_another_number_is_another_answer_though_its_digits_are_the_same(given, right):
    corrected = say("corrected", right, given=given)
    assert review([corrected], given).status == "corrected" and review([corrected], given).answer == right
    assert disputed([corrected, say("accepted", given=given, who="ben")])
    assert review([corrected], right).status == "accepted"


@pytest.mark.parametrize(
    ("given", "right"),
    [
        *[("1,000 €", "1000 €"), ("−5", "-5"), ("3–5", "3-5."), ("10⁶", "10^6")],
        *[("$1,000.00", "$1,000"), ("5 %", "5%"), ("−$5", "-$5"), ("thirty (30) days", "thirty 30 days")],
        *[("five (5) million", "five 5 million"), ("A fee of 5", "a fee of 5"), ("The fee", "fee")],
    ],
)
def test_another_way_to_write_a_number_is_no_other_answer(given, right):
    assert review([say("corrected", right, given=given)], given).status == "accepted"


def test_what_was_rejected_says_nothing_of_another_answer():
    assert review([say("rejected")], "nevada").status == "rejected"
    assert review([say("rejected")], "Texas") is None


def test_a_comment_and_a_withdrawn_verdict_count_for_nothing():
    assert review([say("comment")], "Nevada") is None
    assert review([say("accepted"), say("withdrawn", at=1)], "Nevada") is None
    assert review([say("accepted"), say("comment", at=1)], "Nevada").status == "accepted"


def test_the_last_word_of_a_person_counts():
    assert review([say("corrected", "Utah"), say("accepted", at=1)], "Nevada").status == "accepted"
    later = [say("rejected"), say("accepted", at=1, reading="r2")]
    assert review(later, "Nevada").status == "accepted", "of the same answer in two readings"
    other_way = [say("accepted"), say("rejected", at=1, reading="r2")]
    assert review(other_way, "Nevada").status == "rejected"


def test_two_people_may_disagree_and_a_decision_settles_it():
    both = [say("accepted"), say("corrected", "Delaware", "ben", 1)]
    assert review(both, "Nevada").status == "disputed" and review(both, "Nevada").answer == "Nevada"
    assert review([say("rejected"), say("accepted", who="ben")], "Nevada").status == "disputed"
    decided = [*both, say("corrected", "Delaware", "carla", 2, decides=True)]
    assert review(decided, "Nevada").answer == "Delaware" and review(decided, "Nevada").reviewers == ("carla",)
    assert review([*decided, say("accepted", who="anna", at=3)], "Nevada").status == "disputed"


def test_a_rejection_is_of_the_answer_that_was_shown():
    corrected = say("corrected", "Delaware")
    assert review([corrected, say("rejected", who="ben", at=1)], "Nevada").status == "corrected"
    assert review([corrected, say("rejected", "Delaware", "ben", 1)], "Nevada").status == "disputed"
    assert review([corrected, say("rejected", "Delaware", at=1, reading="r2")], "Nevada") is None, (
        "she changed her mind"
    )
    assert review([corrected, say("rejected", "Delaware", "ben", 1, decides=True)], "Nevada") is None
    absent = say("corrected")
    assert review([absent, say("rejected", who="ben", at=1)], "Nevada").status == "corrected"
    assert review([absent, say("rejected", ABSENT, "ben", 1)], "Nevada").status == "disputed"


def test_agreement_in_other_words_is_no_dispute():
    assert (
        review([say("corrected", "Delaware"), say("corrected", "the  delaware.", "ben", 1)], "x").status == "corrected"
    )
    assert review([say("rejected"), say("corrected", "Delaware", "ben")], "Nevada").status == "corrected"


KINDS = st.sampled_from([*COUNTING, "withdrawn", "comment"])
VERDICTS = st.lists(
    st.builds(
        say,
        KINDS,
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["anna", "ben"]),
        st.integers(0, 50),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from(["r1", "r2"]),
        st.booleans(),
    ),
    unique_by=lambda verdict: verdict.given_at,
)


@given(VERDICTS, st.randoms())
def test_the_order_of_rows_does_not_matter_and_one_person_never_disagrees(verdicts, random):
    shuffled = list(verdicts)
    random.shuffle(shuffled)
    assert current(shuffled) == current(verdicts)
    assert review(shuffled, "a") == review(verdicts, "a")
    anna = [verdict for verdict in verdicts if verdict.reviewer == "anna"]
    assert not disputed(current(anna))
    assert all(verdict.kind in COUNTING for verdict in current(verdicts))
