"""An engine's process ends with its owner: both as processes of their own."""

import os
import subprocess
import sys

import psutil
import pytest

from infra.system.processes import end_with_owner
from tests.endurance import outliving
from tests.support.waiting import wait_for

ENGINE = "from infra.system.processes import end_with_owner; end_with_owner(); import time; time.sleep(300)"
LATE = f"import time; time.sleep(2); {ENGINE}"
PARENT = f"import subprocess; subprocess.Popen(['sleep', '300']); {ENGINE}"
OWNER = """
import subprocess, sys, time
from infra.system.processes import own_engines
own_engines()
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("engine", [ENGINE, LATE, PARENT], ids=["that runs", "that is just starting", "with a child"])
def test_an_engine_ends_when_its_owner_is_killed(engine):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, engine], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        process = psutil.Process(int(owner.stdout.readline()))
    assert not psutil.wait_procs([process], timeout=1)[0], "it lives as long as its owner"
    tree = [process, *(wait_for(process.children) if engine is PARENT else process.children())]
    assert len(tree) == 1 + (engine is PARENT)
    owner.kill()
    assert not outliving(tree), "also while nobody has taken note of the owner's end"
    owner.wait()


def test_a_module_runs_as_it_would_alone_and_ends_with_its_owner():
    owner = subprocess.Popen(["sleep", "300"])
    command = [
        sys.executable,
        "-u",
        "-m",
        "infra.system.processes",
        str(owner.pid),
        "http.server",
        "0",
        "--bind",
        "127.0.0.1",
    ]
    module = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert module.stdout is not None
    with module.stdout:
        assert module.stdout.readline().startswith("Serving HTTP on 127.0.0.1")
    owner.kill()
    assert module.wait() == 1
    owner.wait()


def test_the_owner_itself_and_strangers_go_on():
    done = subprocess.run(
        [sys.executable, "-c", "from infra.system.processes import *; own_engines(); end_with_owner(); print('on')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "on\n"
    assert "MEMAGENT_ENGINE_OWNER" not in os.environ
    end_with_owner()
