"""A training stage on the real engine: killed, gone on with, and the same numbers on both sides."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.store.location import Store
from pipelines.training.checkpoints import Checkpoints
from tests.e2e.conftest import ROOT, Memagent
from tests.endurance import outliving
from tests.support.waiting import wait_for

STEPS = 4
SMALL = ["rollout.prompts=4", "rollout.group_size=4", "rollout.segments=2", "learner.minibatch_prompts=4"]
SMALL += ["learner.warmup_steps=0", f"stage.max_steps={STEPS}", "stage.save_every=1", "stage.validate_every=2"]
SMALL += ["stage.validate_with=8", "rollout.most_prompts=24"]
TEXTS = Path(ROOT) / "docs"


def command(*sets: str) -> list[str]:
    given = [part for item in (*SMALL, *sets) for part in ("--set", item)]
    # The supervised reader: of what it was not taught it gets some right, so that most steps find groups that teach.
    return ["train", "--recipe", "nano-cpu", "--model", "nano@sft", "--data", "needles", "--text", str(TEXTS), *given]


def rows_of(store: Store) -> list[dict]:
    (path,) = [path for path in store.list("training", suffix="") if path.endswith("metrics.jsonl")] or [None]
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if path else []


@pytest.mark.slow
def test_killed_it_goes_on_and_counts_no_step_twice(memagent, tmp_path):
    store = Store(memagent.store)
    environment = {**os.environ, "MEMAGENT_STORE": memagent.store}
    argv = [sys.executable, "-m", "memagent", *command(), "--json"]
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, cwd=ROOT, start_new_session=True
        )
    wait_for(lambda: any(row["step"] == 2 for row in rows_of(store)), process, said.read_text)
    below = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not outliving(below)
    run_id = Path(store.list("training", suffix="")[0]).relative_to(Path(memagent.store) / "training").parts[0]
    left = Checkpoints(store, run_id).read()
    assert left is not None and 0 < left.step < STEPS

    report = tmp_path / "training.html"
    summary = memagent.json(*command(), "-o", str(report))
    assert (summary["run_id"], summary["steps"], summary["ended"]) == (run_id, STEPS, f"{STEPS} steps")
    rows = rows_of(store)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    learnt = rows[1:]
    assert [row["version"] for row in learnt] == [f"{run_id}:{step}" for step in range(1, STEPS + 1)]
    assert [row["optimiser_steps"] for row in learnt] == [1] * STEPS
    # The data's order goes on: what was sampled before the checkpoint is not sampled again.
    assert Checkpoints(store, run_id).read().cursor == sum(row["sampled_groups"] for row in learnt)
    assert summary["trajectories"] == sum(row["trajectories"] for row in learnt)
    # Engine and learner in float32, on the ids that were sampled, with the weights of every step.
    assert all(0 < row["logprob_diff"] < 1e-5 for row in learnt), [row["logprob_diff"] for row in learnt]
    page = report.read_text()
    assert run_id in page and page.count("<img ") == page.count('prefers-color-scheme: dark)" srcset') == 3
    # Called once more, it trains nothing.
    assert memagent.json(*command())["trajectories"] == summary["trajectories"]


@pytest.mark.slow
def test_in_bfloat16_broadcast_and_one_step_behind_engine_and_learner_stay_close(tmp_path):
    memagent = Memagent(str(tmp_path / "store"))
    sets = (
        "learner.dtype=bfloat16",
        "learner.weight_sync=broadcast",
        "rollout.max_off_policy_steps=1",
        "stage.record=true",
        "stage.max_steps=3",
    )
    summary = memagent.json(*command(*sets, "stage.validate_every=3", "stage.validate_with=1"))
    store, run_id = Store(memagent.store), summary["run_id"]
    begun, *rows = rows_of(store)
    assert (begun["step"], summary["steps"]) == (0, 3)
    assert 0 < rows[0]["logprob_diff"] < 0.02, rows[0]
    # While a step learns, the next is sampled with the weights before it or, once they are there, its own; never older.
    said = [
        {one.weight_version for group in groups for rollout in group.trajectories for one in rollout.conversations}
        for groups, _ in (Checkpoints(store, run_id).recorded(step) for step in (1, 2, 3))
    ]
    names = ["", f"{run_id}:1", f"{run_id}:2"]
    assert all(versions <= set(names[max(0, step - 1) : step + 1]) for step, versions in enumerate(said))
    assert Checkpoints(store, run_id).read().cursor == sum(row["sampled_groups"] for row in rows)


@pytest.mark.slow
def test_engines_that_are_sent_adapters_compute_what_the_learner_does(tmp_path):
    memagent = Memagent(str(tmp_path / "store"))
    sets = ("learner.lora_rank=8", "learner.weight_sync=adapters", "learner.lr=1e-3", "stage.max_steps=3")
    summary = memagent.json(*command(*sets, "stage.validate_every=3", "stage.validate_with=1"))
    _, *rows = rows_of(Store(memagent.store))
    assert [row["version"] for row in rows] == [f"{summary['run_id']}:{step}" for step in (1, 2, 3)]
    # In float32, with the factors of every step; with those of the step before it would be a hundred times as much.
    assert all(0 < row["logprob_diff"] < 1e-5 for row in rows), [row["logprob_diff"] for row in rows]
