"""Rollouts keep the very tokens that the engine saw and said."""

import asyncio
import random
from dataclasses import replace

import pytest

from memagent.errors import EngineDied
from memagent.evaluation.texts import Sample
from memagent.reading.scripted import ScriptedEngine
from memagent.reading.segmenting import segments
from memagent.rl.config import RewardRecipe
from memagent.rl.dataset import Task, nothing
from memagent.rl.rollout import roll_out_group
from tests.support.texts import filler, make_scheme

QUESTION = "What is the pass number for amber-otter?"


class Saying(ScriptedEngine):
    """The scripted reader, with made-up log-probabilities and a book of what it was asked."""

    def __init__(self, prompts, dies_at=None):
        super().__init__(prompts)
        self.book, self.seeds, self.running, self.dies_at = [], [], 0, dies_at

    async def generate(self, ids, sampling, priority=0):
        if self.dies_at is not None and len(self.book) == self.dies_at:
            raise EngineDied("gone")
        self.running += 1
        try:
            said = await super().generate(ids, sampling, priority)
        finally:
            self.running -= 1
        assert sampling.logprobs
        self.book.append((ids, said.ids))
        self.seeds.append(sampling.seed)
        return replace(said, logprobs=[-0.1 * (i + 1) for i in range(len(said.ids))], weight_version="7")


def task(scheme, gold=("4829104",), text=None):
    rng = random.Random(1)
    text = text or f"{filler(rng, 80)} The pass number for amber-otter is 4829104. {filler(rng, 80)}"
    cut = segments("hash", text, scheme.prompts.tokenizer, scheme.config.segment_tokens)
    return Task(Sample("s1", "needle", 0, nothing, QUESTION, gold, "all"), tuple(cut))


def roll(scheme, engine, size=3, pay=None, **kwargs):
    return asyncio.run(roll_out_group(task(scheme, **kwargs), size, scheme, engine.generate, pay or RewardRecipe()))


@pytest.mark.parametrize("spans", [1, 3])
def test_conversations_are_what_the_engine_was_asked_and_said(tokenizer, spans):
    scheme = make_scheme(tokenizer, parallel_spans=spans)
    engine = Saying(scheme.prompts)
    group = roll(scheme, engine)
    kept = [c for t in group.trajectories for c in t.conversations]
    assert sorted((c.prompt_ids, c.response_ids) for c in kept) == sorted(engine.book)
    for trajectory in group.trajectories:
        assert [c.kind for c in trajectory.conversations].count("answer") == 1
        assert trajectory.conversations[-1].kind == "answer"
        assert ("merge" in [c.kind for c in trajectory.conversations]) == (spans > 1)
    assert {c.weight_version for c in kept} == {"7"}
    assert [t.rollout for t in group.trajectories] == [0, 1, 2]


def test_right_answers_are_paid(scheme):
    group = roll(scheme, Saying(scheme.prompts))
    assert group.rewards == [1.0] * 3 and not group.has_signal
    wrong = roll(scheme, Saying(scheme.prompts), gold=("1111111",))
    assert wrong.rewards == [0.0] * 3
    nothing = roll(scheme, Saying(scheme.prompts), gold=("",), text="Nothing of the kind.")
    assert nothing.rewards == [1.0] * 3


def test_rollouts_of_a_group_do_not_share_a_seed(scheme):
    engine = Saying(scheme.prompts)
    roll(scheme, engine)
    assert set(engine.seeds) == {None}


def test_a_response_at_its_limit_is_fined_once(tokenizer):
    scheme = make_scheme(tokenizer, memory_tokens=4, gate=False)
    group = roll(
        scheme, Saying(scheme.prompts), pay=RewardRecipe(weights={"exact": 1.0, "format": 0.5}, overlong_tokens=2)
    )
    for trajectory in group.trajectories:
        assert any(c.cut for c in trajectory.conversations)
        assert trajectory.reward.parts["format"] == 0.0
        assert trajectory.reward.parts["overlong"] == -1.0


def test_an_empty_answer_is_a_wrong_one_to_learn_from(scheme):
    class Silent(Saying):
        async def generate(self, ids, sampling, priority=0):
            said = await super().generate(ids, sampling, priority)
            if "segment" in self._prompts.parse(ids):
                return said
            return replace(said, ids=list(self._prompts.stop_ids), logprobs=[-0.1])

    group = roll(scheme, Silent(scheme.prompts))
    assert group.rewards == [0.0] * 3
    assert {(t.answer, t.conversations[-1].kind) for t in group.trajectories} == {("", "answer")}


def test_a_dead_engine_fails_the_group_and_leaves_nothing_running(scheme):
    engine = Saying(scheme.prompts, dies_at=3)
    with pytest.raises(EngineDied):
        roll(scheme, engine)
    assert engine.running == 0


def test_an_engine_without_log_probabilities_cannot_be_trained_with(scheme):
    engine = Saying(scheme.prompts)
    said = engine.generate

    async def silent(*args, **kwargs):
        return replace(await said(*args, **kwargs), logprobs=None)

    engine.generate = silent
    with pytest.raises(ValueError, match="log-probabilities"):
        roll(scheme, engine)
