"""Texts are recognised within others by their words."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.operate.forget import Shingles

WORDS = st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), max_size=40)


@given(st.lists(st.uuids().map(str), min_size=8, max_size=40), WORDS, WORDS)
def test_a_text_is_found_whatever_is_around_it(words, before, behind):
    shingles = Shingles([" ".join(words)])
    assert shingles.are_in(" ".join([*before, *words, *behind]))
    assert not shingles.are_in(" ".join([*before, *behind]))


@given(WORDS)
def test_a_part_of_a_text_is_not_the_text_and_a_short_one_is_not_looked_for(words):
    text = " ".join(map(str, range(40)))
    assert not Shingles([text]).are_in(" ".join([*words, *text.split()[:39]]))
    assert not Shingles(["only a few words"]).are_in("only a few words")
