import asyncio
import random
from itertools import chain

import bm25s
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.config import METHODS, ReadingConfig
from memagent.errors import ConfigError, RequestError, UsageError
from memagent.reading.baselines import config_hash, method, packed, widened
from memagent.reading.conversations import ReadingRequest
from memagent.reading.engine import Completion
from memagent.reading.loop import Reading
from memagent.reading.scripted import ScriptedEngine
from memagent.records import Segment
from tests.support.texts import ListStream, filler, make_scheme

QUESTION = "What is the pass number for amber-otter?"
NEEDLE = "The pass number for amber-otter is 4829104."
WINDOW = 256


def document(before=900, after=900, seed=7):
    rng = random.Random(seed)
    return " ".join([filler(rng, before), NEEDLE, filler(rng, after)])


class Watched:
    """The scripted reader; keeps its prompts and how many conversations there were at once."""

    def __init__(self, scheme, fail_after=None):
        self.engine = ScriptedEngine(scheme.prompts)
        self.prompts, self.running, self.most = [], 0, 0
        self.fail_after = fail_after

    async def generate(self, ids, sampling, priority=0) -> Completion:
        if self.fail_after is not None and len(self.prompts) >= self.fail_after:
            raise RequestError("the engine is gone")
        self.prompts.append(ids)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        try:
            return await self.engine.generate(ids, sampling, priority)
        finally:
            self.running -= 1


def run(name, scheme, text, past=(), question=QUESTION, window=None, engine=None):
    stream = ListStream(text, scheme.prompts.tokenizer, scheme.config.segment_tokens)
    turns, engine = [], engine or Watched(scheme)
    made = method(name, window)(ReadingRequest("r", question, stream, past), scheme, engine.generate, turns.append)
    return asyncio.run(made.run()), turns, stream, engine


def window_of(name):
    return None if name == "memagent" else WINDOW


@pytest.mark.parametrize("name", METHODS)
def test_every_method_logs_and_counts_as_a_reading_does(scheme, name):
    outcome, turns, stream, engine = run(name, scheme, document(), window=window_of(name))
    assert outcome.reading_id == "r" and outcome.seconds > 0
    assert outcome.conversations == len(turns) == len(engine.prompts)
    assert outcome.prompt_tokens == sum(turn.prompt_tokens for turn in turns) == sum(map(len, engine.prompts))
    assert outcome.output_tokens == sum(len(turn.response_ids) for turn in turns)
    assert turns[-1].kind == "answer" and [turn.kind for turn in turns].count("answer") == 1
    assert len({(turn.span, turn.step) for turn in turns}) == len(turns)
    read = {turn.segment_index for turn in turns if turn.kind == "update"}
    assert read <= {segment.index for segment in stream.segments}


@pytest.mark.parametrize("name", ["memagent", "bm25", "map-reduce"])
@pytest.mark.parametrize("layout", ["question-first", "section-first"])
def test_a_fact_in_the_middle_is_found_and_shown(tokenizer, name, layout):
    scheme = make_scheme(tokenizer, layout=layout)
    outcome, _, stream, _ = run(name, scheme, document(), window=window_of(name))
    assert (outcome.answer, outcome.found) == ("4829104", True)
    evidence = outcome.evidence[0]
    text = "".join(segment.text for segment in stream.segments)
    assert text[evidence.quote_start : evidence.quote_end] == evidence.quote
    assert "4829104" in evidence.quote
    segment = stream.segments[evidence.segment_index]
    assert (evidence.char_start, evidence.char_end) == (segment.char_start, segment.char_end)
    assert evidence.char_start <= evidence.quote_start and evidence.quote_end <= evidence.char_end


