"""What the updates of a rollout did, and where a task's evidence is."""

import asyncio
import random
from dataclasses import replace

from memagent.evaluation.texts import Sample
from memagent.reading.segmenting import segments
from memagent.rl.config import RewardRecipe
from memagent.rl.dataset import Task, nothing
from memagent.rl.reward import MemoryUpdate, Trace
from memagent.rl.rollout import roll_out_group
from pipelines.training.monitors import right_updates
from tests.support.texts import filler, make_scheme
from tests.unit.test_rl_rollout import QUESTION, Saying, task

NOTE, SAME, BROKEN = MemoryUpdate(True, True), MemoryUpdate(False, True), MemoryUpdate(False, False)


def test_a_gate_is_right_where_the_memory_changed_at_evidence_and_only_there():
    trace = Trace((NOTE, NOTE, SAME, BROKEN), 5, (False, True, True, False, False))
    assert right_updates(trace) == [0.0, 1.0, 0.0, 0.0]
    assert right_updates(replace(trace, evidence=None)) == []


def test_a_rollout_tells_what_its_updates_did(tokenizer):
    scheme = make_scheme(tokenizer)
    group = asyncio.run(roll_out_group(task(scheme), 2, scheme, Saying(scheme.prompts).generate, RewardRecipe()))
    trace = group.trajectories[0].trace
    assert trace is not None and trace.evidence is not None and trace.segments == len(trace.updates)
    assert [update.changed for update in trace.updates] == list(trace.evidence), (
        "the scripted reader notes what it finds"
    )
    assert sum(trace.evidence) == 1 and right_updates(trace) == [1.0] * trace.segments
    spans = make_scheme(tokenizer, parallel_spans=3)
    group = asyncio.run(roll_out_group(task(spans), 2, spans, Saying(spans.prompts).generate, RewardRecipe()))
    assert group.trajectories[0].trace is None


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
