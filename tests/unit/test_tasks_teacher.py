"""The teacher: what it writes after each segment."""

from examples.nano.contract_places import Fact, NeedlePlace
from memagent.records import Segment

NEVADA = NeedlePlace(10, 30, " laws of Nevada", " Nevada")
OHIO = NeedlePlace(110, 130, " laws of Ohio", " Ohio")
OTHER = NeedlePlace(-1, -1, " laws of Texas", " Texas")
FACT = Fact("Which law governs?", (NEVADA, OHIO))


def _segment(start, end):
    return Segment("hash", 0, start, end, "", [])


def test_the_fact_is_noted_where_it_stands():
    assert FACT.update(_segment(0, 100), None) == NEVADA
    assert FACT.update(_segment(100, 200), None) == OHIO


def test_a_segment_without_it_changes_nothing():
    assert FACT.update(_segment(40, 100), None) is None
    assert Fact("?").update(_segment(0, 1000), None) is None


def test_a_place_cut_by_the_edge_is_not_there():
    assert FACT.update(_segment(0, 29), None) is None
    assert FACT.update(_segment(11, 100), None) is None


def test_what_is_known_is_not_noted_again():
    assert FACT.update(_segment(0, 200), NEVADA) is None
    assert FACT.update(_segment(100, 200), NEVADA) is None


def test_a_wrong_note_gives_way():
    assert FACT.update(_segment(0, 100), OTHER) == NEVADA
    assert FACT.update(_segment(40, 100), OTHER) is None


def test_answers_come_from_right_notes_only():
    assert FACT.answer(NEVADA) == " Nevada"
    assert FACT.answer(OTHER) == ""
    assert FACT.answer(None) == ""
