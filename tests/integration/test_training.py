"""Training stages from recorded rollouts: real Ray, real DeepSpeed, the bundled reader, no engine."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from infra.learner.group import LearnerGroup
from infra.store.location import Store
from memagent.errors import TrainingError, UsageError
from memagent.rl.trajectory import Group
from pipelines.cli.main import app
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.records import exported_models
from pipelines.training.run import train
from pipelines.training.settings import TrainingRun, named, prepare
from tests.support.flowing import ROOT
from tests.support.rl_samples import group
from tests.support.texts import filler
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow
STEPS, VOCABULARY, RUN = 5, 3000, "recorded"
# With one thread sums are always taken in the same order, so that runs can be compared bit by bit.
RECIPE = """
model = "nano"
[rollout]
prompts = 4
group_size = 4
[learner]
minibatch_prompts = 2
threads = 1
lr = 1e-3
warmup_steps = 2
token_budget = 512
[stage]
max_steps = 5
save_every = 1
"""


def record(store: Store, spoilt: int = 0) -> None:
    """Write rollouts of every step; those of step `spoilt` have a log-probability that is no number."""
    journal = Checkpoints(store, RUN)
    for step in range(1, STEPS + 1):
        groups = [group([1, 0, 0, 0.5], 10 * step + i, f"s{step}-{i}", vocab=VOCABULARY) for i in range(4)]
        if step == spoilt:
            first, *others = groups[1].trajectories
            turn, *turns = first.conversations
            turn = replace(turn, logprobs=[math.nan] * len(turn.logprobs))
            groups[1] = Group(groups[1].sample_id, (replace(first, conversations=(turn, *turns)), *others))
        journal.record(step, groups, 4 * step)
        journal.note({"step": step})


@pytest.fixture
def inputs(tmp_path):
    """The recipe and the text that a training is given."""
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "text.txt").write_text("\n\n".join(filler(random.Random(i), 400) for i in range(20)))
    return str(tmp_path / "small.toml"), str(tmp_path / "text.txt")


@pytest.fixture
def begin(inputs):
    """Start `memagent train` on recorded rollouts in a store."""
    recipe, text = inputs

    def start(store: Store) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "memagent", "train", "--recipe", recipe, "--json"]
        command += ["--data", "needles", "--text", text, "--replay", RUN, "--store", store.url]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )

    return start


def stage(inputs: tuple[str, str], store: Store) -> TrainingRun:
    """Make the same training for this process."""
    return prepare(inputs[0], ["needles"], [inputs[1]], store.url)


def finished(process: "subprocess.Popen[str]", status: int = 0) -> str:
    said, errors = process.communicate()
    assert process.returncode == status, errors[-3000:]
    return said if status == 0 else errors


def home(store: Store) -> str:
    """Return the run's name; there is one beside the recorded."""
    found = {
        path.removeprefix(store.path("training") + "/").split("/")[0] for path in store.list("training", suffix="")
    }
    (name,) = found - {RUN}
    return name


def weights(store: Store, tmp_path, step: int = STEPS) -> dict:
    """Return the checkpoint of a step: float32 weights and both moments."""
    whole = {}
    for stored in store.list(*Checkpoints(store, home(store)).checkpoint(step), suffix=".safetensors"):
        name = stored.rsplit("/", 1)[-1]
        store.get_file(tmp_path / name, *Checkpoints(store, home(store)).checkpoint(step), name)
        whole |= {f"{name.split('-')[0]} {key}": tensor for key, tensor in load_file(tmp_path / name).items()}
    return whole


def steps_of(store: Store, run: str) -> list[dict]:
    try:
        return [json.loads(line) for line in store.read_bytes("training", run, "metrics.jsonl").splitlines()]
    except FileNotFoundError:
        return []


