"""A run goes on from its checkpoint as if it had not stopped."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from examples.nano.contract_data import ContractData
from examples.nano.model import Qwen2, Shape
from examples.nano.needle_data import CopyData, NeedleData, RecallData, Turns
from examples.nano.schedule import LEVELS, Plan, Progress
from examples.nano.sft import Trainer, TrainingData, TrainingFiles, train
from examples.nano.tokenizer import train_vocabulary
from memagent.errors import UsageError
from memagent.evaluation.contracts import Contract
from memagent.nano import bundled
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.tokens import Tokenizer

TEXT = (
    "A walk along the river takes an hour. The mill was built in 1820 and is open on Sundays. Bring water.\n\n"
    "This Agreement, dated as of May 8, 2014, is made by a company under the laws of Delaware. It is short. "
    "The parties agree to share the costs of the bridge, and to keep the path free of stones. "
) * 12
CLAUSE = "This Agreement is governed by the laws of the State of Nevada."


@pytest.fixture(scope="module")
def prompts():
    tokenizer = Tokenizer(train_vocabulary([TEXT, CLAUSE], 700).to_str())
    return Prompts(load_template("nano"), tokenizer, "section-first", gate=True)


def _contract():
    text = f"MILL AGREEMENT\n\n{TEXT}{CLAUSE}\n\n{TEXT}"
    when = text.index("May 8, 2014")
    clause = text.index(CLAUSE)
    return Contract(
        "mill.txt",
        text,
        {"Document Name": "MILL AGREEMENT", "Agreement Date": "5/8/14", "Governing Law": "Nevada"},
        {
            "Document Name": ((0, 14),),
            "Agreement Date": ((when, when + 11),),
            "Governing Law": ((clause, clause + len(CLAUSE)),),
        },
    )


def _trainer(prompts, folder, seed=0):
    turns = Turns(prompts)
    lessons = TrainingData(
        CopyData(prompts, [TEXT], seed),
        RecallData(prompts, [TEXT], seed),
        NeedleData(turns, [TEXT], seed),
        ContractData(turns, [_contract()], [TEXT], seed),
    )
    shape = Shape(vocab=prompts.tokenizer.vocab_size, hidden=64, layers=2, heads=2, inner=64)
    plan = Plan(tokens=10**9, copy_steps=1, warmup_steps=2)
    return Trainer(Qwen2(shape, seed), lessons, plan, folder, prompts.tokenizer.id("<|pad|>"), seed)


def test_a_stopped_run_goes_on_as_if_it_had_not(prompts, tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        whole = _trainer(prompts, tmp_path)
        for _ in range(3):
            whole.advance()
        whole.save()
        (tmp_path / "checkpoint.tmp").mkdir()  # what a kill amid the next checkpoint leaves
        losses = [whole.advance() for _ in range(3)]
        other = _trainer(prompts, tmp_path, seed=9)
        assert other.resume()
        assert other.progress.step == 3
        assert [other.advance() for _ in range(3)] == losses
    finally:
        torch.use_deterministic_algorithms(False)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
    assert other.progress.right == whole.progress.right


def test_only_the_last_two_checkpoints_are_kept(prompts, tmp_path):
    trainer = _trainer(prompts, tmp_path)
    for step in (1, 2, 3):
        trainer.progress.step = step
        trainer.save()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]


def test_training_lowers_the_loss_and_counts(prompts, tmp_path):
    trainer = _trainer(prompts, tmp_path)
    trainer._plan = Plan(tokens=10**9, copy_steps=1000, warmup_steps=2, rate=3e-3)
    copies = CopyData(prompts, [TEXT], 0).rows(64, 60)
    trainer._data = SimpleNamespace(trees=lambda *_: copies)
    losses = [trainer.advance() for _ in range(12)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert trainer.progress.examples == 12 * 64
    assert trainer.progress.right["copy"][1] == 12 * 64


def test_a_run_reports_json_lines(prompts, tmp_path):
    trainer = _trainer(prompts, tmp_path)
    trainer._report(1.5, lambda line: None)
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row["loss"] == 1.5 and row["segment_tokens"] == LEVELS[0]


def test_the_rate_rises_and_falls_to_zero():
    plan = Plan(tokens=1000, rate=1.0, warmup_steps=10)
    assert plan.learning_rate(0, 0) == pytest.approx(0.1)
    assert plan.learning_rate(100, 500) == pytest.approx(0.5)
    assert plan.learning_rate(100, 1000) == pytest.approx(0.0)
    assert plan.learning_rate(100, 2000) == pytest.approx(0.0)


def test_segments_grow_when_needles_are_noted_well():
    progress = Progress()
    for kind in ("number/note", "word/note"):
        for _ in range(200):
            progress.see(kind, True)
        assert progress.grow() is (kind == "word/note")
    assert progress.level == 1 and not progress.grow()
    assert {progress.size(random.Random(seed)) for seed in range(40)} == set(LEVELS)


def _turns_of(tree, prompts):
    for branch in tree.branches:
        yield tree.prefix + branch.prompt, branch.response, branch.kind


def test_notes_are_quotes_and_the_rest_changes_nothing(prompts):
    turns = Turns(prompts)
    needles = NeedleData(turns, [TEXT], 4)
    clauses = ContractData(turns, [_contract()], [TEXT], 5)
    same = [*prompts.tokenizer.literal("<|same|>"), prompts.stop_ids[0]]
    seen = set()
    trees = [needles.tree((kind,), 254) for kind in ("number", "word", "uuid") for _ in range(20)]
    for tree in trees + [clauses.tree(254) for _ in range(60)]:
        assert len(tree.branches) == 6 and len(tree.prefix) <= 256
        for prompt, response, kind in _turns_of(tree, prompts):
            seen.add(kind)
            if kind.endswith("/same"):
                assert response == same
            else:
                note = response[:-1]
                at = [i for i in range(len(prompt)) if prompt[i : i + len(note)] == note]
                assert at, "a note that is no quote of the segment"
    topics = ("number", "word", "uuid", "name", "date", "law")
    assert seen == {f"{topic}/{what}" for topic in topics for what in ("note", "same")}


def test_answers_stand_in_the_note_or_are_not_found(prompts):
    turns = Turns(prompts)
    lessons = [
        *NeedleData(turns, [TEXT], 4).answers(("number", "word", "uuid"), 60),
        *ContractData(turns, [_contract()], [TEXT], 5).answers(60),
    ]
    kinds = set()
    for tree in lessons:
        [example] = tree.branches
        said, found = prompts.read_answer(example.response)
        kinds.add(example.kind.split("/")[1])
        assert found == example.kind.endswith("/answer")
        assert not found or said in prompts.tokenizer.decode(example.prompt)
    assert kinds == {"answer", "none"}


def test_a_run_can_begin_with_the_bundled_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "compile", lambda self: None)
    plan = Plan(tokens=1, rate=1e-6, copy_steps=0)
    files = TrainingFiles([Path(__file__).parents[2] / "docs"])
    trainer = train(tmp_path / "run", files, plan, seed=0, show=lambda line: None, threads=1, start=bundled())
    assert trainer.progress.step == 1
    begun = load_file(bundled() / "model.safetensors")
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, begun[name].float(), atol=1e-4, rtol=1e-3)
    with pytest.raises(UsageError, match=r"no model folder: it has no tokenizer\.json"):
        train(tmp_path / "other", files, plan, seed=0, show=lambda line: None, start=tmp_path)


def test_a_recall_asks_for_what_stands_after_its_key(prompts):
    for tree in RecallData(prompts, [TEXT], 4).rows(40, 120):
        (example,) = tree.branches
        ids = example.prompt
        assert not tree.prefix and len(ids) + len(example.response) <= 120
        said = len(example.response)
        # The shortest key has one token: it stood before the value, and stands at the end again.
        places = [i for i in range(1, len(ids) - said) if ids[i : i + said] == example.response]
        assert any(ids[i - 1] == ids[-1] for i in places)
