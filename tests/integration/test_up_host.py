"""`memagent up --host`: another address of this machine, its name alone, and the review server beside it."""

import base64
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.system.processes import tree
from tests.support.commands import run_here
from tests.support.flowing import Served, serving
from tests.support.ports import first_port


def other_address() -> str:
    """An address of this machine that other machines could reach; where it has none, another of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"


HOST = other_address()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, sets: list[str]) -> Iterator[tuple[Served, int]]:
    folder = tmp_path_factory.mktemp("elsewhere")
    service = first_port(25_500, 400, 2)
    patch = pytest.MonkeyPatch()
    for name in ("CONFIG", "DATA", "CACHE"):
        patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    options = ("--host", HOST, "--review-port", str(service))
    with serving(folder, sets, number=4, options=options, host=HOST) as served:
        yield served, service
    patch.undo()


def status(url: str, **headers: str) -> int:
    """Return the status of a request; 0: nobody listens there."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.slow
def test_it_answers_to_the_given_name_alone_and_to_who_has_the_token(elsewhere):
    served, service = elsewhere
    port = int(served.api.split(":")[2].removesuffix("/api"))
    knows = {"Authorization": "Basic " + base64.b64encode(served.auth.encode()).decode()}
    deployment = f"{served.api}/deployments/name/answer-archive/bulk"
    assert status(deployment, **knows) == 200 and status(deployment) == 401
    for name in ("evil.example", "localhost", "127.0.0.1", f"127.0.0.1:{port}", ""):
        assert status(deployment, **knows, Host=name) == 400, name
    assert status(f"http://127.0.0.1:{port}/api/health") == 0, "nothing listens where nobody asked for it"
    page = f"http://{HOST}:{service}/login"
    assert status(page) == 200
    for name in ("evil.example", "localhost", f"localhost:{service}"):
        assert status(page, Host=name) == 400, name
    assert status(f"http://127.0.0.1:{service}/login") == 0
    said = served.log.read_text()
    warned = re.findall(rf"Port (\d+) of {re.escape(HOST)} is open to other machines, without TLS", said)
    assert warned == ([] if HOST.startswith("127.") else [str(port), str(service)]), said
    assert served.auth.partition(":")[2] not in said


@pytest.mark.slow
def test_its_own_flows_reach_it_there(elsewhere):
    served, _ = elsewhere
    assert served.run("watch-schedule/watch") == "COMPLETED"


@pytest.mark.slow
def test_it_ends_and_says_so_when_its_server_is_gone(elsewhere):
    served, _ = elsewhere
    (server,) = [one for one in tree(served.process.pid) if "pipelines.flows.serve" in one.cmdline()]
    os.kill(server.pid, signal.SIGKILL)
    assert served.process.wait(120) == 1
    said = served.log.read_text()
    ended = r"the Prefect server at \S+ ended with status -9\. Start it again: .* The last that it printed: "
    assert re.search(ended, said), said


def refused(command: str, *options: str, tmp_path: Path, **variables: str) -> str:
    """Run a command that must end before it serves anything; return what it says."""
    homes = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
    variables = {**homes, "PREFECT_HOME": str(tmp_path / "prefect"), **variables}
    _, said = run_here(command, "--store", str(tmp_path / "store"), *options, status=2, **variables)
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("command", ["up", "review"])
def test_all_addresses_at_once_are_refused_without_a_name(command: str, tmp_path: Path):
    said = refused(command, "--host", "0.0.0.0", tmp_path=tmp_path)
    assert "every address of this machine" in said and "--url" in said
    assert "no address of this machine" in refused(command, "--host", "198.51.100.1", tmp_path=tmp_path)


def test_a_short_token_of_ones_own_is_none_for_other_machines(tmp_path: Path):
    weak = {"PREFECT_SERVER_API_AUTH_STRING": "admin:pass"}
    said = refused("up", "--url", "https://archive.example.org", tmp_path=tmp_path, **weak)
    assert "16 characters" in said and "admin" not in said
    weak = {"PREFECT_SERVER_API_AUTH_STRING": "admin:"}
    said = refused("up", "--host", "0.0.0.0", "--url", "https://archive.example.org", tmp_path=tmp_path, **weak)
    assert "16 characters" in said
