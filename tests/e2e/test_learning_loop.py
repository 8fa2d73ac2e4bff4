"""The closed loop on a real Prefect server, with real engines: what was answered trains a better reader."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from infra.readers import ReaderSpec
from infra.store.delta import Table
from infra.store.location import Store
from infra.store.policies import policies, policy, publish
from memagent.config import load_config
from tests.e2e.conftest import Memagent, needle_archive
from tests.support.flowing import Served
from tests.support.flowing import serving as up
from tests.support.versions import provenance
from tests.support.waiting import wait_for
from tests.support.weak import weaken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("no_engine_is_left")]

ENOUGH = 20
RECIPE = """
model = {model}

[rollout]
prompts = 8
group_size = 8
segments = 4
most_prompts = 32

[reward]
weights = {{ task = 1.0 }}

[learner]
minibatch_prompts = 8
lr = 3e-5
warmup_steps = 0
token_budget = 8192

[stage]
max_steps = 3
save_every = 3
validate_every = 3
validate_with = 32
"""
CHECK = ("kinds=niah_single_1,niah_multikey_1", "lengths=1000,2000", "n=20", "small_groups=observe")


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """`memagent up` with a weak reader, and a small recipe to train it by."""
    folder = tmp_path_factory.mktemp("loop")
    weak = weaken(folder / "weak")
    recipe = folder / "small.toml"
    recipe.write_text(RECIPE.format(model=json.dumps(str(weak))))
    options = ("--model", str(weak), "--recipe", str(recipe), "--enough", str(ENOUGH))
    options += tuple(part for item in CHECK for part in ("--check", item))
    with up(folder, [], number=3, options=options, end=signal.SIGKILL) as served:
        yield served, folder, served.log


def _flow_run(served: Served, name: str) -> dict:
    """Wait for the first run of a flow that nobody but an event has started, and for its end."""

    def done() -> list[dict]:
        runs = served.ask("flow_runs/filter", {"flows": {"name": {"any_": [name]}}})
        return [run for run in runs if run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")]

    return wait_for(done, served.process)[0]


def _told(served: Served, last: str) -> dict:
    """Return what events said, by their names; they travel behind the runs, so wait for the last of them."""

    def told() -> dict | None:
        heard = served.ask("events/filter", {"filter": {"event": {"prefix": ["memagent."]}}, "limit": 50})["events"]
        found = {event["event"]: event["payload"] for event in heard}
        return found if last in found else None

    return wait_for(told, served.process)


def test_answers_with_gold_make_a_better_reader_which_goes_to_work(serving):
    served, folder, log = serving
    weak = str(folder / "weak")
    questions = needle_archive(folder / "docs", 60, 40)
    parameters = {"corpus": "a", "questions_file": str(questions), "sources": [str(folder / "docs")]}
    pairs = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in parameters.items()]
    given = [part for pair in pairs for part in ("--param", pair)]
    assert served.run("answer-archive/bulk", *given) == "COMPLETED"
    store = Store(served.store)
    origin = ReaderSpec(load_config(store=store.url, engine__model=f"{weak}@shipped")).policy
    before = Table(store, "answers").read("a").to_pylist()
    assert {row["policy_id"] for row in before} == {origin.policy_id}

    harvested = _flow_run(served, "harvest-qa")
    assert harvested["state"]["type"] == "COMPLETED", log.read_text()[-3000:]
    rows = Table(store, "qa").read("a").to_pylist()
    assert len(rows) == 60 and {row["source"] for row in rows} == {"gold"}

    trained = _flow_run(served, "retrain")
    assert trained["state"]["type"] == "COMPLETED", log.read_text()[-3000:]
    assert trained["parameters"]["corpora"] == ["a"]
    told = _told(served, "memagent.policy.promoted")
    assert told["memagent.qa.enough"]["waiting"] == 60 and told["memagent.qa.enough"]["enough"] == ENOUGH
    (version,) = policies(store)
    record = version["promotion"]
    assert version["status"] == "promoted", record["reason"]
    assert (version["parent"], record["incumbent"]) == (origin.policy_id, origin.policy_id)
    assert record["overall"]["difference"] > 0 and record["overall"]["p"] < 0.05
    assert told["memagent.policy.promoted"]["candidate"] == version["policy_id"]
    assert version["data_version"] == told["memagent.policy.trained"]["data_version"]

    # The nightly digest, here by hand, reads a new document with it, and the others only if asked to.
    memagent = Memagent(store.url)
    needle_archive(folder / "more" / "docs", 3, 40, seed=9)
    defaults = folder / "questions.toml"
    defaults.write_text('[[question]]\nquestion = "What is the pass number for amber-otter?"\n')
    memagent("digest", "a", "--questions", str(defaults), "--model", weak)
    answers = [row for row in Table(store, "answers").read("a").to_pylist() if row["policy_id"] != origin.policy_id]
    assert len(answers) == 60 and {row["policy_id"] for row in answers} == {version["policy_id"]}


def test_a_worse_candidate_is_refused_and_the_promoted_stays(serving):
    served, folder, _ = serving
    store = Store(served.store)
    (version,) = policies(store)
    weak = folder / "weak"
    worse = shutil.copytree(weak, folder / "worse")
    weights = load_file(worse / "model.safetensors")
    noise = torch.Generator().manual_seed(0)
    noisy = {name: one + 0.3 * torch.randn(one.shape, generator=noise).to(one.dtype) for name, one in weights.items()}
    save_file(noisy, worse / "model.safetensors")
    bad = publish(store, worse, version["name"], provenance(version["policy_id"]), parent_folder=weak)
    memagent = Memagent(store.url)
    check = [part for item in CHECK for part in ("--check", item)]
    record = memagent.json("policies", "promote", bad, "--model", str(weak), *check, status=1)
    assert not record["promoted"] and record["incumbent"] == version["policy_id"] and "worse" in record["reason"]
    assert policy(store, bad)["status"] == "refused"
    assert policy(store, version["policy_id"])["status"] == "promoted"
    assert Path(ReaderSpec(load_config(store=store.url, engine__model=str(weak))).folder) != weak
