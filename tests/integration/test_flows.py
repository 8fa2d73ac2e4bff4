"""The flows: without a server, on a server, and through the Ray Jobs API."""

import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prefect.events import DeploymentTriggerTypes
from pydantic import TypeAdapter

from tests.support.flowing import QUESTION, ROOT
from tests.support.texts import filler


def in_python(code, tmp_path, timeout=600, **variables):
    """Run code in a process of its own: Prefect and Ray keep state in theirs."""
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done.stdout


FLOW = """
import json, sys
from pipelines.flows import answer_archive, digest_corpus, optimize_corpus
from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from memagent.questions import ask
store, docs, sets = json.loads(sys.argv[1]) if len(sys.argv) > 1 else json.loads({given!r})
bulk = answer_archive("c", questions=[{question!r}], sources=[docs], store=store, sets=sets)
remember(Corpus(Store(store), "c"), questions=[ask({question!r})])
{night}
from prefect.client.orchestration import get_client
from prefect.artifacts import Artifact
with get_client(sync_client=True) as client:
    kinds = sorted({{a.type for a in client.read_artifacts() if a.type}})
said = [bulk["readings"], night["readings"], kinds, bulk["report"]]
"""
NIGHT = """
night = digest_corpus("*", store=store, sets=sets)["c"]
optimize_corpus("*", retention_days=0, store=store, sets=sets)
"""
BAD_NIGHT = """
from infra.store.delta import Table
from pipelines.flows import FailedItems
remember(Corpus(Store(store), "a"), sources=["/no/such/folder"], questions=[ask("Who?")])
try:
    digest_corpus("*", store=store, sets=sets)
except FailedItems as error:
    refused = str(error)
runs = Table(Store(store), "runs").read("c").to_pylist()
optimize_corpus("*", retention_days=0, store=store, sets=sets)
(night,) = [json.loads(row["summary"]) for row in runs if row["kind"] == "digest"]
"""
TELL = 'print("RESULT" + json.dumps(said))'
JOBS = """
from infra.cluster.session import _jobs_client
said.append([str(job.status) for job in _jobs_client({cluster!r}).list_jobs()])
"""


def result(out):
    return json.loads(next(line for line in out.splitlines() if line.startswith("RESULT"))[6:])


def test_flows_run_without_a_server_and_publish(tmp_path, archive, sets):
    given = json.dumps([str(tmp_path / "store"), str(archive), sets])
    code = FLOW.format(given=given, question=QUESTION, night=BAD_NIGHT) + "said.append(refused)\n" + TELL
    bulk, night, kinds, report, refused = result(in_python(code, tmp_path))
    assert (bulk["read_now"], bulk["found"]) == (4, 4)
    assert (night["read_now"], night["answered_before"]) == (0, 4)
    assert {"table", "progress"} <= set(kinds)
    assert "amber-otter" in Path(report).read_text()
    assert "1 of 2 corpora failed" in refused and "/no/such/folder" in refused, "the other one had its turn"


BROKEN = """
import json
from datetime import UTC, datetime
from pathlib import Path
from pipelines.flows import answer_archive, digest_corpus
from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from infra.store.delta import Table
from memagent.questions import ask
store, docs, sets = json.loads({given!r})
begun, said = datetime.now(UTC), []
remember(Corpus(Store(store), "night"), sources=[docs], questions=[ask({question!r})])
for run in (
    lambda: digest_corpus("night", store=store, sets=sets, return_state=True),
    lambda: answer_archive("bulk", questions=[{question!r}], sources=[docs], store=store, sets=sets, return_state=True),
    lambda: digest_corpus("night", store=store, sets=[*sets, "max_failed=0"], return_state=True),
):
    state = run()
    said.append([state.type.value, state.name, state.message])
said.append([Table(Store(store), "runs").read(name, ["status"])["status"].to_pylist() for name in ("night", "bulk")])
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    said.append([a.data for a in client.read_artifacts() if a.type == "table" and a.created > begun])
"""


@pytest.mark.slow
def test_a_source_that_cannot_be_read_is_a_warning_of_the_run(tmp_path, archive, sets, prefect_server):
    docs = tmp_path / "docs"
    shutil.copytree(archive, docs)
    (docs / "broken.pdf").write_bytes(b"%PDF-1.7\nno more of it")
    given = json.dumps([str(tmp_path / "store"), str(docs), sets])
    code = BROKEN.format(given=given, question=QUESTION) + TELL
    night, bulk, strict, status, tables = result(in_python(code, tmp_path, **prefect_server))
    for kind, name, told in (night, bulk):
        assert (kind, name) == ("COMPLETED", "Completed with warnings")
        assert re.match(r"1 failed \(1 source: [a-z-]+\); the others are answered", told), told
    assert strict[0] == "FAILED"
    assert [sorted(each) for each in status] == [["completed with warnings", "failed"], ["completed with warnings"]]
    assert len(tables) == 3 and all('"failed, source: ' in table for table in tables)
    command = [sys.executable, "-m", "memagent", "digest", "night", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, *(part for item in sets for part in ("--set", item))], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 5 and "1 failed" in done.stdout and "source: " in done.stdout, done.stdout + done.stderr


