import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.errors import UsageError
from memagent.evaluation.grading import KINDS, failure
from memagent.evaluation.metrics import containment
from memagent.evaluation.texts import Sample
from memagent.reading.conversations import ReadingRequest
from memagent.reading.loop import Reading
from memagent.reading.scripted import ScriptedEngine
from memagent.records import Turn
from tests.support.texts import ListStream, make_scheme

GOLD = ("Nevada", "12 May 2014")
TEXTS = ["", "Nevada", "the laws of Nevada govern", "dated 12 May 2014.", "Nevada, 12 May 2014", "nothing of note"]


def sample(*answers, match="all", facts=()):
    return Sample("s", "task", 0, lambda: iter(()), "What?", answers, match, facts)


def turn(memory, step, span=0, kind="update", segment=-1):
    document = "hash" if kind == "update" else ""
    segment = step if kind == "update" and segment < 0 else segment
    return Turn("r", span, step, kind, document, segment, [], "", [], memory, True, 0, 0, "stop", 0.0)


def one_span(*memories):
    updates = [turn(memory, step) for step, memory in enumerate(memories)]
    return [*updates, turn(memories[-1] if memories else "", len(memories), kind="answer")]


def side_by_side(spans, merged):
    """A log of several spans whose memories were merged, one a turn."""
    turns = [turn(memory, step, span) for span, memories in enumerate(spans) for step, memory in enumerate(memories)]
    turns += [turn(memory, step, len(spans), "merge") for step, memory in enumerate(merged)]
    return [*turns, turn(merged[-1], len(spans), len(spans), "answer")]


@pytest.mark.parametrize(
    ("memories", "kind", "step"),
    [
        (["", "other", ""], "never noted", None),
        (["", "law of Nevada", "law of Nevada", "something else", ""], "noted and overwritten", 3),
        (["Nevada", "", "Nevada", "", ""], "noted and overwritten", 3),
        (["", "Nevada", "law: Nevada"], "noted and not used", None),
        (["Nevada", "", "Nevada"], "noted and not used", None),
        ([], "never noted", None),
        (["Nevadan law"], "never noted", None),
    ],
)
def test_one_span(memories, kind, step):
    why = failure(sample("Nevada"), "Ohio", one_span(*memories))
    assert why.kind == kind
    place = why.lost and (why.lost.step, why.lost.segment_index, why.lost.content_hash)
    assert place == (None if step is None else (step, step, "hash"))
    assert why.gold == ("Nevada",)


def test_where_nothing_is_to_be_found():
    assert failure(sample(""), "Ohio", one_span("", "")).kind == "made up"
    with pytest.raises(UsageError, match="right answer"):
        failure(sample(""), "", one_span("", ""))


def test_a_failed_reading_is_not_explained():
    with pytest.raises(UsageError, match="no answer"):
        failure(sample("Nevada"), "", one_span("Nevada")[:-1])


def test_of_several_gold_texts_the_worst_that_the_answer_lacks_counts():
    turns = one_span("Nevada and Ohio", "Ohio")
    assert failure(sample("Ohio", "Nevada", "Utah"), "", turns).gold == ("Utah",)
    assert failure(sample("Ohio", "Nevada", "Utah"), "Utah", turns).gold == ("Nevada",)
    why = failure(sample("Ohio", "Nevada"), "Nevada", turns)
    assert (why.gold, why.kind) == (("Ohio",), "noted and not used")


def test_gold_texts_that_count_for_one_another_are_one():
    turns = one_span("", "the Silver State")
    why = failure(sample("Nevada", "Silver State", match="part"), "Ohio", turns)
    assert (why.kind, why.gold) == ("noted and not used", ("Nevada", "Silver State"))


def test_gold_that_no_fact_says_in_its_words_is_noted_with_the_fact():
    fact = "This agreement is made on May 8, 2014."
    turns = one_span("", fact, "")
    why = failure(sample("5/8/14", match="contract", facts=(fact,)), "May 9", turns)
    assert (why.kind, why.lost.step) == ("noted and overwritten", 2)
    appeal = "There is no appeal in Ohio."
    verdict = sample("No", facts=(appeal, "Reno is far."))
    assert failure(verdict, "Yes", one_span("", "Reno is far.")).kind == "noted and not used"
    assert failure(verdict, "Yes", one_span("", "Reno is near.")).kind == "never noted"
    # Where a fact says the gold itself, the gold is what must be noted.
    facts = ("The law of Nevada governs.", "It was signed in Reno.")
    assert failure(sample("Nevada", facts=facts), "", one_span("It was signed in Reno.")).kind == "never noted"


