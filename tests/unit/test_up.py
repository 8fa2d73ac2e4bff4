"""`memagent up` ends, and says which, when one of the processes that it started has ended."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME, temporary_settings

from memagent.errors import MemagentError, UsageError
from pipelines.cli.up import _database, _wait


def test_it_ends_and_names_the_process_that_ended():
    server = SimpleNamespace(check=lambda: None)
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ends = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    try:
        with pytest.raises(MemagentError, match="what serves the review pages ended with status 3: start memagent up"):
            _wait(server, {"the flows": running, "the review pages": ends})
    finally:
        running.kill()
        running.wait()


def test_each_store_has_a_database_of_its_own_which_one_process_uses(tmp_path):
    stores = [str(tmp_path / name) for name in ("a", "b")]
    with temporary_settings({PREFECT_HOME: tmp_path}), _database(stores[0]) as first, _database(stores[1]) as second:
        (one,), (other,) = first.values(), second.values()
        assert one != other and str(tmp_path / "memagent") in one
        with pytest.raises(UsageError, match="already serves"), _database(stores[0]):
            pass
    with temporary_settings({PREFECT_HOME: tmp_path}), _database(stores[0]) as again:
        assert again == first
    named = {PREFECT_HOME: tmp_path, PREFECT_API_DATABASE_CONNECTION_URL: "sqlite+aiosqlite:///mine.db"}
    with temporary_settings(named), _database(stores[0]) as mine:
        assert mine == {}