def test_truncation_loses_the_middle_and_keeps_both_ends(scheme):
    outcome, turns, stream, engine = run("truncate", scheme, document(), window=WINDOW)
    assert (outcome.answer, outcome.found, outcome.evidence) == ("", False, [])
    assert [turn.kind for turn in turns] == ["update", "answer"]
    read = scheme.prompts.parse(engine.prompts[0])["segment"]
    ids = [segment.token_ids for segment in stream.segments]
    count = outcome.segments
    head = [token for part in ids[: (count + 1) // 2] for token in part]
    tail = [token for part in ids[len(ids) - count // 2 :] for token in part]
    assert count >= 4 and read == head + tail
    assert WINDOW - 64 < len(read) <= WINDOW
    for text in (document(before=8), document(after=8)):
        outcome, *_ = run("truncate", scheme, text, window=WINDOW)
        assert outcome.answer == "4829104" and "4829104" in outcome.evidence[0].quote


@given(words=st.integers(0, 250), window=st.integers(64, 2000))
@settings(max_examples=30, deadline=None)
def test_what_fits_the_window_is_read_whole_and_nothing_beyond_it(tokenizer, words, window):
    scheme = make_scheme(tokenizer)
    text = filler(random.Random(words), words) if words else ""
    for name in ("truncate", "bm25"):
        outcome, turns, stream, engine = run(name, scheme, text, window=window)
        total = sum(len(segment.token_ids) for segment in stream.segments)
        updates = [scheme.prompts.parse(prompt)["segment"] for prompt in engine.prompts[:-1]]
        assert len(updates) == min(1, len(stream)) and len(turns) == len(updates) + 1
        assert all(0 < len(update) <= window for update in updates)
        if total <= window:
            assert outcome.segments == len(stream)
            assert list(chain(*updates)) == [token for segment in stream.segments for token in segment.token_ids]
        else:
            assert 0 < outcome.segments < len(stream)


def test_bm25_reads_the_best_segments_in_the_order_of_the_document(scheme):
    rng = random.Random(6)
    hint = "Amber-otter needs a pass."
    text = " ".join([filler(rng, 300), NEEDLE, filler(rng, 500), hint, filler(rng, 300)])
    outcome, turns, stream, engine = run("bm25", scheme, text, window=140)
    said = scheme.prompts.tokenizer.decode(scheme.prompts.parse(engine.prompts[0])["segment"])
    assert 0 <= said.find("4829104") < said.find("Amber-otter needs")
    assert outcome.segments == 2
    best = next(segment for segment in stream.segments if "4829104" in segment.text)
    assert turns[0].segment_index == best.index


@pytest.mark.parametrize("question", ["?", "what is the", "zebra quagga"])
def test_bm25_without_a_word_to_rank_by_reads_from_the_start(scheme, question):
    outcome, turns, _, _ = run("bm25", scheme, document(), question=question)
    assert turns[0].segment_index == 0 and outcome.segments == 1


def test_map_reduce_reads_every_segment_from_an_empty_memory_and_only_notes_again(scheme):
    decoy = "The pass number for amber-otter was 17 until May."
    text = " ".join([document(300, 300), decoy, filler(random.Random(8), 900)])
    outcome, turns, stream, engine = run("map-reduce", scheme, text)
    slots = [scheme.prompts.parse(prompt) for prompt in engine.prompts]
    updates = [slot for slot in slots[: len(stream)] if slot["memory"] == scheme.prompts.no_memory]
    assert len(updates) == len(stream) == outcome.segments
    assert sorted(tuple(slot["segment"]) for slot in updates) == sorted(
        tuple(segment.token_ids) for segment in stream.segments
    )
    merges = [turn for turn in turns if turn.kind == "merge"]
    noted = [turn for turn in turns if turn.kind == "update" and turn.changed]
    assert len(noted) >= 2 and 1 <= len(merges) <= len(noted)
    assert outcome.answer == "4829104"
    assert 1 < engine.most <= 32


def test_map_reduce_answers_where_nothing_was_noted(scheme):
    outcome, turns, stream, _ = run("map-reduce", scheme, filler(random.Random(2), 400))
    assert not outcome.found and [turn.kind for turn in turns] == ["update"] * len(stream) + ["answer"]


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), max_size=12), st.integers(1, 30))
def test_packed_notes_are_all_there_in_order_and_fit(notes, window):
    texts = packed(notes, [0], window)
    assert list(chain(*([0, *text] for text in texts))) == list(chain(*([0, *note] for note in notes)))
    assert all(len(text) <= window or text in notes for text in texts)
    taken = 0
    for text in texts[:-1]:
        taken += text.count(0) + 1
        assert len(text) + 1 + len(notes[taken]) > window


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_no_method_repeats_a_logged_conversation(scheme, name, cut):
    text = document(200, 200)
    whole, turns, *_ = run(name, scheme, text, window=window_of(name))
    past = turns[: min(cut, len(turns) - 1)]
    again, rest, _, engine = run(name, scheme, text, past, window=window_of(name))
    assert (again.answer, again.found, again.evidence) == (whole.answer, whole.found, whole.evidence)
    assert len(engine.prompts) == again.conversations == len(turns) - len(past)
    assert not {(t.span, t.step) for t in rest} & {(t.span, t.step) for t in past}
    done, nothing, _, engine = run(name, scheme, text, turns, window=window_of(name))
    assert (done.answer, done.evidence, done.conversations, done.segments) == (whole.answer, whole.evidence, 0, 0)
    assert not nothing and not engine.prompts


@pytest.mark.parametrize("name", METHODS)
def test_an_engine_that_fails_is_not_hidden(scheme, name):
    with pytest.raises(RequestError, match="gone"):
        run(name, scheme, document(100, 100), window=window_of(name), engine=Watched(scheme, fail_after=1))


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_document_is_answered(scheme, name):
    outcome, turns, _, _ = run(name, scheme, "", window=window_of(name))
    assert not outcome.found and [turn.kind for turn in turns] == ["answer"] and outcome.segments == 0


def test_documents_of_one_stream_keep_their_own_places(scheme):
    tokenizer = scheme.prompts.tokenizer
    stream = ListStream(filler(random.Random(1), 60), tokenizer)
    other = ListStream(f"{filler(random.Random(2), 24)} {NEEDLE} {filler(random.Random(4), 60)}", tokenizer)
    for segment in other.segments:
        object.__setattr__(segment, "content_hash", "other")
    stream.segments += other.segments
    made = method("bm25", WINDOW)(ReadingRequest("r", QUESTION, stream), scheme, Watched(scheme).generate, [].append)
    evidence = asyncio.run(made.run()).evidence[0]
    assert evidence.content_hash == "other" and evidence.quote.count("4829104") == 1
    text = "".join(segment.text for segment in other.segments)
    assert text[evidence.quote_start : evidence.quote_end] == evidence.quote


def test_windows_and_names_are_checked(scheme):
    assert METHODS["memagent"] is Reading and method("memagent") is Reading
    with pytest.raises(UsageError, match="no method 'rag'"):
        method("rag")
    with pytest.raises(UsageError, match="segment_tokens"):
        method("memagent", 100)
    for name in ("truncate", "bm25", "map-reduce"):
        with pytest.raises(ConfigError, match="holds no segment of 64"):
            run(name, scheme, document(), window=63)
    question = scheme.prompts.tokenizer.encode(QUESTION)
    scheme.check_window(question, 400)
    with pytest.raises(ConfigError, match="segment 500"):
        widened(scheme, 500).check_window(question, 400)


def test_readings_of_two_methods_have_two_names():
    own = ReadingConfig().hash("template")
    names = {config_hash(name, window, own) for name in METHODS for window in (None, 8000)}
    assert config_hash("memagent", None, own) == own and len(names) == 7


@given(st.lists(st.text("abcd ", max_size=30), min_size=1, max_size=6), st.text("abcd ", max_size=10))
@settings(max_examples=40, deadline=None)
def test_ranking_is_that_of_the_library_over_whole_texts(tokenizer, texts, question):
    # Words are of two letters at least; each text is a segment of its own.
    segments = [Segment("hash", i, 0, len(text), text, tokenizer.encode(text) or [0]) for i, text in enumerate(texts)]
    stream = ListStream("", tokenizer)
    stream.segments = segments
    scheme = make_scheme(tokenizer)
    chosen = asyncio.run(METHODS["bm25"](ReadingRequest("r", question, stream), scheme, None, None).choose(64))
    words = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    asked = sorted(set(bm25s.tokenize([question], return_ids=False, show_progress=False)[0]))
    scores = [0.0] * len(texts)
    if asked and any(words):
        whole = bm25s.BM25()
        whole.index(words, show_progress=False)
        scores = whole.get_scores(asked).tolist()
    kept = {segment.index for segment in chosen}
    assert [segment.index for segment in chosen] == sorted(kept)
    best = sorted(range(len(texts)), key=lambda at: (-round(scores[at], 4), at))
    assert {round(scores[at], 4) for at in kept} == {round(scores[at], 4) for at in best[: len(kept)]}
