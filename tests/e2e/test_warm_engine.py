"""A real engine that stays: commands share it, and it ends when it should."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.engines.supervised import SupervisedEngine
from infra.engines.vllm import computes_in_core
from infra.engines.warm import WarmEngine, WarmEngineInfo, running, stop_all
from infra.system.processes import tree
from memagent.config import EngineConfig
from memagent.errors import ConfigError, EngineDied
from memagent.nano import bundled
from memagent.reading.engine import EngineRequest, Sampling
from tests.e2e.conftest import ROOT
from tests.support.waiting import wait_for

IDS = list(range(50, 250))
SAMPLING = Sampling(12)
COMMAND = """
import asyncio, sys
from infra.engines.warm import WarmEngine, prepare
from memagent.config import EngineConfig
from memagent.reading.engine import EngineRequest, Sampling

async def main():
    request = EngineRequest(sys.argv[1], EngineConfig(), None, None)
    prepare(request)
    engine = WarmEngine(request)
    await engine.start()
    print(list((await engine.generate(list(range(50, 250)), Sampling(12))).ids), flush=True)
    if len(sys.argv) > 2:
        await asyncio.sleep(600)
    await engine.stop()

asyncio.run(main())
"""


class Machine:
    """A model folder, and commands that use it."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "model"
        shutil.copytree(bundled(), self.model)

    def request(self, **config: object) -> EngineRequest:
        return EngineRequest(str(self.model), EngineConfig(**config), None, None)  # type: ignore[arg-type]

    def command(self, *words: str) -> "subprocess.Popen[str]":
        call = [sys.executable, "-c", COMMAND, str(self.model), *words]
        return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def answer(self) -> list[int]:
        said, errors = self.command().communicate()
        assert said, errors[-3000:]
        answer: list[int] = json.loads(said)
        return answer

    def engines(self) -> list[WarmEngineInfo]:
        return [info for info in running() if info.model == str(self.model)]

    def engine(self) -> WarmEngineInfo:
        (info,) = self.engines()
        return info


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield Machine(tmp_path_factory.mktemp("warm"))
    stop_all()


@pytest.fixture(scope="module")
def expected(machine: Machine) -> list[int]:
    """The answer of the first command, whose engine the others use."""
    return machine.answer()


def test_commands_use_the_engine_of_the_first_also_at_once_and_killed(machine, expected):
    first = machine.engine()
    assert first.clients == 0 and first.idle_seconds is not None and first.memory_bytes > 2**28
    killed = machine.command("stay")
    assert killed.stdout is not None
    with killed.stdout, killed.stderr:
        assert json.loads(killed.stdout.readline()) == expected
        assert machine.engine().clients == 1
        both = [machine.command(), machine.command()]
        assert [json.loads(command.communicate()[0]) for command in both] == [expected, expected]
        killed.kill()
        killed.wait()
    assert machine.answer() == expected
    assert (machine.engine().pid, machine.engine().clients) == (first.pid, 0)
    if computes_in_core():
        (core,) = tree(first.pid)[1:]
        assert core.ppid() == first.pid, "forked from the process that has imported vLLM"
    said = subprocess.run([sys.executable, "-m", "memagent", "engine", "list"], capture_output=True, text=True)
    assert f"process {first.pid}" in said.stdout


async def test_a_killed_core_is_replaced_and_answers_are_the_same(machine, expected):
    before = machine.engine().pid
    engine = SupervisedEngine(lambda: WarmEngine(machine.request()), restarts=2)
    await engine.start()
    calls = [asyncio.create_task(engine.generate(IDS, Sampling(400))) for _ in range(8)]
    await asyncio.sleep(0.3)
    core = tree(before)[-1]
    core.kill()
    assert {tuple(call.ids[:12]) for call in await asyncio.gather(*calls)} == {tuple(expected)}
    assert (await engine.generate(IDS, SAMPLING)).ids == expected
    assert engine.deaths == 1 and machine.engine().pid != before
    await engine.stop()


async def test_other_settings_have_an_engine_of_their_own_that_ends_with_its_command(machine, expected):
    own = WarmEngine(machine.request(max_num_seqs=8, keep_alive=0))
    await own.start()
    assert len(machine.engines()) == 2
    assert (await own.generate(IDS, SAMPLING)).ids == expected
    await own.stop()
    await asyncio.to_thread(wait_for, lambda: len(machine.engines()) == 1)
    with pytest.raises(EngineDied):
        await own.generate(IDS, SAMPLING)


async def test_an_engine_in_a_folder_that_others_can_enter_is_not_used(machine, expected):
    folder = Path(os.environ["MEMAGENT_RUNTIME"])
    folder.chmod(0o755)
    try:
        with pytest.raises(ConfigError, match="open to other users"):
            await WarmEngine(machine.request()).start()
    finally:
        folder.chmod(0o700)


async def test_a_model_that_cannot_be_loaded_is_said_with_its_cause(machine):
    with pytest.raises((ConfigError, EngineDied), match="max_model_len"):
        await WarmEngine(machine.request(max_model_len=10_000_000)).start()
    await asyncio.to_thread(wait_for, lambda: len(machine.engines()) == 1)


def test_an_engine_whose_model_changes_ends(machine, expected):
    process = psutil.Process(machine.engine().pid)
    os.utime(machine.model / "config.json")
    assert wait_for(lambda: not process.is_running())


def test_the_command_stops_engines(machine, expected):
    assert machine.answer() == expected
    processes = tree(machine.engine().pid)
    done = subprocess.run([sys.executable, "-m", "memagent", "engine", "stop"], capture_output=True, text=True)
    assert done.stdout.startswith("stopped "), done.stderr
    assert running() == [] and not any(process.is_running() for process in processes)
