import asyncio
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.errors import ConfigError, EmptyResponse, RequestError
from memagent.reading.conversations import ReadingRequest, span_ranges
from memagent.reading.engine import Completion, mean_probability
from memagent.reading.loop import Reading
from memagent.reading.scripted import ScriptedEngine
from tests.support.texts import ListStream, filler, make_scheme

QUESTION = "What is the pass number for amber-otter?"


def document(rng, before=300, after=300, value="4829104"):
    needle = f"The pass number for amber-otter is {value}."
    decoy = "The pass number for amber-heron is 1111111."
    return " ".join([filler(rng, before), decoy, filler(rng, 50), needle, filler(rng, after), decoy])


def read(scheme, text, past=(), engine=None, question=QUESTION):
    stream = ListStream(text, scheme.prompts.tokenizer, scheme.config.segment_tokens)
    turns = []
    engine = engine or ScriptedEngine(scheme.prompts)
    outcome = asyncio.run(
        Reading(ReadingRequest("r", question, stream, past), scheme, engine.generate, turns.append).run()
    )
    return outcome, turns, stream


@pytest.mark.parametrize("layout", ["question-first", "section-first"])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("spans", [1, 2, 3, 50])
def test_finds_the_needle_with_every_option(tokenizer, layout, gate, spans):
    scheme = make_scheme(tokenizer, layout=layout, gate=gate, parallel_spans=spans)
    outcome, turns, stream = read(scheme, document(random.Random(3)))
    assert (outcome.answer, outcome.found) == ("4829104", True)
    assert sorted(set(stream.reads)) == list(range(len(stream)))
    assert outcome.conversations == len(turns)
    assert outcome.segments == len(stream)
    assert outcome.prompt_tokens == sum(turn.prompt_tokens for turn in turns)
    assert outcome.output_tokens == sum(len(turn.response_ids) for turn in turns)
    assert len({(turn.span, turn.step) for turn in turns}) == len(turns)
    evidence = outcome.evidence[0]
    assert "4829104" in evidence.quote
    text = "".join(segment.text for segment in stream.segments)
    assert text[evidence.quote_start : evidence.quote_end] == evidence.quote
    assert evidence.char_start <= evidence.quote_start and evidence.quote_end <= evidence.char_end


class Silent(ScriptedEngine):
    """Says nothing in some of its conversations, by number."""

    def __init__(self, prompts, silent):
        super().__init__(prompts)
        self.calls, self.silent = 0, silent

    async def generate(self, ids, sampling, priority=0):
        self.calls += 1
        said = await super().generate(ids, sampling, priority)
        return replace(said, ids=list(self._prompts.stop_ids)) if self.calls - 1 in self.silent else said


def test_an_empty_update_leaves_the_memory_and_counts_and_an_empty_answer_is_no_answer(tokenizer):
    scheme = make_scheme(tokenizer)
    text = f"The pass number for amber-otter is 4829104. {filler(random.Random(5), 300)}"
    plain, turns, _ = read(scheme, text)
    outcome, lost, _ = read(scheme, text, engine=Silent(scheme.prompts, {1, 2}))
    assert (outcome.answer, outcome.memories_cut, plain.memories_cut) == ("4829104", 2, 0)
    assert [turn.memory for turn in lost] == [turn.memory for turn in turns]
    assert [turn.finish_reason for turn in lost[:4]] == ["stop", "empty", "empty", "stop"]
    with pytest.raises(EmptyResponse, match="the response is empty"):
        read(scheme, text, engine=Silent(scheme.prompts, {len(turns) - 1}))
    with pytest.raises(EmptyResponse, match="not found, but memory updates were lost"):
        read(scheme, text, engine=Silent(scheme.prompts, {0}))
    with pytest.raises(EmptyResponse, match="not found, but memory updates were lost"):
        past = [replace(lost[1], step=0, memory_ids=scheme.prompts.no_memory, memory="")]
        read(scheme, filler(random.Random(5), 300), past=past)


def test_a_long_stream_is_read_in_more_spans_than_a_short_one(tokenizer):
    scheme = make_scheme(tokenizer, span_segments=4)
    _, short, _ = read(scheme, "The pass number for amber-otter is 4829104.")
    assert {turn.span for turn in short} == {0}
    outcome, turns, stream = read(scheme, document(random.Random(3)))
    spans = math.ceil(len(stream) / 4)
    assert spans > 2 and {turn.span for turn in turns if turn.kind == "update"} == set(range(spans))
    assert outcome.answer == "4829104"
    same, _, _ = read(make_scheme(tokenizer, parallel_spans=spans), document(random.Random(3)))
    assert same.conversations == outcome.conversations


def test_says_not_found_when_the_document_does_not_say(scheme):
    outcome, turns, _ = read(scheme, filler(random.Random(1), 500))
    assert (outcome.answer, outcome.found, outcome.evidence) == ("", False, [])
    assert turns[-1].kind == "answer"


