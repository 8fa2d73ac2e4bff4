"""Training methods beside Multi-Conv DAPO, by numbers worked out by hand."""

import asyncio
import json
import random
from dataclasses import replace

import pytest

from memagent.errors import ConfigError
from memagent.evaluation.texts import Sample
from memagent.reading.segmenting import segments
from memagent.rl.config import SHIPPED, Recipe, load_recipe
from memagent.rl.dataset import Task, nothing
from memagent.rl.methods import METHODS, credits_of, exit_reward, removed, right_updates
from memagent.rl.packing import items
from memagent.rl.reward import Answered, MemoryUpdate, Reward, Trace
from memagent.rl.rollout import RewardConfig, roll_out_group
from memagent.rl.trajectory import Conversation, Group, Trajectory, from_dict
from pipelines.training.settings import prepare
from tests.support.texts import filler, make_scheme
from tests.unit.test_rl_rollout import QUESTION, Saying, task

NOTE, SAME, BROKEN = MemoryUpdate(True, True), MemoryUpdate(False, True), MemoryUpdate(False, False)


def rollout(total, updates, evidence=(False, True, False), right=None):
    """A rollout of so many updates and an answer, each a token long."""
    said = [Conversation([1], [2], [-1.0], "update") for _ in updates] + [Conversation([1], [2], [-1.0], "answer")]
    strict = float(total >= 1 if right is None else right)
    trace = Trace(tuple(updates), 3, None if evidence is None else tuple(evidence))
    return Trajectory("s", 0, tuple(said), Reward(total, strict, strict), trace=trace)


def assigned(method, rollouts, weight=0.5, likelihoods=()):
    group = METHODS.find(method).assign(Group("s", tuple(rollouts)), "mean", weight, likelihoods)
    return [one.of_conversations() for one in group.trajectories]


def test_dapo_gives_all_conversations_the_advantage_of_the_answer():
    assert assigned("dapo", [rollout(1.0, [NOTE]), rollout(0.0, [SAME, SAME])]) == [(0.5, 0.5), (-0.5, -0.5, -0.5)]


@pytest.mark.parametrize(
    ("read", "evidence", "paid"),
    [
        (2, (False, True, False, False), 1.0),  # at once after what was to be found
        (3, (False, True, False, False), 0.5),
        (4, (False, True, False, False), 0.0),
        (1, (False, True, False, False), -1.0),
        (4, (True, False, False, True), 1.0),  # there was nothing to leave out
        (3, (True, False, False, True), -1.0),
        (4, (False, False, False, False), 1.0),  # that nothing is there is known at the end
        (2, (False, False, False, False), -1.0),
        (2, None, 0.0),
    ],
)
def test_leaving_is_paid_by_when(read, evidence, paid):
    trace = Trace((NOTE,) * read, 4, evidence)
    assert exit_reward(Answered("x", True, ("x",), trace=trace)) == paid
    assert exit_reward(Answered("x", True, ("x",))) == 0.0


def test_a_gate_is_right_where_the_memory_changed_at_evidence_and_only_there():
    trace = Trace((NOTE, NOTE, SAME, BROKEN), 5, (False, True, True, False, False))
    assert right_updates(trace) == [0.0, 1.0, 0.0, 0.0]
    assert right_updates(replace(trace, evidence=None)) == right_updates(None) == []


def test_gru_mem_adds_each_updates_advantage_over_the_group_at_that_segment():
    # Right at the segments: 1 1 1, and 0 1 (it left), and 1 0 1. Means: 2/3, 2/3, 1. Rewards 1, 0, 0: mean 1/3.
    made = assigned("gru-mem", [rollout(1.0, [SAME, NOTE, SAME]), rollout(0.0, [NOTE, NOTE]), rollout(0.0, [SAME] * 3)])
    assert made[0] == pytest.approx((2 / 3 + 1 / 6, 2 / 3 + 1 / 6, 2 / 3, 2 / 3))
    assert made[1] == pytest.approx((-1 / 3 - 1 / 3, -1 / 3 + 1 / 6, -1 / 3))
    assert made[2] == pytest.approx((-1 / 3 + 1 / 6, -1 / 3 - 1 / 3, -1 / 3, -1 / 3))


