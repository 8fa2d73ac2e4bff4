import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from memagent.reading.conversations import ReadingRequest
from memagent.reading.engine import LONGEST, Completion, repeats
from memagent.reading.loop import Reading
from memagent.reading.scripted import ScriptedEngine
from tests.support.texts import ListStream, filler, make_scheme

patterns = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@given(
    before=st.lists(st.integers(0, 3), max_size=20), pattern=patterns, times=st.integers(2, 6), part=st.integers(0, 8)
)
def test_what_ends_with_a_pattern_so_many_times_repeats(before, pattern, times, part):
    # A response is cut anywhere, also within the pattern.
    ids = before + pattern * times + pattern[: part % len(pattern)]
    assert repeats(ids, times)
    assert not repeats(ids, len(ids) + 1)


@given(ids=st.lists(st.integers(), unique=True), times=st.integers(0, 4))
def test_what_says_nothing_twice_repeats_nothing(ids, times):
    assert not repeats(ids, times)


def test_patterns_are_bounded_and_need_their_number_of_times():
    assert repeats([1, 2] * 3, 3) and not repeats([1, 2] * 3, 4)
    assert not repeats([1, 1, 1, 2], 3), "what was said before the end does not count"
    assert not repeats(list(range(LONGEST + 1)) * 3, 3)
    assert not repeats([1] * 9, 0) and not repeats([1] * 9, 1)


class RunsAway(ScriptedEngine):
    """Repeats a word to the limit instead of every second update; tells it as a length, as engines do."""

    calls = 0

    async def generate(self, ids, sampling, priority=0):
        slots = self._prompts.parse(ids)
        self.calls += 1
        if "segment" not in slots or self.calls % 2:
            return await super().generate(ids, sampling, priority)
        word = self._prompts.tokenizer.encode("is ")
        return Completion((word * sampling.max_tokens)[: sampling.max_tokens], "length", len(ids))


def test_an_update_that_runs_away_changes_nothing_and_is_told(tokenizer):
    def read(times):
        scheme = make_scheme(tokenizer, gate=True, repetitions=times)
        text = "The pass number for amber-otter is 4829104. " + filler(random.Random(5), 900)
        stream = ListStream(text, tokenizer, scheme.config.segment_tokens)
        turns = []
        engine = RunsAway(scheme.prompts)
        question = "What is the pass number for amber-otter?"
        return asyncio.run(
            Reading(ReadingRequest("r", question, stream), scheme, engine.generate, turns.append).run()
        ), turns

    outcome, turns = read(12)
    assert outcome.answer == "4829104"
    ran = [turn for turn in turns if turn.finish_reason == "repetition"]
    assert len(ran) > 2 and not any(turn.changed for turn in ran)
    assert all("4829104" in turn.memory for turn in ran)
    assert outcome.output_tokens == sum(len(turn.response_ids) for turn in turns), "what was said is counted and kept"
    outcome, turns = read(0)
    assert outcome.answer != "4829104" and {turn.finish_reason for turn in turns} == {"stop", "length"}
