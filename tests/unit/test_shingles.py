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
def test_a_text_is_found_with_passages_cut_out_but_not_by_a_sentence_and_a_short_one_is_not_looked_for(words):
    text = list(map(str, range(40)))
    assert Shingles([" ".join(text)]).are_in(" ".join([*text[:5], *words, *text[8:18], *text[21:]]))
    assert not Shingles([" ".join(text)]).are_in(" ".join([*words, *text[:14]]))
    assert not Shingles(["only a few words"]).are_in("only a few words")