def test_an_empty_document_is_answered(scheme):
    outcome, turns, _ = read(scheme, "")
    assert not outcome.found and len(turns) == 1


@given(cut=st.integers(0, 200), spans=st.integers(1, 4), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_reading_goes_on_from_any_point_of_its_log(tokenizer, cut, spans, seed):
    scheme = make_scheme(tokenizer, parallel_spans=spans)
    text = document(random.Random(seed))
    whole, turns, _ = read(scheme, text)
    rng = random.Random(cut)
    # Lanes advance independently: a crash leaves a prefix of each.
    kept = []
    for span in range(spans + 1):
        of_span = [turn for turn in turns if turn.span == span]
        kept += of_span[: rng.randint(0, len(of_span))] if span < spans else []
    resumed, more, _ = read(scheme, text, kept)
    assert (resumed.answer, resumed.evidence) == (whole.answer, whole.evidence)
    assert len(kept) + len(more) == len(turns)
    assert not {(t.span, t.step) for t in kept} & {(t.span, t.step) for t in more}


def test_a_logged_answer_is_not_asked_for_again(scheme):
    text = document(random.Random(2))
    whole, turns, _ = read(scheme, text)
    again, more, _ = read(scheme, text, turns)
    assert not more and again.answer == whole.answer and again.evidence == whole.evidence
    assert again.conversations == 0


class Doubting(ScriptedEngine):
    """Sure of each response as the response itself says: the same one always as sure."""

    async def generate(self, ids, sampling, priority=0):
        said = await super().generate(ids, sampling, priority)
        return replace(said, logprobs=[math.log(_sure(said.ids))] * len(said.ids))


def _sure(ids):
    return 0.1 + 0.9 * random.Random(str(ids)).random()


@pytest.mark.parametrize("spans", [1, 3])
def test_a_reading_is_as_sure_as_its_least_sure_conversation(scheme, spans):
    spec = replace(scheme, config=scheme.config.model_copy(update={"parallel_spans": spans}))
    text = document(random.Random(2))
    outcome, turns, _ = read(spec, text, engine=Doubting(spec.prompts))
    assert outcome.confidence == pytest.approx(min(_sure(turn.response_ids) for turn in turns))
    assert outcome.confidence < min(_sure(turn.response_ids) for turn in turns if turn.kind == "answer")
    assert all(turn.logprobs is None for turn in turns), "kept only where asked for"
    for cut in range(len(turns) + 1):
        again = read(spec, text, turns[:cut], engine=Doubting(spec.prompts))[0]
        assert again.confidence == outcome.confidence, "the turn log has what was read before"
    assert read(spec, text)[0].confidence == 1.0, "the scripted reader has no doubts"
    earlier = [replace(turn, confidence=None) for turn in turns]
    for cut in range(1, len(turns) + 1):
        assert read(spec, text, earlier[:cut])[0].confidence is None


@given(st.lists(st.floats(-50, 0), max_size=20))
def test_a_mean_probability_is_one_and_lies_between_those_of_the_tokens(logprobs):
    mean = mean_probability(logprobs)
    if not logprobs:
        assert mean == 1.0 and mean_probability(None) is None
    else:
        assert math.exp(min(logprobs)) * (1 - 1e-9) <= mean <= min(1.0, math.exp(max(logprobs)) * (1 + 1e-9))


def test_truncated_memory_and_failures_propagate(scheme):
    class Broken:
        async def generate(self, ids, sampling, priority=0):
            raise RequestError("no")

    with pytest.raises(RequestError):
        read(scheme, document(random.Random(1)), engine=Broken())


def test_a_failing_span_stops_the_others(tokenizer):
    scheme = make_scheme(tokenizer, parallel_spans=3)
    calls = []

    class Broken:
        async def generate(self, ids, sampling, priority=0):
            calls.append(1)
            if len(calls) == 3:
                raise RequestError("no")
            await asyncio.sleep(0.01)
            return Completion([scheme.prompts.stop_ids[0]], "stop", len(ids))

    with pytest.raises(RequestError):
        read(scheme, document(random.Random(1)), engine=Broken())
    assert len(calls) < 8


def test_longer_readings_come_first(scheme):
    seen = []

    class Spy(ScriptedEngine):
        async def generate(self, ids, sampling, priority=0):
            seen.append(priority)
            return await super().generate(ids, sampling, priority)

    read(scheme, document(random.Random(1)), engine=Spy(scheme.prompts))
    assert seen == sorted(seen) and seen[0] < seen[-1] == 0


def test_a_question_that_does_not_fit_is_refused(scheme, tokenizer):
    with pytest.raises(ConfigError, match="segment_tokens"):
        scheme.check_window(tokenizer.encode("why " * 100), 256)


@given(st.integers(0, 500), st.integers(1, 60))
def test_spans_cover_the_stream_once(segments, spans):
    cut = span_ranges(segments, spans)
    assert [i for span in cut for i in span] == list(range(segments))
    assert len(cut) == max(1, min(spans, segments))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
