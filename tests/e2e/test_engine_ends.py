"""A real engine whose owner is killed leaves nothing behind."""

import subprocess
import sys

import psutil
import pytest

from memagent.nano import bundled
from tests.e2e.conftest import ROOT
from tests.endurance import outliving

OWNER = """
import asyncio, sys
from infra.engines.vllm import VllmEngine
from memagent.config import EngineConfig

async def main():
    await VllmEngine(sys.argv[1], EngineConfig()).start()
    print("it is up", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
def test_the_engine_ends_with_the_process_that_started_it(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        owner = subprocess.Popen(
            [sys.executable, str(script), str(bundled())], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
        )
    assert owner.stdout is not None
    with owner.stdout:
        assert any(line == "it is up\n" for line in owner.stdout), said.read_text()[-3000:]
    below = psutil.Process(owner.pid).children(recursive=True)
    cores = [process for process in below if "EngineCore" in " ".join(process.cmdline())]
    assert cores, "the engine has a process of its own"
    owner.kill()
    assert not outliving(below)
    owner.wait()
