from hypothesis import given
from hypothesis import strategies as st

from memagent.reading.evidence import Note, gained, locate, says


def test_the_segment_that_brought_the_answer_is_evidence():
    notes = [
        Note(2, "governed by law"),
        Note(5, "laws of the State of Nevada"),
        Note(9, "laws of the State of Nevada, 2014"),
    ]
    assert gained("Nevada", notes) == [5]


def test_an_answer_gained_in_parts_has_several_places():
    notes = [Note(1, "Mrs Smith"), Note(4, "Mrs Smith lives in Rome")]
    assert gained("Smith, Rome", notes) == [4, 1]


def test_what_was_lost_and_gained_again_counts_where_it_was_gained_last():
    notes = [Note(1, "Nevada"), Note(2, "nothing"), Note(3, "Nevada")]
    assert gained("Nevada", notes)[0] == 3


def test_no_answer_no_evidence():
    assert gained("", [Note(1, "x")]) == [] and gained("Nevada", [Note(1, "x")]) == []


def test_locate_ignores_case_and_line_breaks_but_not_word_edges():
    assert locate("State of nevada", "the STATE\n of  Nevada.") == (4, 21)
    assert locate("1", "in 1964") is None
    assert locate("", "x") is None


@given(st.text(min_size=1), st.text(), st.text())
def test_what_stands_in_a_text_is_found_whole(needle, before, after):
    place = locate(needle, before + " " + needle + " " + after)
    assert (place is None) == (not needle.split())


def test_a_text_says_an_answer_in_whole_words():
    assert says("In 2008's storm", ["2008"]) and says("the  Red\nHouse.", ["red house"]) and says("A (5) b", ["5"])
    assert not says("Chapter 15 of 25", ["5"]) and not says("anything", ["", "the"]) and not says("unRed", ["red"])