def test_killed_and_given_again_it_ends_with_the_weights_of_an_undisturbed_run(begin, tmp_path, s3_bucket):
    local, bucket = Store(str(tmp_path / "local")), Store(f"{s3_bucket}/{tmp_path.name}/training")
    record(local)
    record(bucket)
    undisturbed = json.loads(finished(begin(local)))
    assert undisturbed["steps"] == STEPS and undisturbed["candidate"]

    process, after = begin(bucket), random.randint(1, STEPS - 2)
    wait_for(lambda: len(steps_of(bucket, undisturbed["run_id"])) >= after, process, lambda: process.communicate()[1])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    state = Checkpoints(bucket, undisturbed["run_id"]).read()  # none before the first checkpoint is whole
    assert state is None or state.step < STEPS
    first, second = begin(bucket), begin(bucket)  # one of them waits
    again = json.loads(finished(first))
    assert [row["step"] for row in steps_of(bucket, again["run_id"])] == list(range(1, STEPS + 1))
    assert again["candidate"] == undisturbed["candidate"]  # the id is a hash of the files
    assert again["trajectories"] == undisturbed["trajectories"] == STEPS * 4 * 4
    one, other = weights(local, tmp_path), weights(bucket, tmp_path)
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    # A run that has ended is not taken again.
    assert json.loads(finished(second))["trajectories"] == again["trajectories"]


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_checkpoint(inputs, tmp_path, ray_in_process):
    store = Store(str(tmp_path / "local"))
    record(store, spoilt=3)
    run = named(stage(inputs, store), "spoilt")
    with pytest.raises(TrainingError, match=r"step 3: minibatch 1 of 2: the loss .* s3-1.* of step 2 stays"):
        train(run, replay=RUN)
    state = Checkpoints(store, home(store)).read()
    assert (state.step, state.done) == (2, "")
    assert weights(store, tmp_path, 2)
    record(store)  # mended, the same training goes on, also with another layout
    smaller = prepare(
        inputs[0], ["needles"], [inputs[1]], store.url, ["learner.token_budget=300", "learner.zero_stage=1"]
    )
    summary = train(named(smaller, "spoilt"), replay=RUN)
    assert summary["steps"] == STEPS and [row["step"] for row in steps_of(store, summary["run_id"])] == [1, 2, 3, 4, 5]


