"""`memagent up` ends, and says which, when one of the processes that it started has ended."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from memagent.errors import MemagentError
from pipelines.cli.up import _wait


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
