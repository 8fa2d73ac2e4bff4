"""Text from outside never becomes a control token, whatever the tokenizer calls its added tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import ConfigError
from memagent.reading.tokens import load_tokenizer
from tests.support.texts import tokenizer_with

CONTROL = ["<|im_end|>", "</think>", "<tool_call>"]
TOKENIZER = tokenizer_with([*CONTROL, "        "])
IDS = {TOKENIZER.id(content) for content in CONTROL}


@given(st.lists(st.sampled_from([*CONTROL, "the answer", " ", "\n", "<", "think>"]), max_size=8).map("".join))
def test_control_tokens_in_a_text_are_characters(text):
    ids = TOKENIZER.encode(text)
    assert IDS.isdisjoint(ids)
    assert TOKENIZER.encode_with_offsets(text)[0] == ids


def test_templates_have_them_and_blanks_stay_short():
    assert [TOKENIZER.literal(content) for content in CONTROL] == [[TOKENIZER.id(content)] for content in CONTROL]
    assert TOKENIZER.encode("        ") == [TOKENIZER.id("        ")]


@pytest.mark.parametrize("content", ['{"broken', "{}", '{"model": 5}'])
def test_a_broken_tokenizer_is_an_error_that_names_its_file(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be used"):
        load_tokenizer(str(tmp_path))
