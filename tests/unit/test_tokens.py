"""Text from outside never becomes a control token, whatever the tokenizer calls its added tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import ConfigError
from memagent.reading.tokens import load_tokenizer, model_file
from tests.support.texts import tokenizer_with

CONTROL = ["<|im_end|>", "</think>", "<tool_call>"]
TOKENIZER = tokenizer_with([*CONTROL, "        "])
IDS = {TOKENIZER.id(content) for content in CONTROL}


@given(st.lists(st.sampled_from([*CONTROL, "the answer", " ", "\n", "<", "think>"]), max_size=8).map("".join))
def test_control_tokens_in_a_text_are_characters(text):
    ids = TOKENIZER.encode(text)
    assert IDS.isdisjoint(ids)
    assert TOKENIZER.encode_with_offsets(text)[0] == ids


@given(
    st.lists(
        st.sampled_from([*CONTROL, "the answer", " ", "<", "|im_end|>", "think>", "<|im_", "end|>"]), max_size=8
    ).map("".join)
)
def test_an_engine_that_tokenises_the_prompt_itself_finds_no_control_token_of_a_document(text):
    opened, closed = TOKENIZER.literal("<|im_end|>"), TOKENIZER.literal("</think>\n")
    prompt = TOKENIZER.as_prompt([*opened, *TOKENIZER.encode(text), *closed])
    assert [number for number in TOKENIZER.literal(prompt) if number in IDS] == [*opened, closed[0]]
    assert prompt.replace(" ", "") == f"<|im_end|>{text}</think>\n".replace(" ", "")
    if not any(content in text for content in CONTROL):
        assert prompt == f"<|im_end|>{text}</think>\n"


def test_templates_have_them_and_blanks_stay_short():
    assert [TOKENIZER.literal(content) for content in CONTROL] == [[TOKENIZER.id(content)] for content in CONTROL]
    assert TOKENIZER.encode("        ") == [TOKENIZER.id("        ")]


@pytest.mark.parametrize("content", ['{"broken', "{}", '{"model": 5}'])
def test_a_broken_tokenizer_is_an_error_that_names_its_file(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be used"):
        load_tokenizer(str(tmp_path))


def test_what_the_hub_does_not_say_is_an_error_and_what_a_model_lacks_is_none(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def raising(error):
        def download(model, name):
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)

    raising(EntryNotFoundError("404"))
    assert model_file("some/model", "chat_template.jinja") is None
    for error in (LocalEntryNotFoundError("offline"), OSError("gated"), RuntimeError("client")):
        raising(error)
        with pytest.raises(ConfigError, match="cannot fetch chat_template"):
            model_file("some/model", "chat_template.jinja")
    assert model_file("gpt-x", "chat_template.jinja") is None, "no name of the hub"
