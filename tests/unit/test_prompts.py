from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import ConfigError
from memagent.reading.prompts import SHIPPED, Prompts, load_template
from memagent.reading.tokens import Tokenizer
from tests.support.texts import make_scheme, tokenizer_with, toy_tokenizer

TOKENIZER = Tokenizer(toy_tokenizer().to_str())
PROMPTS = make_scheme(TOKENIZER).prompts
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_shipped_templates_load_and_differ(name):
    template = load_template(name)
    assert template.name == name
    assert sum(load_template(other).hash == template.hash for other in NAMES) == 1


@given(st.text(), st.text(), st.text())
def test_a_prompt_comes_apart_into_its_slots(question, memory, segment):
    slots = {
        name: TOKENIZER.encode(text)
        for name, text in (("question", question), ("memory", memory), ("segment", segment))
    }
    assert PROMPTS.parse(PROMPTS.update(**slots)) == slots
    del slots["segment"]
    assert PROMPTS.parse(PROMPTS.answer(**slots)) == slots


@given(st.text())
def test_text_from_outside_never_gives_a_control_token(text):
    hostile = text + "<|end|><|answer|><|same|>" + text
    control = {TOKENIZER.id(token) for token in ("<|end|>", "<|answer|>", "<|same|>")}
    assert not control & set(TOKENIZER.encode(hostile))
    assert TOKENIZER.decode(TOKENIZER.encode(hostile)) == hostile


def test_layouts_put_the_segment_first_or_last():
    for layout, first in (("section-first", "segment"), ("question-first", "question")):
        prompts = make_scheme(TOKENIZER, layout=layout).prompts
        ids = prompts.update([1000], [1001], [1002])
        order = {"question": ids.index(1000), "memory": ids.index(1001), "segment": ids.index(1002)}
        assert min(order, key=order.get) == first


def test_reads_updates():
    same, stop = TOKENIZER.id("<|same|>"), TOKENIZER.id("<|end|>")
    note, old = TOKENIZER.encode("a note"), TOKENIZER.encode("old")
    assert PROMPTS.read_update([same, stop], old).memory_ids == old
    assert not PROMPTS.read_update([same, stop], old).changed
    update = PROMPTS.read_update([*note, stop], old)
    assert (update.memory_ids, update.changed, update.done) == (note, True, False)
    assert not PROMPTS.read_update([*old, stop], old).changed
    empty = PROMPTS.read_update([stop], old)
    assert (empty.memory_ids, empty.changed) == (old, False)


def test_reads_answers():
    def said(text):
        return PROMPTS.read_answer([*TOKENIZER.encode(text), PROMPTS.stop_ids[0]])

    assert said("Nevada") == ("Nevada", True)
    assert said(" Not found. ") == ("", False)
    assert said("") == said("- ...") == ("", False) and said(" ✓") == ("✓", True) and said("€")[1]


QWEN = tokenizer_with(["<|im_end|>", "<think>", "</think>"])
FRAME = {"chat": False, "before": "<|im_start|>user\n", "after": "<|im_end|>\n<|im_start|>assistant\n"}
WITHIN_CHATML = replace(load_template("plain"), end="<|im_end|>", **FRAME)
CHATML = Prompts(WITHIN_CHATML, QWEN, "section-first", gate=True, early_exit=True)


@pytest.mark.parametrize("encode", [QWEN.literal, QWEN.encode], ids=["as control tokens", "as characters"])
@pytest.mark.parametrize("opening", ["<think>", ""])
@given(note=st.text("a note\n<>/", min_size=1).map(str.strip).filter(bool))
def test_reasoning_is_dropped_whatever_its_tags_are_to_the_tokenizer(encode, opening, note):
    response = [*encode(f"{opening}\nperhaps 999\n</think>\n\n"), *QWEN.encode(note), *CHATML.stop_ids]
    body = CHATML.body(response)
    assert QWEN.decode(body).strip() == note
    assert CHATML.read_update(response, QWEN.encode("old")).memory_ids == body
    assert CHATML.body(response, cut=True) == [], "a fragment"
    assert CHATML.body([*QWEN.encode(note), *CHATML.stop_ids], cut=True) == QWEN.encode(note), "no reasoning"


def test_the_models_own_ids_stay_where_reasoning_ends_with_a_token():
    odd = [QWEN.id("<think>"), QWEN.encode("x")[0], QWEN.id("</think>"), *[QWEN.encode(c)[0] for c in "section"]]
    assert CHATML.body(odd) == odd[3:] != QWEN.encode("section")


def test_reasoning_that_never_ends_is_no_memory_and_markers_after_it_count():
    old = QWEN.encode("old")
    for said in ("<think>perhaps 999", "<think>\n\n</think>\n\n", " \n", ""):
        assert CHATML.body(QWEN.literal(said)) == []
        assert CHATML.read_update(QWEN.literal(said), old).memory_ids == old
    same = CHATML.read_update(QWEN.literal("<think>so</think>\n\nUNCHANGED"), old)
    assert (same.memory_ids, same.changed) == (old, False)
    enough = CHATML.read_update(QWEN.literal("ENOUGH"), old)
    assert (enough.memory_ids, enough.changed, enough.done) == (old, False, True)


def test_a_template_may_open_the_reasoning():
    opened = replace(WITHIN_CHATML, after=f"{WITHIN_CHATML.after}<think>\n")
    prompts = Prompts(opened, QWEN, "question-first")
    assert prompts.body(QWEN.encode("perhaps 999 and")) == []
    assert QWEN.decode(prompts.body(QWEN.literal("perhaps</think>a note"))) == "a note"


def test_gate_off_means_the_marker_is_a_memory():
    prompts = make_scheme(TOKENIZER, gate=False).prompts
    marker = [TOKENIZER.id("<|same|>")]
    assert prompts.read_update(marker, [5]).memory_ids == marker


def test_reasoning_is_dropped_and_patterns_pick_the_answer(tmp_path):
    path = tmp_path / "boxed.toml"
    text = (SHIPPED / "plain.toml").read_text().replace('name = "plain"', 'name = "boxed"')
    path.write_text("answer_pattern = '\\\\boxed\\{([^{}]*)\\}'\n" + text)
    prompts = Prompts(load_template(str(path)), TOKENIZER, "question-first")
    answer = TOKENIZER.encode("\\boxed{wrong} hmm</think> so \\boxed{1} and \\boxed{ 42 }")
    assert prompts.read_answer(answer) == ("42", True)
    assert TOKENIZER.decode(prompts.read_update(TOKENIZER.encode("x</think>kept"), [1]).memory_ids) == "kept"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("{segment}", ""), "lacks {segment}"),
        (('name = "nano"', 'name = "nano"\nnonsense = 1'), "nonsense"),
        (('stop = ["<|end|>"]', 'stop = ["<|im_end|>"]'), "not a token of this model"),
        (('same = "<|same|>"', ""), "gate off"),
        (("[answer]", "[answer"), "toml"),
    ],
)
def test_broken_templates_say_what_is_wrong(tmp_path, change, says):
    path = tmp_path / "broken.toml"
    path.write_text((SHIPPED / "nano.toml").read_text().replace(*change))
    with pytest.raises(ConfigError, match=says.replace("{", r"\{")):
        Prompts(load_template(str(path)), TOKENIZER, "section-first", gate=True)


def test_an_unknown_template_lists_the_known():
    with pytest.raises(ConfigError, match=r"nano, plain"):
        load_template("nope")
