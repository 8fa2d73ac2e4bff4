"""The teacher: right readings of tasks whose evidence is known."""

import asyncio
import random
from dataclasses import replace

import pytest

from memagent.evaluation.texts import Sample
from memagent.quality.curation import Qa
from memagent.reading.conversations import ReadingSpec
from memagent.rl.dataset import Cut, LoggedReading, Task, make_task, nothing
from memagent.rl.sources import NeedleDataset, RowDataset
from memagent.rl.teacher import notes, teach
from tests.support.texts import filler


@pytest.fixture(scope="module", params=[True, False], ids=["gate", "no gate"])
def spec(request):
    return ReadingSpec.load("nano", segment_tokens=64, memory_tokens=64, gate=request.param)


def cut(spec):
    return Cut(spec.prompts.tokenizer, spec.config, 6)


def task(spec, text, answers, facts=(), match="exact"):
    sample = Sample(
        "s",
        "made",
        0,
        pieces=nothing,
        question="What is the code of gate 7?",
        answers=answers,
        match=match,
        facts=facts,
    )
    return make_task(sample, "s", cut(spec)(text), 20, random.Random(0))


def said(spec, conversation):
    return spec.prompts.tokenizer.decode(conversation.response_ids, special=True)


def test_it_notes_the_sentence_and_answers_from_it(spec):
    rng = random.Random(0)
    before, after = filler(rng, 60), filler(rng, 60)
    made = asyncio.run(teach(task(spec, f"{before} The code of gate 7 is 4471. {after}", ("4471",)), spec))
    *updates, answer = made.conversations
    assert len(updates) > 2 and answer.kind == "answer" and said(spec, answer) == "4471<|end|>"
    noted = [said(spec, one) for one in updates if "4471" in said(spec, one)]
    assert noted and noted[0] == "The code of gate 7 is 4471.<|end|>"
    before = said(spec, updates[0])
    assert before == ("<|same|><|end|>" if spec.config.gate else "<|none|><|end|>")
    assert all(one.logprobs == [0.0] * len(one.response_ids) for one in made.conversations)


def test_it_says_that_there_is_nothing(spec):
    made = asyncio.run(teach(task(spec, filler(random.Random(1), 120), ("",)), spec))
    assert said(spec, made.conversations[-1]) == "not found<|end|>" and made.reward.right


def test_all_answers_are_listed_where_all_are_asked_for(spec):
    text = f"The code of gate 7 is 4471. {filler(random.Random(2), 60)} Gate 7 has the code 5582, too."
    made = asyncio.run(teach(task(spec, text, ("4471", "5582"), match="all"), spec))
    assert said(spec, made.conversations[-1]) == "4471, 5582<|end|>"
    either = asyncio.run(teach(task(spec, text, ("4471", "code 4471")), spec))
    assert said(spec, either.conversations[-1]) == "4471<|end|>"


def test_what_it_cannot_show_is_left_out(spec):
    assert asyncio.run(teach(task(spec, filler(random.Random(3), 120), ("4471",)), spec)) is None, "nowhere in the text"
    long = " ".join(str(random.Random(4).randrange(10**9)) for _ in range(60))
    assert asyncio.run(teach(task(spec, f"The code of gate 7 is {long}.", (long,)), spec)) is None, "no room"


def test_evidence_that_a_cut_goes_through_is_noted_in_parts():
    fact = "governed by the laws of the State of New York"
    assert notes("It is agreed. This is governed by the laws of", [fact]) == ["This is governed by the laws of"]
    assert notes("the State of New York. It is agreed.", [fact]) == ["the State of New York."]
    assert notes("Nothing of it.", [fact]) == []
    assert notes("A is 1. B is 2. A is 1.", ["1"]) == ["A is 1."]


def test_it_reads_most_generated_tasks(spec):
    texts = [filler(random.Random(n), 400) for n in range(6)]
    data = NeedleDataset(cut(spec), texts, 0)
    tasks = [data.task(n) for n in range(30)]
    made = [asyncio.run(teach(one, spec)) for one in tasks]
    right = [one for one in made if one is not None]
    assert len(right) >= 20
    assert all(one.reward.right and not any(c.cut for c in one.conversations) for one in right)


def test_a_task_is_read_alike_every_time(spec):
    one = task(spec, f"{filler(random.Random(5), 60)} The code of gate 7 is 4471.", ("4471",))
    assert asyncio.run(teach(one, spec)) == asyncio.run(teach(replace(one), spec))
    assert isinstance(one, Task)


def test_it_reads_answers_that_people_accepted_or_corrected(spec):
    """A harvested row knows where its answer stands, or only the answer; other rows' documents stand around it."""
    rng = random.Random(4)
    texts = {name: f"{filler(rng, 50)} The code of gate {name} is 44{name}0. {filler(rng, 50)}" for name in "123"}
    at = texts["1"].index("4410")
    asked = {name: f"What is the code of gate {name}?" for name in texts}
    rows = [
        Qa(asked["1"], ("4410",), ("1",), ("d1",), "feedback", spans=(("1", at, at + 4),)),
        Qa(asked["2"], ("4420",), ("2",), ("d2",), "feedback"),
        Qa(asked["3"], ("",), ("1",), ("d1",), "feedback"),
    ]
    data = RowDataset(cut(spec), rows, texts.__getitem__, 0)
    answers = {}
    for number in range(6):
        one = data.task(number)
        made = asyncio.run(teach(one, spec))
        answers[one.question] = said(spec, made.conversations[-1]).removesuffix("<|end|>")
    assert answers == {asked["1"]: "4410", asked["2"]: "4420", asked["3"]: "not found"}


def test_it_writes_the_memories_of_a_reading_that_it_follows(spec):
    """Another model's words, which are in no segment; and what the next prompt cannot hold is not shown."""
    texts = {"d": " ".join(filler(random.Random(n), 30) for n in range(8))}
    cuts = cut(spec)(texts["d"])
    bounds = [(one.char_start, one.char_end) for one in cuts]
    changes = {1: "Gate 7: four digits.", 3: "Gate 7: 4471 it is."}
    row = Qa("What is the code of gate 7?", ("4471",), ("d",), ("d",), "agreement", reading_id="r")
    data = RowDataset(cut(spec), [row], texts.__getitem__, 0, readings={"r": LoggedReading("d", bounds, changes)})
    lengths = set()
    for number in range(6):
        one = data.task(number)
        lengths.add(len(one.segments))
        assert {1, 3} <= {segment.index for segment in one.segments} and len(one.segments) <= 6
        made = asyncio.run(teach(one, spec))
        *updates, answer = (said(spec, conversation).removesuffix("<|end|>") for conversation in made.conversations)
        assert answer == "4471" and made.advantage == 1.0 and one.evidence() is None, "no segment says it"
        told = dict(zip((segment.index for segment in one.segments), updates, strict=True))
        same = {i: said for i, said in told.items() if i not in changes}
        assert {i: told[i] for i in changes} == changes
        assert not same or spec.config.gate is False or set(same.values()) == {"<|same|>"}
    assert len(lengths) > 1, "other segments that it read stand among them"
    long = {1: "four " * 100}
    full = RowDataset(cut(spec), [row], texts.__getitem__, 0, readings={"r": LoggedReading("d", bounds, long)})
    assert asyncio.run(teach(full.task(0), spec)) is None, "more than a memory holds"
