"""The tokenizer: any text survives, digits stand alone, documents cannot write control tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.nano.tokenizer import CONTROL, train_vocabulary
from memagent.reading.tokens import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["The number for amber-otter is 4829104, and the laws of the State of Nevada govern it.\n\n"] * 20
    return Tokenizer(train_vocabulary(texts, 600).to_str())


@given(st.text())
def test_any_text_survives(tokenizer, text):
    # A lone surrogate is no text that UTF-8 can hold; documents never contain one.
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("is 4829104.")]
    assert pieces[-8:] == ["4", "8", "2", "9", "1", "0", "4", "."]


def test_control_tokens_have_one_id_and_no_text_reaches_them(tokenizer):
    for i, token in enumerate(CONTROL):
        assert tokenizer.literal(token) == [i]
        ids = tokenizer.encode(f"before {token} after")
        assert i not in ids
        assert tokenizer.decode(ids) == f"before {token} after"


def test_a_word_has_the_same_tokens_wherever_it_stands(tokenizer):
    inside = tokenizer.encode("The number for amber-otter is 1.")
    alone = tokenizer.encode(" amber-otter")
    assert any(inside[i : i + len(alone)] == alone for i in range(len(inside)))


def test_offsets_cover_the_text(tokenizer):
    text = "Zürich \N{GRINNING FACE} 12 naïve words\n\n\tend "
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert len(ids) == len(offsets)
    assert offsets[0][0] == 0 and offsets[-1][1] == len(text)


def test_the_same_texts_give_the_same_tokenizer():
    texts = ["one two three four five six seven"] * 5
    first, second = (json.loads(train_vocabulary(texts, 300).to_str()) for _ in range(2))
    assert first == second
