"""A process that holds one vLLM engine for the commands of one user, one after another or at once.

    python -m infra.engines.warm_server NAME < SPEC     listens, and goes on in the background

It ends by itself when no command has used it for `engine.keep_alive` seconds, and without a command also when the
machine's memory runs short or when files of the model or of the engines' code have changed.
"""

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

import psutil

from infra.engines.warm_protocol import WarmSpec, error_fields, files_stamp, frame, peer, receive, runtime_folder
from memagent.errors import EngineDied, MemagentError
from memagent.reading.engine import Engine, Sampling
from memagent.records import Json

_LOOK_SECONDS = 1.0
_LEAST_MEMORY = 2**30
"""With fewer bytes available on the machine, an engine that no command uses ends."""
_FAREWELL_SECONDS = 1.0
"""Time in which commands that wait for a failed start are told of it."""


class WarmServer:
    """Serves an engine at a Unix domain socket. It belongs to one event loop."""

    def __init__(self, engine: Engine, spec: WarmSpec, stamp: Callable[[], str]) -> None:
        """Make the server of an engine that is not started.

        Args:
            engine: what answers.
            spec: what the process was started with.
            stamp: tells the present state of the files; another than the one in `spec` ends the engine.
        """
        self._engine = engine
        self._spec = spec
        self._stamp = stamp
        self._keep_alive = spec.keep_alive
        self._clients = 0
        self._was_used = False
        self._idle_since = time.monotonic()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._died = asyncio.Event()

    async def serve(self, listening: socket.socket) -> str:
        """Load the engine and answer; return why it ends."""
        server = await asyncio.start_unix_server(self._connected, sock=listening)
        try:
            why = await self._run()
        finally:
            server.close()
        await self._engine.stop()
        return why

    async def _run(self) -> str:
        try:
            await self._engine.start()
        except Exception as error:
            known = isinstance(error, MemagentError)
            self._started.set_exception(error if known else EngineDied(f"{type(error).__name__}: {error}"))
            self._started.exception()  # marks it as seen: there may be no command that waits
            await asyncio.sleep(_FAREWELL_SECONDS)
            return f"it cannot start: {error}"
        self._started.set_result(None)
        self._idle_since = time.monotonic()
        while not (why := self.why_end()):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._died.wait()
        return why

    def why_end(self) -> str:
        """Return why the engine should end now; empty: it should stay."""
        if self._died.is_set():
            return "vLLM died"
        if self._clients or (not self._was_used and psutil.pid_exists(self._spec.starter)):
            return ""  # a command that prepares an engine may take long until it uses it
        if time.monotonic() - self._idle_since >= self._keep_alive:
            return "it was idle for engine.keep_alive seconds"
        if psutil.virtual_memory().available < _LEAST_MEMORY:
            return "the machine's memory runs short"
        return "its files have changed" if self._stamp() != self._spec.stamp else ""

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends; what it has asked for ends with it."""
        tasks: dict[int, asyncio.Task[None]] = {}
        client = False
        try:
            if peer(writer.get_extra_info("socket"))[1] != os.getuid():
                return
            while (message := await receive(reader)) is not None:
                if message["op"] == "generate":
                    tasks[message["id"]] = asyncio.create_task(self._answer(message, writer, tasks))
                elif message["op"] == "cancel":
                    if message["id"] in tasks:
                        tasks[message["id"]].cancel()
                elif message["op"] == "hello" and not client:
                    client = self._was_used = True
                    self._clients += 1
                    self._keep_alive = message["keep_alive"]
                    writer.write(frame(await self._greeting()))
                else:
                    writer.write(frame({"clients": self._clients, "idle": self._idle_seconds()}))
        finally:
            self._clients -= client
            self._idle_since = time.monotonic() if client else self._idle_since
            for task in tuple(tasks.values()):
                task.cancel()
            writer.close()

    def _idle_seconds(self) -> float:
        return 0.0 if self._clients else time.monotonic() - self._idle_since

    async def _greeting(self) -> Json:
        try:
            await asyncio.shield(self._started)
        except Exception as error:
            return error_fields(error)
        return {}

    async def _answer(self, message: Json, writer: asyncio.StreamWriter, tasks: dict[int, asyncio.Task[None]]) -> None:
        sampling = Sampling(**{**message["sampling"], "stop_ids": tuple(message["sampling"]["stop_ids"])})
        reply: Json = {"id": message["id"]}
        try:
            reply["completion"] = asdict(await self._engine.generate(message["ids"], sampling, message["priority"]))
        except Exception as error:
            reply |= error_fields(error)
            if isinstance(error, EngineDied):
                self._died.set()
        finally:
            del tasks[message["id"]]
        with suppress(ConnectionError):
            writer.write(frame(reply))
            await writer.drain()


def main() -> None:
    """Take the place of the engine that standard input describes, listen, and go on in the background.

    Ends at once where another process has this place. What it says goes to a log beside the socket.
    """
    spec = WarmSpec(**json.load(sys.stdin))
    folder = runtime_folder()
    log = os.open(folder / f"{spec.identity}.log", os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.ftruncate(log, 0)
    path = folder / f"{spec.identity}.sock"
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen()
    if os.fork():  # the command waits for this process only until it can connect
        os._exit(0)
    for standard in (1, 2):
        os.dup2(log, standard)
    print(asyncio.run(_serve(spec, listening)), file=sys.stderr, flush=True)
    path.unlink(missing_ok=True)


async def _serve(spec: WarmSpec, listening: socket.socket) -> str:
    from infra.engines.vllm import VllmEngine
    from memagent.config import EngineConfig

    engine = VllmEngine(spec.model, EngineConfig(model=spec.model, **spec.config))
    return await WarmServer(engine, spec, lambda: files_stamp(spec.model)).serve(listening)


if __name__ == "__main__":
    main()
