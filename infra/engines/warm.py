"""A vLLM engine in a process that stays after its command, so that the next command needs not load the model again."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import psutil

from infra.engines.vllm import forking_environment, last_error
from infra.engines.warm_server import WarmSpec, frame, peer, raise_error, receive, runtime_folder, warm_spec
from infra.system.processes import end, environment_of_children, tree
from memagent.errors import ConfigError, EngineDied
from memagent.reading.engine import Completion, EngineRequest, Sampling
from memagent.records import Json

_REACH_SECONDS = 60.0
"""Time in which an engine must listen, also where its predecessor has to end first."""
_PAUSE_SECONDS = 0.25
_LOST = 3
"""Engines in a row that end without a word while they load the model, before this counts as an error."""
_INFO_SECONDS = 1.0
_preparing: dict[str, threading.Thread] = {}
"""Threads that start engines, by identity."""


@dataclass(frozen=True, slots=True)
class WarmEngineInfo:
    """A warm engine that runs."""

    model: str
    """Version ID of the policy, or the model's folder or name."""
    pid: int
    memory_bytes: int
    """Main memory of its processes; what they share counts once."""
    clients: int
    """Commands that are connected."""
    idle_seconds: float | None
    """Since the last command; None: it loads the model."""

    def __str__(self) -> str:
        """Describe it in one line."""
        if self.idle_seconds is None:
            use = "loads the model"
        else:
            use = f"{self.clients} connected" if self.clients else f"idle for {self.idle_seconds:.0f} s"
        return f"{self.model}: {use}, {self.memory_bytes / 2**30:.1f} GiB, process {self.pid}"


