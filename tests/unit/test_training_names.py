"""A training that a person named goes on under its name, and nothing else does."""

import json
from dataclasses import replace

import pytest

from infra.store.location import Store
from memagent.errors import TrainingError, UsageError
from pipelines.training.checkpoints import Checkpoints, State
from pipelines.training.run import train
from pipelines.training.settings import TrainingRun, check_name, claim, learnt, named_runs, prepare


def named(store, *sets: str, name: str = "first", recipe: str = "smoke") -> TrainingRun:
    return replace(prepare(recipe, ["needles"], store=str(store), sets=sets), given_name=name)


@pytest.mark.parametrize(
    "other",
    [
        ["learner.token_budget=64", "learner.world_size=4", "learner.zero_stage=3", "learner.gpus=1"],
        ["stage.max_steps=9", "stage.save_every=3", "stage.record=true"],
        ["pool.max_size=2", "engine.max_num_seqs=7", "audit.tasks=0"],
    ],
)
def test_a_named_training_goes_on_with_another_layout_or_length(tmp_path, other):
    store = Store(str(tmp_path))
    run, again = named(tmp_path), named(tmp_path, *other)
    claim(store, run)
    claim(store, again)
    assert again.run_id == run.run_id == "first" != replace(run, given_name="").run_id
    assert named_runs(store) == ["first"]


def test_another_recipe_under_the_same_name_is_refused_with_the_keys_that_differ(tmp_path):
    store = Store(str(tmp_path))
    claim(store, named(tmp_path))
    with pytest.raises(UsageError) as refused:
        train(named(tmp_path, "learner.lr=0.5", "reading.memory_tokens=32", "reward.weights={task=2.0}"))
    said = str(refused.value)
    assert "the training 'first' was begun with another recipe" in said
    assert "learner.lr was 1e-06 and is 0.5" in said
    assert "reading.memory_tokens was 64 and is 32" in said
    assert 'reward.weights was {"exact": 1.0} and is {"task": 2.0}' in said
    assert "zero_stage" not in said and "another --run" in said
    claim(store, named(tmp_path, "learner.lr=0.5", name="second"))
    with pytest.raises(UsageError, match=r'data was \["needles"\] and is \["qa"\]'):
        claim(store, replace(named(tmp_path), data=("qa",)))
    with pytest.raises(UsageError, match="; and 1 more"):
        sets = ["lr=1", "warmup_steps=9", "weight_decay=1", "gradient_clip=2", "dtype='bfloat16'", "lora_rank=3"]
        claim(
            store,
            named(tmp_path, *(f"learner.{one}" for one in sets), "stage.seed=3", "rollout.top_p=0.5", "loss.kl_coef=1"),
        )


def test_a_key_that_did_not_exist_then_counts_as_its_default(tmp_path):
    store = Store(str(tmp_path))
    run = named(tmp_path)
    kept = {key: value for key, value in learnt(run).items() if key != "rollout.oversampling"}
    store.write_bytes(json.dumps(kept).encode(), "training", "first", "named.json")
    claim(store, run)
    with pytest.raises(UsageError, match=r"rollout\.oversampling was 1\.0 and is 2\.0"):
        claim(store, named(tmp_path, "rollout.oversampling=2"))
    store.write_bytes(b"{", "training", "first", "named.json")
    with pytest.raises(TrainingError, match="cannot be read"):
        claim(store, run)


def test_a_run_that_nobody_named_is_not_taken_over(tmp_path):
    store = Store(str(tmp_path))
    Checkpoints(store, "copied").commit(State())
    with pytest.raises(UsageError, match="was not begun by --run"):
        claim(store, named(tmp_path, name="copied"))


def test_a_name_that_looks_like_another_one_is_said(tmp_path, caplog):
    store = Store(str(tmp_path))
    claim(store, named(tmp_path, name="contracts-may"))
    claim(store, named(tmp_path, name="contract-may"))
    assert "to go on with 'contracts-may', say --run contracts-may" in caplog.text


def test_a_replay_is_known_by_what_it_replays_and_without_a_name_by_its_layout(tmp_path):
    store, run = Store(str(tmp_path)), named(tmp_path, name="")
    split = named(tmp_path, "learner.world_size=2", name="")
    ids = {replace(one, replay=replay).run_id for one in (run, split) for replay in ("a", "b")}
    assert len(ids) == 4 and all(one.startswith("train-") and one.endswith("-replay") for one in ids)
    first = replace(named(tmp_path), replay="a")
    claim(store, first)
    assert first.run_id == "first-replay" == replace(first, recipe=split.recipe).run_id
    assert named_runs(store) == [], "a name that nobody can give is not proposed"
    claim(store, named(tmp_path))  # the training of that name is another one
    with pytest.raises(UsageError, match='replayed run was "a" and is "b"'):
        claim(store, replace(first, replay="b"))


def test_what_was_not_recorded_is_not_replayed(tmp_path):
    store = Store(str(tmp_path))
    with pytest.raises(UsageError, match="no training run 'nosuch'"):
        train(named(tmp_path), replay="nosuch")
    source = Checkpoints(store, "source")
    source.note({"step": 1})
    with pytest.raises(UsageError, match=r"of 0 steps, and 2 are to be replayed: .* stage\.record"):
        train(named(tmp_path), replay="source")
    source.record(1, [], 0)
    with pytest.raises(UsageError, match=r"source has .* of 1 steps, .*: --set stage\.max_steps=1"):
        train(named(tmp_path), replay="sour")
    with pytest.raises(UsageError, match="leave out --replay"):
        train(named(tmp_path, recipe="sft"), replay="source")
    assert named_runs(store) == []


@pytest.mark.parametrize("name", ["a", "contracts.v2", "7B_first-try"])
def test_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../etc", "did you mean 'etc'"),
        ("two words", "did you mean 'two-words'"),
        ("a" * 64, "63 at most"),
        ("first-replay", "did you mean 'first'"),
        ("last", "that is what `last`"),
        ("train-0123456789", "runs without a name"),
    ],
)
def test_what_cannot_be_a_name_is_refused(name, said):
    with pytest.raises(UsageError, match=said):
        check_name(name)