@pytest.mark.parametrize(
    ("spans", "merged", "kind", "place"),
    [
        ([["", "x"], ["y"]], ["x", "x"], "never noted", None),
        ([["", "x"], ["Nevada"]], ["x", "Nevada"], "noted and not used", None),
        ([["Nevada", "x"], ["y"]], ["x", "y"], "noted and overwritten", (0, 1)),
        ([["Nevada"], ["y"]], ["Nevada", "y"], "noted and overwritten", (2, 1)),
        ([["x"], ["Nevada"], ["y"]], ["x", "x", "y"], "noted and overwritten", (3, 1)),
        ([["Nevada", "x"], ["Nevada"], ["y"]], ["x", "x", "y"], "noted and overwritten", (3, 1)),
        ([["x"], ["Nevada"], ["y"]], ["x"], "noted and overwritten", (3, 0)),
    ],
)
def test_spans_and_merges(spans, merged, kind, place):
    why = failure(sample("Nevada"), "Ohio", side_by_side(spans, merged))
    assert (why.kind, why.lost and (why.lost.span, why.lost.step)) == (kind, place)


logs = st.one_of(
    st.lists(st.sampled_from(TEXTS), max_size=8).map(lambda memories: one_span(*memories)),
    st.tuples(
        st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4), min_size=2, max_size=4),
        st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
    ).map(lambda log: side_by_side(log[0], log[1][: len(log[0])])),
)


@given(
    logs,
    st.lists(st.sampled_from(GOLD), min_size=1, unique=True),
    st.sampled_from(["all", "part", "f1", "contract"]),
    st.randoms(),
)
@settings(max_examples=300, deadline=None)
def test_every_wrong_answer_has_exactly_one_kind(turns, gold, match, rng):
    why = failure(sample(*gold, match=match), "", turns)
    groups = [[one] for one in gold] if match == "all" else [gold]
    kinds = [_by_definition(turns, group) for group in groups]
    assert why.kind == min(kinds, key=KINDS.index)
    assert list(why.gold) == groups[kinds.index(why.kind)]
    lost = [t for t in turns if t == why.lost]
    assert len(lost) == (why.kind == "noted and overwritten")
    assert not any(containment(t.memory, why.gold) for t in lost)
    # The order of the log says nothing, and what is kept to resume from is enough.
    mixed = rng.sample(turns, len(turns))
    assert failure(sample(*gold, match=match), "", mixed) == why
    told = [t for i, t in enumerate(turns) if t.kind != "update" or _tells(turns, i)]
    assert failure(sample(*gold, match=match), "", told) == why


def _by_definition(turns, gold):
    held = [t for t in turns if containment(t.memory, gold)]
    if not held:
        return "never noted"
    return "noted and not used" if containment(turns[-1].memory, gold) else "noted and overwritten"


def _tells(turns, i):
    """Whether a turn changed the memory, or is the first or last of its span (or before the answer)."""
    before = [t for t in turns[:i] if t.span == turns[i].span]
    following = turns[i + 1]
    return not before or before[-1].memory != turns[i].memory or following.span != turns[i].span or i == len(turns) - 2


def test_the_log_of_a_real_reading(tokenizer):
    scheme = make_scheme(tokenizer)
    text = "The pass number for amber-otter is 4829104. " + "The party shall report. " * 40
    turns = []
    stream = ListStream(text, tokenizer)
    question = "What is the pass number for amber-otter?"
    reading = Reading(
        ReadingRequest("r", question, stream), scheme, ScriptedEngine(scheme.prompts).generate, turns.append
    )
    outcome = asyncio.run(reading.run())
    assert outcome.answer == "4829104"
    asked = sample("4829104", facts=("The pass number for amber-otter is 4829104.",))
    assert failure(asked, "17", turns).kind == "noted and not used"
    lost = [replace(turn, memory="x") if turn.step >= 3 else turn for turn in turns]
    why = failure(asked, "17", lost)
    assert (why.kind, why.lost.step, why.lost.segment_index) == ("noted and overwritten", 3, 3)
    assert failure(replace(asked, answers=("999",), facts=()), "17", turns).kind == "never noted"
