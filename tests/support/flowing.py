"""What the tests of flows share: a small archive, a Ray cluster of one node, a served Prefect."""

import base64
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.system.processes import tree
from tests.support.ports import first_port
from tests.support.shared import Shared
from tests.support.texts import filler
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
_CLUSTERS = itertools.count()
_STARTS = 10
QUESTION = "What is the pass number for amber-otter?"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four documents, each with the answer."""
    folder = tmp_path_factory.mktemp("docs")
    rng = random.Random(0)
    for i in range(4):
        (folder / f"doc{i}.txt").write_text(f"{filler(rng, 80)}\n\nThe pass number for amber-otter is {100 + i}.")
    return folder


@pytest.fixture(scope="module")
def sets(model_folder: Path) -> list[str]:
    """The configuration: the scripted engine."""
    return ["engine.kind=scripted", f"engine.model={model_folder}", "flush_seconds=0.2"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray cluster of one node with its Jobs API, as it would stand elsewhere; gives the API's address."""
    # Ports and folder of its own. An earlier cluster lingers for a minute, and a Ray session of this
    # process holds the usual port of the agent, without which no job is ever begun.
    number = next(_CLUSTERS)
    base = first_port(26_000, 1_496, number)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={base}"]
    command += ["--num-cpus=2", "--include-dashboard=true", "--dashboard-host=127.0.0.1"]
    command += [
        f"--dashboard-port={base + 1}",
        f"--dashboard-agent-listen-port={base + 2}",
        f"--ray-client-server-port={base + 3}",
        "--node-ip-address=127.0.0.1",
        f"--temp-dir=/tmp/ray-{os.getpid()}-{number}",
    ]
    log = tmp_path_factory.mktemp("cluster") / "log"
    address = f"http://127.0.0.1:{base + 1}"
    process = _begun(lambda: _started([*command, "--disable-usage-stats"], log, environment), address, log)
    try:
        yield address
    finally:
        killed(tree(process.pid))
        process.wait()


def _started(command: list[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)


def _begun(start: Callable[[], "subprocess.Popen[bytes]"], address: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start a cluster until it is up: a busy machine misses Ray's own limit of 30 s for a start now and then."""
    for _ in range(_STARTS):
        process = start()
        # The dashboard answers before the node is there, and goes with it.
        while process.poll() is None:
            if "Ray runtime started" in log.read_text(errors="replace") and _answers(f"{address}/api/jobs/"):
                return process
            time.sleep(0.5)
        killed(_session(process.pid))
    raise RuntimeError(f"no Ray cluster after {_STARTS} starts: {log.read_text(errors='replace')[-2000:]}")


def _session(leader: int) -> list[psutil.Process]:
    """Return what is left of a session whose leader has ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


@pytest.fixture(scope="session")
def prefect_server(shared: Shared) -> dict[str, str]:
    """The variables that lead to a Prefect server, which serves the whole session; it has no deployments."""

    def start(folder: Path) -> "tuple[subprocess.Popen[bytes], dict[str, str]]":
        port = first_port(24_000, 2_000, 5)
        home = {"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
        command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        process = _started(command, folder / "log", os.environ | home)
        api = f"http://127.0.0.1:{port}/api"
        wait_until(lambda: _answers(f"{api}/health"), 600, folder / "log", process)
        return process, {"PREFECT_API_URL": api}

    return shared.started("prefect", start)


ENDED = {"CANCELLED", "CRASHED", "FAILED", "COMPLETED"}
"""States of a flow run after which there is no other."""
DEPLOYMENTS = {"bulk", "harvest", "nightly", "optimize", "reap", "retrain", "scores", "watch"}
"""What `memagent up` deploys."""


@dataclass(frozen=True)
class Served:
    """A running `memagent up`."""

    process: "subprocess.Popen[bytes]"
    api: str
    store: str
    environment: dict[str, str]
    log: Path

    def prefect(self, *arguments: str, timeout: float = 600, cwd: Path | None = None) -> str:
        """Run a Prefect command against the server and return what it prints."""
        ran = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-1000:]
        return ran.stdout

    def begin(self, deployment: str, *parameters: str) -> str:
        """Start a run of a deployment and return its ID."""
        (run,) = re.findall(r"UUID: ([0-9a-f-]{36})", self.prefect("deployment", "run", deployment, *parameters))
        return str(run)

    def run(self, deployment: str, *parameters: str) -> str:
        """Run a deployment, and return its last state. Prefect's own `--watch` may miss the end on a busy machine."""
        run = self.begin(deployment, *parameters)

        def ended() -> str:
            state = str(self.ask(f"flow_runs/{run}")["state"]["type"])
            return state if state in ENDED else ""

        return wait_for(ended, self.process, self.log.read_text)

    def python(self, code: str, *arguments: str) -> None:
        """Run a program that knows the server and its token."""
        command = [sys.executable, "-c", code, *arguments]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-2000:]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the server's API as a client that knows the token: GET, or POST where there is a body."""
        headers = {"Authorization": f"Basic {base64.b64encode(self.auth.encode()).decode()}"}
        if body is not None:
            token = self.ask("csrf-token?client=tests")["token"]
            headers |= {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
        answer = self.request(path, body, headers)
        return json.loads(answer or b"null")

    def request(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> bytes:
        """Send a request with no headers but these. Raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}/{path}", data, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def deployments(self) -> set[str]:
        """Return the names of the deployments that the server has."""
        return {deployment["name"] for deployment in self.ask("deployments/filter", {})}

    @property
    def auth(self) -> str:
        """The ``user:token`` of the server."""
        return self.environment["PREFECT_API_AUTH_STRING"]


@contextmanager
def serving(
    folder: Path,
    sets: list[str],
    number: int = 0,
    options: tuple[str, ...] = (),
    end: signal.Signals = signal.SIGINT,
    *,
    host: str = "127.0.0.1",
) -> Iterator[Served]:
    """Start `memagent up`; at its end, by the signal, nothing that it has started may be left."""
    port = first_port(24_000, 2_000, number)
    api = f"http://{host}:{port}/api"
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect")}
    store = str(folder / "store")
    command = [sys.executable, "-m", "memagent", "up", "--store", store, "--port", str(port)]
    command += [*options, *(part for item in sets for part in ("--set", item))]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True, cwd=ROOT)
    try:
        wait_until(lambda: "ask in bulk" in log.read_text(), 600, log, process)
        auth = (folder / "prefect" / "memagent" / "auth").read_text().strip()
        client = {**environment, "PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": auth}
        served = Served(process, api, store, client, log)
        wait_until(lambda: served.deployments() >= DEPLOYMENTS, 600, log, process)
        yield served
    finally:
        ended(process, end)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, sets: list[str]) -> Iterator[Served]:
    """A `memagent up` with the scripted engine."""
    with serving(tmp_path_factory.mktemp("up"), sets) as served:
        yield served


def ended(process: "subprocess.Popen[bytes]", sign: signal.Signals) -> None:
    """End a process by a signal, SIGKILL as well; nothing that it has started may be left."""
    below = tree(process.pid)[1:]  # none where it has ended already
    process.send_signal(sign)
    try:
        process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(below, timeout=60)
    outlived = [str(one) for one in left]  # names and states, before they are ended
    killed(left)
    assert not left, f"processes outlive it: {outlived}"


def killed(processes: list[psutil.Process]) -> None:
    """Kill processes; those that have ended meanwhile are no error."""
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def wait_until(true: Any, seconds: float, log: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait for a condition; fail with the end of the log where the process ends first, or time is over."""
    until = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True  # it is up, and asks for its token
    except OSError:
        return False
