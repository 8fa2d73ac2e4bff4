"""A warm engine's socket, identity and end, with an engine of the test's own in place of vLLM."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infra.engines import warm, warm_server
from infra.engines.warm import WarmEngine, running
from infra.engines.warm_server import WarmServer, files_stamp, frame, receive, runtime_folder, warm_spec
from memagent.config import EngineConfig
from memagent.errors import ConfigError, EngineDied, RequestError
from memagent.reading.engine import Completion, EngineRequest, Sampling
from tests.support.pages import ROOT


class Echo:
    """Answers with its prompt; some prompts mean something else."""

    def __init__(self, broken: Exception | None = None) -> None:
        self._broken = broken
        self.cancelled = 0
        self.hold = asyncio.Event()
        self.waiting = 0
        self.stopped = False

    async def start(self) -> None:
        await asyncio.sleep(0)
        if self._broken:
            raise self._broken

    async def stop(self) -> None:
        self.stopped = True

    async def generate(self, ids, sampling, priority=0):
        if ids == [0]:
            self.waiting += 1
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if ids == [1]:
            raise RequestError("too long")
        if ids == [2]:
            raise EngineDied("out of memory")
        if ids == [3]:
            raise KeyError("a bug")
        logprobs = [float("-inf"), -0.1234567890123] if sampling.logprobs else None
        return Completion([*ids, priority, *sampling.stop_ids], "stop", len(ids), 1, logprobs, "v1")


class Served:
    """A server in this test's loop, and engines that are its clients."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **config) -> None:
        monkeypatch.setenv("MEMAGENT_RUNTIME", str(folder))
        self.model = folder / "m"
        self.model.mkdir(parents=True)
        folder.chmod(0o700)
        self.request = request(self.model, **config)
        self.spec = warm_spec(self.request)
        self.stamp = self.spec.stamp
        self.path = folder / f"{self.spec.identity}.sock"

    def start(self, engine: Echo, **keys) -> "asyncio.Task[str]":
        self.engine = engine
        self.server = WarmServer(engine, replace(self.spec, **keys), lambda: self.stamp)
        listening = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        listening.bind(str(self.path))
        listening.listen()
        return asyncio.create_task(self.server.serve(listening))

    async def client(self) -> WarmEngine:
        engine = WarmEngine(self.request)
        await engine.start()
        return engine


def request(model: Path, **config) -> EngineRequest:
    return EngineRequest(str(model), EngineConfig(**config), None, None)


