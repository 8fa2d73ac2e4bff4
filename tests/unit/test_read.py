"""The public API: one text, one question, in this process."""

import asyncio

import pytest

import memagent
from memagent.errors import ConfigError, UsageError

QUESTION = "What is the access code of cedar-gate?"
FACT = "The access code of cedar-gate is 4471902."
TEXT = "Visitors sign in.\n" * 500 + FACT + "\nDoors close at six." * 500


def read(text: str, **options: object) -> tuple[memagent.ReadingResult, list[memagent.Turn]]:
    spec = memagent.ReadingSpec.load(**options)
    turns: list[memagent.Turn] = []
    engine = memagent.ScriptedEngine(spec.prompts)
    return asyncio.run(memagent.read(text, QUESTION, engine.generate, spec, turns.append)), turns


def test_a_text_is_read_to_an_answer_with_evidence_and_turns():
    result, turns = read(TEXT)
    assert (result.answer, result.found) == ("4471902", True)
    (evidence,) = result.evidence
    assert TEXT[evidence.quote_start : evidence.quote_end] == evidence.quote == FACT
    assert [turn.kind for turn in turns] == ["update"] * result.segments + ["answer"]
    assert [turn.memory for turn in turns if turn.changed] == [FACT]
    assert {turn.reading_id for turn in turns} == {result.reading_id} == {read(TEXT)[0].reading_id}


def test_a_result_says_what_its_memories_were_like():
    kept = read(TEXT)[0]
    assert (kept.memories_cut, kept.memory_empty) == (0, False)
    nothing = read("Visitors sign in.\n" * 500)[0]
    assert (nothing.memories_cut, nothing.memory_empty) == (0, True)
    cut, turns = read(TEXT, memory_tokens=4)
    assert cut.memories_cut == sum(turn.finish_reason == "length" for turn in turns if turn.kind == "update") > 0


@pytest.mark.parametrize(("text", "question"), [("a \ud800 b", "Who?"), ("a", "Who \udfff?"), ("a", " ")])
def test_what_no_model_can_read_is_refused(text, question):
    spec = memagent.ReadingSpec.load()
    with pytest.raises(UsageError, match=r"unpaired surrogate|empty"):
        asyncio.run(memagent.read(text, question, memagent.ScriptedEngine(spec.prompts).generate, spec))


def test_a_text_without_the_answer_or_without_anything_gives_none():
    for text in ("Doors close at six.", ""):
        result, _ = read(text)
        assert (result.answer, result.found, result.evidence) == ("", False, [])


def test_the_reading_keys_of_a_model_hold_until_an_option_overrides_them():
    assert memagent.ReadingSpec.load("nano@sft").config == memagent.ReadingSpec.load().config
    spec = memagent.ReadingSpec.load(segment_tokens=510, parallel_spans=2)
    assert (spec.config.segment_tokens, spec.config.parallel_spans, spec.config.memory_tokens) == (510, 2, 64)
    assert read(TEXT, segment_tokens=510)[0].segments < read(TEXT)[0].segments
    assert read(TEXT, parallel_spans=3)[0].answer == "4471902"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("nano", {"segment_size": 9}, "reading.segment_size: no such key"),
        ("nano@v9", {}, "no bundled version 'v9'"),
        ("./no-model-here", {}, "no model at"),
        ("nano", {"early_exit": True}, "no `exit` marker"),
    ],
)
def test_what_does_not_fit_is_refused(model, options, message):
    with pytest.raises(ConfigError, match=message):
        memagent.ReadingSpec.load(model, **options)


def test_a_model_folder_says_how_it_reads(model_folder):
    spec = memagent.ReadingSpec.load(str(model_folder))
    assert (spec.config.segment_tokens, spec.config.answer_tokens) == (64, 32)
