"""Needles: what is planted stands in the text, word for word, between sentences."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.evaluation.needles import KINDS, QUESTIONS, SENTENCES, make_needles, plant

TEXT = "The first sentence. A second one, longer than the first! Is it?\n\nA new paragraph begins. It ends."


@pytest.mark.parametrize("kind", KINDS)
def test_notes_are_quotes_that_start_with_the_key_and_end_with_the_value(kind):
    for needle in make_needles(random.Random(3), kind, 40):
        assert needle.note in needle.sentence
        assert needle.note.startswith(needle.key)
        assert needle.note.endswith(needle.value)
        assert needle.key in needle.question
        assert needle.value not in needle.key.split("-")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_differ_and_the_seed_decides(kind):
    needles = make_needles(random.Random(5), kind, 60)
    assert len({n.key for n in needles}) == len({n.value for n in needles}) == 60
    assert needles == make_needles(random.Random(5), kind, 60)
    assert needles != make_needles(random.Random(6), kind, 60)


def test_values_look_like_their_kind():
    rng = random.Random(1)
    assert all(len(n.value) == 7 and n.value.isdigit() for n in make_needles(rng, "number", 50))
    assert all(n.value.isalpha() for n in make_needles(rng, "word", 50))
    assert all(len(n.value) == 36 and n.value.count("-") == 4 for n in make_needles(rng, "uuid", 50))


def test_some_keys_share_a_word():
    keys = [n.key.split("-") for n in make_needles(random.Random(2), "number", 50, share=0.5)]
    shared = [a for a, b in pairwise(keys) if a[0] == b[0] or a[1] == b[1]]
    assert 10 <= len(shared) <= 40


def test_more_needles_than_keys_are_refused():
    with pytest.raises(ValueError, match="more different keys"):
        make_needles(random.Random(0), "word", 5000)


def test_every_wording_has_a_key_before_its_value():
    for kind in KINDS:
        for wording in SENTENCES[kind]:
            assert 0 <= wording.index("{key}") < wording.index("{value}")
        assert all("{key}" in wording for wording in QUESTIONS[kind])


@given(st.text(max_size=300), st.lists(st.sampled_from(["One fact.", "Another fact.", "A third."]), max_size=4))
def test_planting_loses_no_character_of_the_text(text, sentences):
    planted, spans = plant(text, sentences, random.Random(0))
    assert [planted[start:end] for start, end in spans] == sentences
    kept = planted
    for start, end in sorted(spans, reverse=True):
        kept = kept[:start] + kept[end:]
    assert "".join(kept.split()) == "".join(text.split())


def test_sentences_go_between_sentences():
    for seed in range(20):
        planted, [(start, end)] = plant(TEXT, ["X marks it."], random.Random(seed))
        before = planted[:start].rstrip()
        assert before == "" or before[-1] in ".!?"
        assert planted[end].isspace()