@pytest.fixture
def served(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(warm_server, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(warm_server, "_FAREWELL_SECONDS", 0.2)
    return Served(tmp_path_factory.mktemp("w") / "r", monkeypatch)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


async def test_completions_come_back_as_they_were_for_clients_at_once(served):
    end = served.start(Echo())
    one, two = await served.client(), await served.client()
    await one.start()
    assert [info.clients for info in await asyncio.to_thread(running)] == [2]
    sampling = Sampling(9, stop_ids=(7, 8), logprobs=True)
    done = await asyncio.gather(*(engine.generate([9] * i, sampling, i) for i in range(20) for engine in (one, two)))
    assert [completion.ids for completion in done] == [[9] * i + [i, 7, 8] for i in range(20) for _ in (one, two)]
    assert done[0] == Completion([0, 7, 8], "stop", 0, 1, [float("-inf"), -0.1234567890123], "v1")
    await one.stop()
    await one.stop()
    assert (await two.generate([4], Sampling(1))).ids == [4, 0]
    with pytest.raises(EngineDied):
        await one.generate([4], Sampling(1))
    end.cancel()
    await two.stop()


async def test_errors_keep_their_kind_and_a_dead_engine_ends_its_server(served):
    end = served.start(Echo())
    one, two = await served.client(), await served.client()
    with pytest.raises(RequestError, match="too long"):
        await one.generate([1], Sampling(1))
    with pytest.raises(RequestError, match="KeyError: 'a bug'"):
        await one.generate([3], Sampling(1))
    with pytest.raises(EngineDied, match="out of memory"):
        await two.generate([2], Sampling(1))
    assert await end == "vLLM died" and served.engine.stopped
    await asyncio.gather(one.stop(), two.stop())


async def test_requests_end_with_their_callers(served):
    end = served.start(Echo())
    one, two = await served.client(), await served.client()
    call = asyncio.create_task(one.generate([0], Sampling(1)))
    other = asyncio.create_task(two.generate([0], Sampling(1)))
    await until(lambda: served.engine.waiting == 2)
    call.cancel()
    await until(lambda: served.engine.cancelled == 1)
    await two.stop()
    with pytest.raises(EngineDied):
        await other
    await until(lambda: served.engine.cancelled == 2)
    assert (await one.generate([4], Sampling(1))).ids == [4, 0]
    end.cancel()
    await one.stop()


@pytest.mark.parametrize(
    ("error", "kind"), [(ConfigError("no weights"), ConfigError), (OSError("no weights"), EngineDied)]
)
async def test_who_waits_for_an_engine_that_cannot_start_is_told_why(served, error, kind, monkeypatch):
    monkeypatch.setattr(warm_server, "_FAREWELL_SECONDS", 3.0)  # else a busy machine connects after its end
    end = served.start(Echo(error))
    with pytest.raises(kind, match="no weights"):
        await served.client()
    assert "no weights" in await end


async def test_it_ends_when_nobody_uses_it(served):
    end = served.start(Echo(), starter=os.getpid(), keep_alive=0)
    await asyncio.sleep(0.1)
    assert not end.done(), "the command that prepares it is not there yet"
    client = WarmEngine(request(served.model, keep_alive=0.2))
    await client.start()
    await asyncio.sleep(0.3)
    assert not end.done(), "a command is connected"
    await client.stop()
    began = asyncio.get_running_loop().time()
    assert await end == "it was idle for engine.keep_alive seconds" and asyncio.get_running_loop().time() - began > 0.15


async def test_it_ends_with_the_command_that_never_came(served):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert await served.start(Echo(), starter=gone.pid, keep_alive=0) == "it was idle for engine.keep_alive seconds"


@pytest.mark.parametrize(("short", "changed", "why"), [(True, False, "memory runs"), (False, True, "files have")])
async def test_it_ends_when_memory_runs_short_or_its_files_change_but_not_under_a_command(
    served, monkeypatch, short, changed, why
):
    end = served.start(Echo())
    client = await served.client()
    if short:
        memory = psutil.virtual_memory()._replace(available=6 * 2**30, total=64 * 2**30)  # Ray kills below 3.2
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    served.stamp += "x" if changed else ""
    await asyncio.sleep(0.1)
    assert not end.done()
    await client.stop()
    assert why in await end


async def test_what_is_no_message_ends_the_connection_and_nothing_else(served):
    end = served.start(Echo())
    client = await served.client()
    for junk in (b"\xff\xff\xff\xff", struct.pack(">I", 2) + b"[]", struct.pack(">I", 9) + b"{"):
        reader, writer = await asyncio.open_unix_connection(served.path)
        writer.write(junk)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    assert (await client.generate([4], Sampling(1))).ids == [4, 0]
    end.cancel()
    await client.stop()


async def test_other_users_are_refused_at_both_ends(served, monkeypatch):
    end = served.start(Echo())
    monkeypatch.setattr(warm_server, "peer", lambda connection: (1, os.getuid() + 1))
    reader, writer = await asyncio.open_unix_connection(served.path)
    assert await reader.read() == b""
    writer.close()
    monkeypatch.setattr(warm, "peer", lambda connection: (1, os.getuid() + 1))
    with pytest.raises(ConfigError, match="listens there"):
        await served.client()
    assert running() == []
    end.cancel()


async def test_messages_are_framed():
    reader = asyncio.StreamReader(limit=64)
    messages = [{"ids": list(range(1000))}, {}, {"text": "ä\n\0"}]
    reader.feed_data(b"".join(map(frame, messages)) + frame({"cut": 1})[:-1])
    reader.feed_eof()
    assert [await receive(reader) for _ in range(4)] == [*messages, None]


def test_the_folder_is_this_users_alone(tmp_path_factory, monkeypatch):
    tmp_path = tmp_path_factory.mktemp("u")  # tests side by side have longer folders, and a socket's path is short
    monkeypatch.delenv("MEMAGENT_RUNTIME")
    session = tmp_path / "s"
    session.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    folder = runtime_folder()
    assert folder == session / "memagent" and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        runtime_folder()
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    for path, why in ((tmp_path / "link", "link or a file"), (tmp_path / ("long" * 30), "too long")):
        monkeypatch.setenv("MEMAGENT_RUNTIME", str(path))
        with pytest.raises(ConfigError, match=why):
            runtime_folder()
    monkeypatch.setenv("MEMAGENT_RUNTIME", "")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setattr(warm_server.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(ConfigError, match="belongs to user"):  # $XDG_RUNTIME_DIR is another user's, too
        runtime_folder()
    assert (tmp_path / f"memagent-{os.getuid()}").is_dir()


def test_an_identity_holds_what_changes_an_engine_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    first = warm_spec(request(tmp_path), "m@1")
    same = warm_spec(request(tmp_path, keep_alive=7, base_url="http://other", api_key_env="KEY"), "m@1")
    assert same.identity == first.identity and json.loads(json.dumps(same.config)) == first.config
    others = {
        warm_spec(request(tmp_path), "m@2").identity,
        warm_spec(request(tmp_path, dtype="float32"), "m@1").identity,
        warm_spec(request(tmp_path, max_num_seqs=7), "m@1").identity,
    }
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "1")
        others.add(warm_spec(request(tmp_path), "m@1").identity)
    os.utime(tmp_path / "config.json", (1, 1))
    others.add(warm_spec(request(tmp_path), "m@1").identity)
    assert len(others | {first.identity}) == 6 and files_stamp(str(tmp_path)) != first.stamp


def test_every_key_of_an_engine_is_part_of_the_identity_or_left_out_on_purpose():
    left_out = {"model", "keep_alive", "options", "base_url", "api_key_env", "served_model", "protocol"}
    left_out |= {"timeout_seconds", "scripted_delay", "scripted_process"}
    kept = warm_spec(request(Path("org/model"))).config.keys()
    assert kept == EngineConfig.model_fields.keys() - left_out


def test_clients_do_not_import_vllm():
    code = "import sys, infra.engines.warm; print([m for m in ('vllm', 'torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_process_that_fails_at_once_says_why(served, monkeypatch):
    unusable = {**os.environ, "PYTHONPATH": str(ROOT), "MEMAGENT_RUNTIME": "/" + "long" * 30}
    monkeypatch.setattr(warm, "environment_of_children", lambda: unusable)
    with pytest.raises(EngineDied, match="too long for a socket"):
        await served.client()
