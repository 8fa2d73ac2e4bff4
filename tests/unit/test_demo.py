"""The demo's own Prefect: all of its state stands in one place."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from examples.demo import _prefect
from memagent.errors import UsageError
from pipelines.flows.serve import Server
from pipelines.web.address import Address
from pipelines.web.server import listen


@pytest.mark.parametrize("own", [False, True])
def test_all_of_prefects_state_stands_in_one_folder(own, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"PREFECT_HOME": str(tmp_path / "own")} if own else {})
    _prefect(tmp_path / "demo" / "prefect")
    home = tmp_path / "own" if own else tmp_path / "demo" / "prefect"
    assert Path(os.environ["PREFECT_HOME"]) == home
    assert home.is_dir(), "the server opens its database there at once"
    for name in ("PREFECT_SERVER_MEMO_STORE_PATH", "PREFECT_RESULTS_LOCAL_STORAGE_PATH"):
        assert Path(os.environ[name]).parent == home, "Prefect would take it from ~/.prefect"


def test_prefects_server_knows_the_demo_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {})
    server = _prefect(tmp_path / "prefect")
    assert isinstance(server, Server)
    assert os.environ["PREFECT_API_URL"] == f"{server.url}/api"
    assert server.url.startswith("http://127.0.0.1:")
    assert len(os.environ["PREFECT_API_AUTH_STRING"]) > 40
    monkeypatch.setattr(os, "environ", {"PREFECT_API_URL": "http://own:4200/api"})
    with _prefect(tmp_path / "prefect") as own:
        assert own is None
    assert "PREFECT_API_AUTH_STRING" not in os.environ, "a server of the user's has its own"


def test_a_port_of_prefects_server_that_is_in_use_is_said_at_once():
    with (
        closing(listen(Address(0))) as used,
        pytest.raises(UsageError, match=r"cannot be used .*: choose another --port"),
    ):
        Server(Address(used.getsockname()[1]), {}).__enter__()
