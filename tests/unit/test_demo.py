"""The demo's own Prefect: all of its state stands in one place."""

import os
from pathlib import Path

import pytest

from pipelines.demo import _prefect
from pipelines.flows.serve import Server


@pytest.mark.parametrize("said", [None, "/elsewhere/prefect"])
def test_all_of_prefects_state_stands_in_one_folder(said, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"PREFECT_HOME": said} if said else {})
    _prefect(tmp_path / "prefect")
    home = Path(said or tmp_path / "prefect")
    assert Path(os.environ["PREFECT_HOME"]) == home
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