def test_where_evidence_is_not_known_gates_are_not_paid():
    made = assigned("gru-mem", [rollout(1.0, [SAME], None), rollout(0.0, [NOTE], None)])
    assert made == [(0.5, 0.5), (-0.5, -0.5)]


@pytest.mark.parametrize(
    ("memory", "none", "share"), [(-1.0, -4.0, 0.75), (0.0, -4.0, 1.0), (-5.0, -4.0, 0.0), (-1.0, 0.0, 0.0)]
)
def test_what_a_memory_removes_of_the_answers_surprise(memory, none, share):
    assert removed(memory, none) == share


def test_infomem_pays_right_answers_for_what_their_memory_tells():
    rollouts = [rollout(1.0, [NOTE]), rollout(1.0, [NOTE]), rollout(0.0, [NOTE])]
    # Gains 0.75 and 0.25 of right answers at weight 0.5; a wrong one has none. Rewards 1.375, 1.125, 0: mean 5/6.
    made = assigned("infomem", rollouts, 0.5, [[-4.0, -1.0], [-4.0, -3.0], [-4.0, -0.5]])
    assert [one[0] for one in made] == pytest.approx([1.375 - 5 / 6, 1.125 - 5 / 6, -5 / 6])
    assert all(one[0] == one[1] for one in made)
    alike = assigned("infomem", rollouts[:2], 0.5, [[-4.0, -1.0], [-4.0, -3.0]])
    assert [one[0] for one in alike] == pytest.approx([0.125, -0.125]), "where all are right, too"


def test_a_credit_is_what_the_update_made_recoverable_and_half_if_the_outcome_contradicts():
    scores = [-4.0, -1.0, -1.0, -3.0]  # recovered: 0, 3/4, 3/4, 1/4
    assert credits_of(scores, right=True) == [0.75, 0.0, -0.25]
    assert credits_of(scores, right=False) == [0.375, 0.0, -0.5]
    assert credits_of([-4.0], right=True) == []


def test_himpo_gives_updates_an_advantage_of_their_own():
    # Credits 3/4, 0 of a right answer, and 0, 1/2 * 1/2 of a wrong one. Means: 3/8, 1/8. Rewards 1, 0.
    likelihoods = [[-4.0, -1.0, -1.0], [-4.0, -4.0, -2.0]]
    made = assigned("himpo", [rollout(1.0, [NOTE, SAME]), rollout(0.0, [SAME, NOTE])], 2.0, likelihoods)
    assert made[0] == pytest.approx((0.5 + 0.75, 0.5 - 0.25, 0.5))
    assert made[1] == pytest.approx((-0.5 - 0.75, -0.5 + 0.25, -0.5))


def test_every_conversation_is_learnt_from_by_its_own_advantage():
    group = METHODS.find("gru-mem").assign(
        Group("s", (rollout(1.0, [SAME, NOTE]), rollout(0.0, [NOTE, NOTE]))), "mean", 0.5, ()
    )
    assert [item.advantage for item in items(group.trajectories)] == [0.75, 0.5, 0.5, -0.75, -0.5, -0.5]
    even = items(group.trajectories, 0.0)
    assert [item.advantage for item in even] == [0.75, 0.5, 0.5, -0.75, -0.5, -0.5], "as many tokens in both"


