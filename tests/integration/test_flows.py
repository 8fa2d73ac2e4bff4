"""The flows: without a server, on a server, and through the Ray Jobs API."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import filler

ROOT = Path(__file__).parents[2]
QUESTION = "What is the pass number for amber-otter?"


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    rng = random.Random(0)
    for i in range(4):
        (folder / f"doc{i}.txt").write_text(f"{filler(rng, 80)}\n\nThe pass number for amber-otter is {100 + i}.")
    return folder


@pytest.fixture
def sets(model_folder):
    return ["engine.kind=scripted", f"engine.model={model_folder}", "flush_seconds=0.2"]


def in_python(code, tmp_path, timeout=240, **variables):
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
from pipelines.flows import answer_archive, digest_corpus
from infra.corpora import remember
from infra.store import Store
from memagent.questions import ask
store, docs, sets = json.loads(sys.argv[1]) if len(sys.argv) > 1 else json.loads({given!r})
bulk = answer_archive("c", questions=[{question!r}], sources=[docs], store=store, sets=sets)
remember(Store(store), "c", questions=[ask({question!r})])
night = digest_corpus("*", store=store, sets=sets)["c"]
from prefect.client.orchestration import get_client
from prefect.artifacts import Artifact
with get_client(sync_client=True) as client:
    kinds = sorted({{a.type for a in client.read_artifacts()}})
said = [bulk["readings"], night["readings"], kinds, bulk["report"]]
"""
TELL = 'print("RESULT" + json.dumps(said))'
JOBS = """
from infra.jobs import _jobs_client
said.append([str(job.status) for job in _jobs_client({cluster!r}).list_jobs()])
"""


def result(out):
    return json.loads(next(line for line in out.splitlines() if line.startswith("RESULT"))[6:])


def test_flows_run_without_a_server_and_publish(tmp_path, archive, sets):
    given = json.dumps([str(tmp_path / "store"), str(archive), sets])
    bulk, night, kinds, report = result(in_python(FLOW.format(given=given, question=QUESTION) + TELL, tmp_path))
    assert (bulk["read_now"], bulk["found"]) == (4, 4)
    assert (night["read_now"], night["answered_before"]) == (0, 4)
    assert {"table", "progress"} <= set(kinds)
    assert "amber-otter" in Path(report).read_text()


def test_prefect_yaml_names_flows_that_exist():
    spec = yaml.safe_load((ROOT / "infra/deploy/prefect.yaml").read_text())
    assert {d["name"] for d in spec["deployments"]} == {"nightly", "bulk"}
    for deployment in spec["deployments"]:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        assert set(deployment["parameters"]) <= set(flow.parameters.properties)


@pytest.fixture
def cluster(tmp_path):
    """A Ray cluster of one node with its Jobs API, as it would stand elsewhere."""
    ray = str(Path(sys.executable).with_name("ray"))
    base = 26_000 + os.getpid() % 2_000
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    command = [
        ray,
        "start",
        "--head",
        "--block",
        f"--port={base}",
        "--num-cpus=2",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={base + 1}",
        "--node-ip-address=127.0.0.1",
        f"--temp-dir=/tmp/ray-{os.getpid()}",
        "--disable-usage-stats",
    ]
    with (tmp_path / "ray.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{base + 1}"
        until = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{address}/api/jobs/", timeout=2):
                    break
            except urllib.error.HTTPError:
                break  # it is up, and asks for its token
            except OSError:
                assert time.monotonic() < until and process.poll() is None, (tmp_path / "ray.log").read_text()[-2000:]
                time.sleep(0.5)
        yield address
    finally:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in tree:
            if one.is_running():
                one.kill()
        process.wait()


@pytest.mark.slow
def test_a_flow_submits_its_work_to_a_cluster(tmp_path, archive, sets, cluster):
    given = json.dumps([str(tmp_path / "store"), str(archive), [*sets, f"ray.jobs_address={cluster}"]])
    code = FLOW.format(given=given, question=QUESTION) + JOBS.format(cluster=cluster) + TELL
    bulk, night, _, _, jobs = result(in_python(code, tmp_path, timeout=400))
    assert bulk["found"] == 4 and night["answered_before"] == 4
    assert jobs == ["SUCCEEDED"] * 3


CANCELLED = """
import json, threading, time
from memagent.config import load_config
from infra.jobs import _jobs_client, run_job, stop_job
store, docs, sets = json.loads({given!r})
config = load_config(store=store, sets=sets)
run_job(config, ["ingest", "c", docs], "memagent-x-ingest", print)
slow = load_config(store=store, sets=[*sets, "engine.scripted_delay=5"])
ended = []
def work():
    try:
        run_job(slow, ["ask", "c", "-q", {question!r}], "memagent-x", lambda line: None)
    except Exception as error:
        ended.append(str(error))
thread = threading.Thread(target=work)
thread.start()
client = _jobs_client(config.ray.jobs_address)
def status():
    return str({{job.submission_id: job.status for job in client.list_jobs()}}.get("memagent-x"))
while status() != "RUNNING":
    time.sleep(0.5)
time.sleep(5)
stop_job(config.ray.jobs_address, "memagent-x")
thread.join(60)
print("RESULT" + json.dumps([ended[0][:60], str(client.get_job_status("memagent-x"))]))
"""


@pytest.mark.slow
def test_cancelling_stops_the_ray_job(tmp_path, archive, sets, cluster):
    given = json.dumps([str(tmp_path / "store"), str(archive), [*sets, f"ray.jobs_address={cluster}"]])
    error, status = result(in_python(CANCELLED.format(given=given, question=QUESTION), tmp_path, timeout=300))
    assert status == "STOPPED" and "memagent-x ended as STOPPED" in error


@pytest.mark.slow
def test_up_serves_the_deployments(tmp_path, archive, sets):
    store = str(tmp_path / "store")
    port = 24_000 + os.getpid() % 2_000
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
    }
    up = [sys.executable, "-m", "pipelines.cli", "up", "--store", store, "--port", str(port)]
    up += [part for item in sets for part in ("--set", item)]
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(up, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=ROOT)
    try:
        prefect = [sys.executable, "-m", "prefect"]
        until = time.monotonic() + 150
        while "ask in bulk" not in (tmp_path / "up.log").read_text():
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "up.log").read_text()[-2000:]
            time.sleep(1)
        time.sleep(5)
        listed = subprocess.run([*prefect, "deployment", "ls"], env=environment, capture_output=True, text=True)
        assert "digest-corpus/nightly" in listed.stdout and "answer-archive/bulk" in listed.stdout
        ran = subprocess.run(
            [
                *prefect,
                "deployment",
                "run",
                "answer-archive/bulk",
                "--watch",
                "--param",
                "corpus=c",
                "--param",
                f"questions={json.dumps([QUESTION])}",
                "--param",
                f"sources={json.dumps([str(archive)])}",
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0 and "Completed" in ran.stdout, ran.stdout[-2000:] + ran.stderr[-1000:]
    finally:
        tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
        _, left = psutil.wait_procs(tree, timeout=20)
        for one in left:
            one.kill()
    assert not left, "processes outlive `memagent up`"
