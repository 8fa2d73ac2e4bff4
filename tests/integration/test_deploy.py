"""`infra/deploy/prefect.yaml`: deployed to work pools of a real server, and run by a real worker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.delta import Table
from infra.store.location import Store
from infra.system.processes import tree
from memagent.config import load_config
from pipelines.flows.serve import variables
from pipelines.web.address import Address
from tests.support.flowing import QUESTION, ROOT, Served, ended, killed, wait_until
from tests.support.ports import first_port

pytestmark = pytest.mark.slow
AUTH = "memagent:a-token-of-this-test"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A Prefect server with both work pools, and nothing deployed."""
    port = first_port(24_000, 2_000, number=2)
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.flows.serve", str(port)],
            env={**environment, **variables(Address(port), AUTH)},
            stdout=file,
            stderr=file,
            cwd=ROOT,
        )
    api = f"http://127.0.0.1:{port}/api"
    client = {**environment, "PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": AUTH, "DO_NOT_TRACK": "1"}
    client["PREFECT_API_REQUEST_TIMEOUT"] = "600"  # what a busy server answers later than this is asked again
    served = Served(process, api, str(tmp_path / "store"), client, log)
    try:
        wait_until(lambda: _answers(served), 600, log, process)
        for pool in ("memagent", "memagent-cpu"):
            served.prefect("work-pool", "create", pool, "--type", "process")
        yield served
    finally:
        killed(tree(process.pid))
        process.wait()


def _answers(served: Served) -> bool:
    try:
        return bool(served.ask("admin/version"))
    except OSError:
        return False


def test_a_worker_in_another_folder_runs_what_was_deployed(server, archive, sets, tmp_path):
    server.prefect(
        "--no-prompt", "deploy", "--all", "--prefect-file", str(ROOT / "infra/deploy/prefect.yaml"), cwd=ROOT
    )
    deployed = server.ask("deployments/filter", {})
    names = ["bulk", "harvest", "nightly", "optimize", "reap", "retrain", "scores", "watch"]
    assert sorted(d["name"] for d in deployed) == [f"{name}-pool" for name in names], "not those of `memagent up`"
    assert str(ROOT) not in json.dumps(deployed), "workers have folders of their own"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    operator = elsewhere / "memagent.toml"
    operator.write_text("".join(f"{item.partition('=')[0]} = {_toml(item)}\n" for item in sets))
    environment = {**server.environment, "MEMAGENT_CONFIG_FILE": str(operator)}
    log = tmp_path / "worker.log"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [str(Path(sys.executable).with_name("prefect")), "worker", "start", "--pool", "memagent"],
            env=environment,
            stdout=file,
            stderr=file,
            cwd=elsewhere,
            start_new_session=True,
        )
    try:
        given = {"corpus": "c", "questions": [QUESTION], "sources": [str(archive)], "store": server.store}
        pairs = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items()]
        argv = [part for pair in pairs for part in ("--param", pair)]
        server.prefect("deployment", "run", "answer-archive/bulk-pool", *argv)
        (run,) = _runs(server, "bulk-pool")
        wait_until(lambda: _state(server, run["id"])["type"] in ("COMPLETED", "FAILED", "CRASHED"), 600, log, worker)
        state = _state(server, run["id"])
        assert state["type"] == "COMPLETED", f"{state['message']}\n{log.read_text()[-3000:]}"
    finally:
        ended(worker, signal.SIGINT)
    assert Table(Store(server.store), "answers").read("c").num_rows == 4
    # What it told starts the harvest, with the corpus of the event.
    until = time.monotonic() + 600
    while not (harvests := _runs(server, "harvest-pool")):
        assert time.monotonic() < until, "the event has started nothing"
        time.sleep(0.5)
    assert harvests[0]["parameters"]["corpus"] == "c"


def _toml(item: str) -> str:
    key, _, _ = item.partition("=")
    value = load_config(None, [item]).model_dump(exclude_unset=True)
    for part in key.split("."):
        value = value[part]
    return json.dumps(value)


def _runs(server: Served, deployment: str) -> list[dict]:
    return list(server.ask("flow_runs/filter", {"deployments": {"name": {"any_": [deployment]}}}))


def _state(server: Served, run: str) -> dict:
    return dict(server.ask(f"flow_runs/{run}")["state"])
