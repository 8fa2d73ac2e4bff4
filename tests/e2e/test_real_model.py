"""A pretrained language model that a package ships, SmolLM2-135M-Instruct, through every command that takes a model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.location import Store
from pipelines.training.checkpoints import Checkpoints
from tests.e2e.conftest import PROSE, ROOT, Memagent
from tests.support.ports import first_port
from tests.support.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_engine_is_left")]
FACT, QUESTION, ANSWER = (
    "The access code of cedar-gate is 4829104.",
    "What is the access code of cedar-gate?",
    "4829104",
)
READING = ("reading.segment_tokens=256", "reading.memory_tokens=64", "reading.answer_tokens=32", "reading.gate=true")
GIVEN = [part for item in READING for part in ("--set", item)]
SMALL = (
    "learner.token_budget=2048",
    "rollout.prompts=2",
    "learner.minibatch_prompts=2",
    "rollout.segments=2",
    "audit.tasks=4",
)
DATA = ["--data", "needles", "--text", str(Path(ROOT) / "docs"), *GIVEN]
DATA += [part for item in SMALL for part in ("--set", item)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's folder, as `make real` writes it; one that is there is used."""
    made = Path(ROOT) / "build" / "smollm2"
    if (made / "model.safetensors").is_file():
        return str(made)
    base = tmp_path_factory.mktemp("real")
    packages = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(base / "gguf"), "gguf"]
    subprocess.run([*packages, "accelerate"], check=True)
    convert = [sys.executable, "-m", "examples.smollm2", str(base / "smollm2")]
    subprocess.run(convert, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(base / "gguf")})
    return str(base / "smollm2")


def test_a_real_model_is_asked_scored_taught_rewarded_promoted_and_served(model, tmp_path):
    memagent = Memagent(str(tmp_path / "store"))
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text(f"{PROSE * 4}\n\n{FACT}\n\n{PROSE * 4}")
    asked = ["ask", str(notes), "-q", QUESTION, "--model", model, *GIVEN]
    first = memagent.json(*asked)
    assert (first["summary"]["readings"]["total"], first["summary"]["readings"]["failed"]) == (1, 0)

    scored = ["--suite", "ruler", "--kinds", "niah_single_1", "--lengths", "500", "--n", "2", "--model", model, *GIVEN]
    scores = memagent.json("evaluate", *scored)
    assert {row["n"] for row in scores["evaluation"]} == {2} and scores["readings"]["failed"] == 0

    steps = ["--set", "stage.max_steps=2", "--set", "learner.lr=1e-4", "--set", "learner.warmup_steps=0"]
    taught = memagent.json("train", "--recipe", "sft", "--model", model, *DATA, *steps)
    losses = [row["nll"] for row in metrics(memagent, taught["run_id"])]
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses) and taught["candidate"]

    adapters = ["learner.lora_rank=8", "learner.weight_sync=adapters", "rollout.dynamic_sampling=false"]
    adapters += ["rollout.group_size=2", "stage.max_steps=1", "stage.validate_with=1", "learner.dtype=float32"]
    sets = [part for item in (*adapters, "engine.dtype=float32") for part in ("--set", item)]
    rewarded = memagent.json("train", "--recipe", "smoke", "--model", taught["candidate"], *DATA, *sets)
    (row,) = [row for row in metrics(memagent, rewarded["run_id"]) if row["step"] == 1]
    assert 0 < row["logprob_diff"] < 1e-4, "engine and learner compute the same"

    memagent("policies", "promote", taught["candidate"], "--model", model, "--force")
    again = memagent.json(*asked, "--reread")
    assert again["summary"]["policy_id"] == taught["candidate"] and again["summary"]["readings"]["read_now"] == 1

    options = ["--model", model, "--part", "api", *GIVEN]
    with serving(tmp_path, memagent.store, first_port(23_000, 800), options) as endpoint:
        said = [{"role": "user", "content": QUESTION}]
        answer = endpoint.client(timeout=600).chat.completions.create(
            model="memagent",
            messages=said,  # type: ignore[arg-type]
            extra_body={"document": FACT},
        )
        (choice,) = answer.choices
        assert answer.usage and answer.usage.prompt_tokens > 20 and choice.message.content


def metrics(memagent: Memagent, run_id: str) -> list[dict[str, float]]:
    """Return the rows of a training."""
    checkpoints = Checkpoints(Store(memagent.store), run_id)
    checkpoints.read()
    return [dict(row) for row in checkpoints.metrics]