EVALUATE = """
import json
import pipelines.flows.learning as evaluating
told, emit = [], evaluating.emit_event
def tell(event, resource, payload):
    told.append([event, payload.get("before"), payload["run_id"]])
    emit(event=event, resource=resource, payload=payload)
evaluating.emit_event = tell
store, file, sets = json.loads({given!r})
runs = [
    evaluating.evaluate_policy("files", data=[file], store=store, sets=[*sets, f"reading.segment_tokens={{size}}"])
    for size in (512, 512, 16)
]
said = [[(run["run_id"], run["overall"]["value"], run["readings"]["read_now"], run["report"]) for run in runs], told]
"""


@pytest.mark.slow
def test_a_policy_that_falls_beyond_noise_raises_the_alarm(tmp_path, sets, prefect_server):
    rng = random.Random(0)
    texts = [f"{filler(rng, 60)}\n\nThe pass number for amber-otter is {100 + i}." for i in range(8)]
    rows = [{"context": text, "input": QUESTION, "answers": [text[-4:-1]], "index": i} for i, text in enumerate(texts)]
    (tmp_path / "eval.json").write_text(json.dumps(rows))
    given = json.dumps([str(tmp_path / "store"), str(tmp_path / "eval.json"), sets])
    runs, told = result(in_python(EVALUATE.format(given=given) + TELL, tmp_path, **prefect_server))
    (first, good, read, report), (again, same, none, _), (worse, bad, _, _) = runs
    assert (good, same, read, none) == (1.0, 1.0, 8, 0) and bad < 0.3
    assert "Evaluation" in Path(report).read_text()
    evaluated = [["memagent.policy.evaluated", None, run] for run in (first, again, worse)]
    assert told == [*evaluated, ["memagent.policy.fell", again, worse]]


def test_prefect_yaml_names_flows_that_exist():
    spec = yaml.safe_load((ROOT / "infra/deploy/prefect.yaml").read_text())
    assert {d["name"] for d in spec["deployments"]} == {
        "nightly-pool",
        "bulk-pool",
        "scores-pool",
        "optimize-pool",
        "harvest-pool",
        "reap-pool",
        "retrain-pool",
        "watch-pool",
    }
    assert len({d["work_pool"]["name"] for d in spec["deployments"]}) == 2
    triggers = {}
    for deployment in spec["deployments"]:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        assert set(deployment["parameters"]) <= set(flow.parameters.properties)
        for given in deployment.get("triggers", []):
            trigger = TypeAdapter(DeploymentTriggerTypes).validate_python({"name": "t", **given})
            assert set(trigger.parameters) <= set(flow.parameters.properties)
            triggers[deployment["name"]] = trigger.expect
    assert triggers["retrain-pool"] == {"memagent.qa.enough"} and len(triggers["harvest-pool"]) == 2


CLUSTER = """
from pipelines.flows import ray_job as running
heard, run_job = [], running.run_job
def hear(config, argv, submission, line, **more):
    def both(text):
        heard.append(text)
        line(text)
    return run_job(config, argv, submission, both, **more)
running.run_job = hear
"""


@pytest.mark.slow
def test_a_flow_submits_its_work_to_a_cluster(tmp_path, archive, sets, cluster, prefect_server):
    (tmp_path / "operator.toml").write_text(f"[ray]\njobs_address = '{cluster}'\n")
    given = json.dumps([str(tmp_path / "store"), str(archive), sets])
    code = CLUSTER + FLOW.format(given=given, question=QUESTION, night=NIGHT) + JOBS.format(cluster=cluster)
    code += "said.append(heard)\n" + TELL
    said = in_python(code, tmp_path, MEMAGENT_CONFIG_FILE=str(tmp_path / "operator.toml"), **prefect_server)
    bulk, night, _, _, jobs, heard = result(said)
    assert bulk["found"] == 4 and night["answered_before"] == 4
    assert jobs == ["SUCCEEDED"] * 4
    summaries = [line for line in heard if '"run_id"' in line]
    assert len(summaries) == 3, heard
    for answer in ("100", "101", "102", "103"):
        assert not any(f'"{answer}' in line or "doc0.txt" in line for line in heard), "answers are in the store"