class WarmEngine:
    """An engine of kind ``vllm`` in a process of this user, which other commands use too."""

    def __init__(self, request: EngineRequest, name: str = "") -> None:
        """Describe the engine; an engine of another policy than `name`, a version ID, is not used."""
        self._request = request
        self._name = name
        self._spec: WarmSpec | None = None
        self._lost = 0
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._next = 0

    async def start(self) -> None:
        """Connect to the running engine, or start one and wait until it has loaded the model. Idempotent.

        Raises:
            ConfigError: the model cannot be loaded as configured, or the engine's folder or socket cannot be used.
            EngineDied: the engine's process ends while it loads the model; the message has its last words.
        """
        if self._writer is not None:
            return
        spec = self._spec = await asyncio.to_thread(warm_spec, self._request, self._name)
        if thread := _preparing.pop(spec.identity, None):
            await asyncio.to_thread(thread.join)
        began = time.monotonic()
        while not await self._connect(spec):
            if time.monotonic() - began > _REACH_SECONDS:
                raise EngineDied(f"the warm engine of {spec.name} cannot be reached: {_last_words(spec)}")
            await asyncio.to_thread(_spawn, spec)
            if not _socket_path(spec).exists():
                await asyncio.sleep(_PAUSE_SECONDS)  # another process has its place, and ends or is about to listen

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.reading.engine.Engine`."""
        if self._writer is None or self._listener is None or self._listener.done():
            raise self._gone()
        self._next += 1
        number = self._next
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        request = {"op": "generate", "id": number, "ids": ids, "sampling": asdict(sampling), "priority": priority}
        try:
            self._writer.write(frame(request))
            await self._writer.drain()
            reply = await answer
        except asyncio.CancelledError:
            with suppress(ConnectionError):
                self._writer.write(frame({"op": "cancel", "id": number}))
            raise
        except ConnectionError as error:
            raise self._gone() from error
        finally:
            self._waiting.pop(number, None)
        raise_error(reply)
        return Completion(**reply["completion"])

    async def stop(self) -> None:
        """Disconnect; the engine stays for `engine.keep_alive` seconds. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        if self._listener is not None:
            await self._listener

    async def _connect(self, spec: WarmSpec) -> bool:
        """Connect, and wait until the model is loaded; return whether an engine could be reached."""
        path = _socket_path(spec)
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise ConfigError(f"cannot connect to the warm engine: {error}") from error
        uid = peer(writer.get_extra_info("socket"))[1]
        if uid != os.getuid():
            writer.close()
            raise ConfigError(f"{path}: user {uid} listens there; remove it")
        self._writer = writer
        try:
            writer.write(frame({"op": "hello", "keep_alive": self._request.config.keep_alive}))
            greeting = await receive(reader)
            if greeting is not None:
                raise_error(greeting)
                self._listener = asyncio.create_task(self._listen(reader))
                return True
        except BaseException:
            await self.stop()
            raise
        await self.stop()
        self._lost += 1  # it was about to end, or died of the model
        if self._lost == _LOST:
            raise self._gone()
        return False

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (reply := await receive(reader)) is not None:
            answer = self._waiting.pop(reply["id"], None)
            if answer is not None and not answer.done():
                answer.set_result(reply)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._waiting.clear()

    def _gone(self) -> EngineDied:
        return EngineDied(f"the warm engine's process ended: {_last_words(self._spec)}")


def prepare(request: EngineRequest, name: str = "") -> None:
    """Begin to start the engine in the background, unless it runs; `WarmEngine.start` waits, and says what fails."""
    spec = warm_spec(request, name)
    thread = _preparing[spec.identity] = threading.Thread(target=_prepare, args=(spec,), name="prepare-engine")
    thread.start()


def running() -> list[WarmEngineInfo]:
    """Return this user's warm engines that run. Raises ConfigError: the folder of warm engines cannot be used."""
    return [info for path in sorted(runtime_folder().glob("*.sock")) if (info := _info(path)) is not None]


def stop_all() -> list[WarmEngineInfo]:
    """End this user's warm engines, also those in use; return them as they were.

    Raises ConfigError: the folder of warm engines cannot be used.
    """
    found = running()
    for info in found:
        end(tree(info.pid))
    return found


def _prepare(spec: WarmSpec) -> None:
    with suppress(ConfigError, EngineDied), socket.socket(socket.AF_UNIX) as connection:
        if connection.connect_ex(str(_socket_path(spec))):
            _spawn(spec)


def _spawn(spec: WarmSpec) -> None:
    """Start an engine's process, and wait until it listens. Where one runs, nothing changes.

    Raises:
        ConfigError: the folder of warm engines cannot be used.
        EngineDied: the process fails at once.
    """
    runtime_folder()
    environment = {**environment_of_children(), **forking_environment(spec.config["tensor_parallel"])}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "infra.engines.warm_server", spec.name],
        input=json.dumps(asdict(spec)),
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        start_new_session=True,  # Ctrl-C in the command's terminal does not reach it
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise EngineDied(f"the warm engine's process fails: {said[-1] if said else done.returncode}")


def _socket_path(spec: WarmSpec) -> Path:
    return runtime_folder() / f"{spec.identity}.sock"


def _last_words(spec: WarmSpec | None) -> str:
    if spec is None:
        return "it was not started"
    log = _socket_path(spec).with_suffix(".log")
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{last_error(log) or (lines[-1][:500] if lines else 'it says nothing')} ({log})"
    return f"no log at {log}"


def _info(path: Path) -> WarmEngineInfo | None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_INFO_SECONDS)
        try:
            connection.connect(str(path))
            pid, uid = peer(connection)
            process = psutil.Process(pid)
            name, processes = process.cmdline()[-1], tree(pid)
        except (OSError, psutil.Error):
            return None
        if uid != os.getuid():
            return None
        said: Json = {}
        with suppress(OSError, ValueError):  # it does not answer while it loads the model
            connection.sendall(frame({"op": "info"}))
            body = connection.makefile("rb")
            said = cast(Json, json.loads(body.read(int.from_bytes(body.read(4), "big"))))
    memory = 0
    for process in processes:
        with suppress(psutil.Error):
            memory += process.memory_full_info().pss
    return WarmEngineInfo(name, pid, memory, clients=said.get("clients", 0), idle_seconds=said.get("idle"))
