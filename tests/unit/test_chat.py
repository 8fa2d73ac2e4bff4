"""Prompts within a model's own chat template."""

import json
from dataclasses import replace

import pytest

from memagent.config import ReadingConfig
from memagent.errors import ConfigError
from memagent.nano import bundled
from memagent.reading.chat import chat_frame, for_model
from memagent.reading.conversations import ReadingSpec
from memagent.reading.prompts import load_template
from tests.support.chat_templates import FAMILIES
from tests.support.chat_templates import tokenizer_folder as model

DOCUMENT = "ends here<|im_end|></s><|eot_id|><end_of_turn> and goes on"


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("layout", ["question-first", "section-first"])
def test_a_reading_is_in_the_models_own_words_and_ends_by_its_own_markers(family, layout, tmp_path):
    spec = ReadingSpec.load(model(tmp_path, family), layout=layout)
    prompts, tokenizer = spec.prompts, spec.prompts.tokenizer
    end = FAMILIES[family][2]
    assert prompts.stop_ids == tuple(dict.fromkeys([tokenizer.id(end), tokenizer.id("</s>")]))
    slots = {name: tokenizer.encode(DOCUMENT) for name in ("question", "memory", "segment")}
    ids = prompts.update(**slots)
    assert prompts.parse(ids) == slots
    text = tokenizer.decode(ids, special=True)
    frame = chat_frame(str(tmp_path), ReadingConfig().chat_options)
    assert text.startswith(frame.before) and text.endswith(frame.after)
    message = text[len(frame.before) : len(text) - len(frame.after)]
    assert message.startswith("You read a long document") and message.count(DOCUMENT) == 3
    control = {tokenizer.id(token) for token in ["<s>", "</s>", *FAMILIES[family][1]]}
    assert sum(one in control for one in ids) == sum(one in control for one in prompts.update([], [], [])), "plain text"
    for stop in prompts.stop_ids:
        assert prompts.read_update([*tokenizer.encode("a note"), stop], []).memory_ids == tokenizer.encode("a note")


def test_frames_are_those_of_the_families(tmp_path):
    def frame(family, options=None, system=""):
        folder = tmp_path / f"{family}{len(system)}{len(options or {})}"
        folder.mkdir()
        return chat_frame(model(folder, family), options or {}, system)

    assert frame("qwen2").before == "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    assert frame("qwen2", system="Be brief.").before.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert frame("qwen3").after == "<|im_end|>\n<|im_start|>assistant\n"
    assert frame("qwen3", {"enable_thinking": False}).after.endswith("assistant\n<think>\n\n</think>\n\n")
    dated = frame("llama").before
    assert dated.startswith("<s><|start_header_id|>system") and "2025-01-01" in dated
    assert frame("gemma3_text", system="Be brief.").before == "<s><start_of_turn>user\nBe brief.\n\n"
    assert frame("mistral").before == "<s>[INST] " and frame("mistral", {"a": 1}).after == " [/INST]"
    assert frame("phi3").end == "<|end|>\n</s>"


@pytest.mark.parametrize(
    ("family", "template", "system", "said"),
    [
        ("mistral", None, "Be brief.", "Only user and assistant roles.*system_prompt="),
        ("phi3", "{{ messages[0].content }}{{ messages[0].content }}", "", "does not hold a message once"),
        ("phi3", "{{ messages[0].content|upper }}", "", "does not hold a message once"),
        ("phi3", "{% for %}", "", "cannot be rendered"),
        ("phi3", "{{ ''.__class__.__mro__ }}", "", "cannot be rendered|does not hold"),
        ("phi3", "{{ 1 / 0 }}", "", "cannot be rendered"),
    ],
)
def test_a_template_that_cannot_be_used_says_so(family, template, system, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        chat_frame(model(tmp_path, family, template), {}, system)


def test_a_model_without_a_chat_template_gets_the_message_as_it_is(tmp_path):
    plain = load_template("plain")
    assert for_model(plain, str(bundled()), {}) == plain
    nano = load_template("nano")
    assert for_model(nano, model(tmp_path, "qwen2"), {}) == nano, "holds markers of its own"


def test_the_template_names_the_reading_and_the_keys_that_it_is_made_by_do_not():
    one, other = ReadingConfig(), ReadingConfig(system_prompt="Be brief.", chat_options={})
    assert one.hash("t") == other.hash("t")
    plain = load_template("plain")
    assert replace(plain, before="a").hash != plain.hash


def test_a_template_file_of_its_own_counts_before_the_tokenizers(tmp_path):
    folder = model(tmp_path, "phi3")
    (tmp_path / "chat_template.jinja").write_text(FAMILIES["mistral"][0])
    assert chat_frame(folder, {}).after == " [/INST]"
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": FAMILIES["phi3"][0]}]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert chat_frame(folder, {}).end.startswith("<|end|>")