def test_a_lost_rank_is_replaced_and_the_step_is_not_lost(inputs, tmp_path, ray_in_process, monkeypatch):
    """Two ranks; one is killed in step 4, whose checkpoint before it is that of step 3."""
    import ray

    learn, calls = LearnerGroup.learn, []

    async def killing(self, groups):
        calls.append(groups)
        if kills and len(calls) == kills[0]:
            kills.pop(0)
            ray.kill(self._ranks[1])
        return await learn(self, groups)

    monkeypatch.setattr(LearnerGroup, "learn", killing)
    ends, kills = {}, []
    for name in ("undisturbed", "killed"):
        kills += [4, 5] if name == "killed" else []
        store = Store(str(tmp_path / name))
        record(store)
        calls.clear()
        sets = ["learner.world_size=2", "learner.cpus=0.5", "stage.save_every=3"]
        summary = train(prepare(inputs[0], ["needles"], [inputs[1]], store.url, sets), replay=RUN)
        assert summary["steps"] == STEPS and summary.get("ranks_lost", 0) == (2 if name == "killed" else 0)
        ends[name] = weights(store, tmp_path / name)
    for name, tensor in ends["undisturbed"].items():
        torch.testing.assert_close(ends["killed"][name], tensor, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_that_cannot_be_written_ends_the_run(inputs, tmp_path, ray_in_process):
    store = Store(str(tmp_path / "full"))
    record(store)
    run = stage(inputs, store)
    # As on a disk without room, every write of a file there fails.
    store.write_bytes(b"in the way", "training", replace(run, replay=RUN).run_id, "checkpoints")
    with pytest.raises(TrainingError, match="cannot be written") as raised:
        train(run, replay=RUN)
    assert "ray::" not in str(raised.value)


def test_a_run_keeps_its_weights_and_the_factors_that_make_them(inputs, tmp_path, ray_in_process):
    """The base model with an exported adapter is the model that was exported beside it, at every step."""
    store = Store(str(tmp_path / "local"))
    record(store)
    sets = ["learner.lora_rank=2", "learner.lora_alpha=6.0", "stage.export_every=2", "learner.world_size=2"]
    run = prepare(inputs[0], ["needles"], [inputs[1]], store.url, [*sets, "learner.zero_stage=2"])
    summary = train(run, replay=RUN)
    found = exported_models(store, summary["run_id"])
    models, adapters = ({m.step: Path(m.folder) for m in found if m.kind == kind} for kind in ("model", "adapter"))
    assert sorted(models) == sorted(adapters) == [2, 4, STEPS]
    base = load_file(run.model / "model.safetensors")
    for step, folder in adapters.items():
        factors, merged = load_file(folder / "adapter_model.safetensors"), load_file(models[step] / "model.safetensors")
        names = {name.removesuffix(".lora_A.weight") for name in factors if name.endswith(".lora_A.weight")}
        assert len(factors) == 2 * len(names) > 20
        for name in names:
            up, down = factors[f"{name}.lora_B.weight"], factors[f"{name}.lora_A.weight"]
            weight = f"{name.removeprefix('base_model.model.')}.weight"
            wanted = base[weight].float() + 3.0 * up @ down
            assert torch.allclose(merged[weight], wanted, rtol=1e-5, atol=1e-7), weight
        assert any(factors[f"{name}.lora_B.weight"].abs().max() > 1e-3 for name in names), "it has learnt"
    assert {path.name for path in models[STEPS].iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_named_run_goes_on_by_its_name_on_other_ranks(inputs, tmp_path, ray_in_process):
    store = Store(str(tmp_path / "store"))
    record(store)
    sets = ("stage.max_steps=2", "stage.export_every=1")
    begun = train(named(prepare(inputs[0], ["needles"], [inputs[1]], store.url, sets), "first"), replay=RUN)
    assert (begun["run_id"], begun["steps"]) == ("first-replay", 2)
    layout = ("learner.world_size=2", "learner.zero_stage=2", "learner.token_budget=256", "stage.export_every=1")
    again = train(named(prepare(inputs[0], ["needles"], [inputs[1]], store.url, layout), "first"), replay=RUN)
    assert (again["run_id"], again["steps"]) == ("first-replay", STEPS)
    assert [row["step"] for row in steps_of(store, "first-replay")] == list(range(1, STEPS + 1))
    undisturbed = train(prepare(inputs[0], ["needles"], [inputs[1]], store.url, ("stage.export_every=1",)), replay=RUN)
    assert undisturbed["run_id"] != again["run_id"]

    def last(run_id: str) -> dict[str, torch.Tensor]:
        return load_file(Path(store.path(*Checkpoints(store, run_id).exported(STEPS, "model"))) / "model.safetensors")

    base = load_file(prepare(inputs[0], ["needles"], [inputs[1]], store.url).model / "model.safetensors")
    one, other = last("first-replay"), last(undisturbed["run_id"])
    learnt, apart = (sum(one[name].float().sub(two[name].float()).abs().sum() for name in one) for two in (base, other))
    assert apart.item() < 0.05 * learnt.item(), "the same weights but for rounding"
    with pytest.raises(UsageError, match=r"learner\.lr was 0\.001 and is 0\.5"):
        train(named(prepare(inputs[0], ["needles"], [inputs[1]], store.url, ("learner.lr=0.5",)), "first"), replay=RUN)


def test_a_model_learns_from_the_teacher_and_goes_on_where_it_was(inputs, tmp_path, ray_in_process):
    """The reader learns what the teacher writes; in two parts it goes on."""
    store = Store(str(tmp_path / "store"))
    sets = ["rollout.prompts=4", "learner.minibatch_prompts=4", "learner.lr=1e-3", "learner.warmup_steps=0"]
    sets += ["learner.threads=1", "learner.lr_schedule=constant", "stage.save_every=1", "rollout.segments=2"]

    def taught(steps: int) -> TrainingRun:
        given = [*sets, f"stage.max_steps={steps}", "reading.segment_tokens=128"]
        return named(prepare("sft", ["needles"], [inputs[1]], store.url, given, model="nano@sft"), "taught")

    began = train(taught(2))
    assert began["steps"] == 2 and began["candidate"].startswith("nano@")
    summary = train(taught(6))
    assert summary["steps"] == 6 and summary["candidate"] != began["candidate"]
    rows = steps_of(store, "taught")
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(math.isfinite(row["nll"]) and row["trajectories"] == 4 for row in rows)
    assert not any({"reward", "rollout_tokens", "logprob_diff", "loss"} & row.keys() for row in rows), (
        "none was sampled"
    )
    assert summary["trajectories"] == 24 and "rollout_tokens" not in {k for k, v in summary.items() if v}
    moved = load_file(Path(store.path(*Checkpoints(store, "taught").best(6))) / "model.safetensors")
    base = load_file(taught(6).model / "model.safetensors")
    assert any(not torch.equal(moved[name], base[name]) for name in base)


def test_a_look_before_a_supervised_training_shows_what_the_teacher_writes(inputs, tmp_path):
    command = ["train", "--dry-run", "--recipe", "sft", "--data", "needles", "--text", inputs[1]]
    seen = CliRunner().invoke(app, [*command, "--store", str(tmp_path), "--set", "reading.segment_tokens=128"])
    assert seen.exit_code == 0, seen.output
    assert seen.output.count("right is:") == 2 and "answer," in seen.output and "reward 1" in seen.output
    plain = CliRunner().invoke(
        app, [*command, "--json", "--store", str(tmp_path), "--set", "reading.segment_tokens=128"]
    )
    told = json.loads(plain.stdout)["tasks"]
    assert [one["reward"] for one in told] == [1.0, 1.0] and told[0]["turns"][-1]["kind"] == "answer"
    assert not (tmp_path / "training").exists()