def test_a_rollout_tells_what_its_updates_did(tokenizer):
    scheme = make_scheme(tokenizer)
    group = asyncio.run(
        roll_out_group(task(scheme), 2, scheme, Saying(scheme.prompts).generate, RewardConfig({"exact": 1.0}))
    )
    trace = group.trajectories[0].trace
    assert trace is not None and trace.evidence is not None and trace.segments == len(trace.updates)
    assert [update.changed for update in trace.updates] == list(trace.evidence), (
        "the scripted reader notes what it finds"
    )
    assert sum(trace.evidence) == 1 and right_updates(trace) == [1.0] * trace.segments
    spans = make_scheme(tokenizer, parallel_spans=3)
    group = asyncio.run(
        roll_out_group(task(spans), 2, spans, Saying(spans.prompts).generate, RewardConfig({"exact": 1.0}))
    )
    assert group.trajectories[0].trace is None


@pytest.mark.parametrize("memories", ["last", "all"])
def test_the_gold_answer_is_asked_for_from_memories(tokenizer, memories):
    scheme = make_scheme(tokenizer)
    asked = task(scheme)
    engine = Saying(scheme.prompts)
    pay = RewardConfig({"exact": 1.0}, memories=memories)
    (one, _) = asyncio.run(roll_out_group(asked, 2, scheme, engine.generate, pay)).trajectories
    prompts = [scheme.prompts.parse(probe.prompt_ids) for probe in one.probes]
    assert prompts[0]["memory"] == scheme.prompts.no_memory
    assert "4829104" in tokenizer.decode(prompts[-1]["memory"])
    assert len(prompts) == (2 if memories == "last" else 1 + len(asked.segments))
    assert one.probes[-1].prompt_ids == one.conversations[-1].prompt_ids, "it is what the answer was asked with"
    assert {tokenizer.decode(probe.response_ids) for probe in one.probes} == {"4829104"}
    assert one.probes[0].response_ids[-1] in scheme.prompts.stop_ids
    assert from_dict(json.loads(json.dumps(one.as_dict()))) == one, "what is recorded is read again"


def evidence_in(scheme, text, answers, facts=()):
    cut = tuple(segments("hash", text, scheme.prompts.tokenizer, scheme.config.segment_tokens))
    return Task(Sample("s", "t", 0, nothing, QUESTION, answers, "all", facts=facts), cut).evidence()


def test_evidence_is_a_fact_or_else_the_gold(scheme):
    rng = random.Random(1)
    text = f"{filler(rng, 60)} Yes. It is 17. {filler(rng, 60)} The fee is 17. {filler(rng, 60)}"
    by_gold, by_fact = evidence_in(scheme, text, ("17",)), evidence_in(scheme, text, ("17",), ("The fee is 17.",))
    assert sum(by_gold) >= sum(by_fact) >= 1 and by_gold.index(True) < by_fact.index(True)
    assert not any(evidence_in(scheme, text, ("",)))
    assert evidence_in(scheme, text, ("18",)) is None
    assert evidence_in(scheme, text, ("yes",)) is None, "the word is no verdict"


@pytest.mark.parametrize("name", ["gru-mem", "infomem", "himpo"])
def test_each_method_has_its_recipe(name):
    assert load_recipe(name).method.name == name
    assert {"gru-mem", "infomem", "himpo", "per-trajectory"} < {path.stem for path in SHIPPED.glob("*.toml")}


def test_an_unknown_method_is_refused_and_the_default_is_the_paper_s():
    assert load_recipe("per-trajectory").method == Recipe().method
    with pytest.raises(ConfigError, match=r"no training method 'ppo'\. There are: dapo, gru-mem"):
        load_recipe("smoke", ["method.name='ppo'"])


@pytest.mark.parametrize(
    ("recipe", "sets", "said"),
    [
        ("gru-mem", ["reading.gate=false"], "training method gru-mem needs reading.gate"),
        ("gru-mem", ["reading.early_exit=false"], "reward exit needs reading.early_exit"),
        ("himpo", ["reading.parallel_spans=2"], "training method himpo reads in one span"),
    ],
)
def test_a_reading_that_a_method_cannot_use_is_refused(tmp_path, recipe, sets, said):
    prepare(recipe, ["needles"], store=str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        prepare(recipe, ["needles"], store=str(tmp_path), sets=sets)
