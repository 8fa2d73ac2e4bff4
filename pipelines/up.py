"""`memagent up`: a Prefect server, the nightly digest, bulk answering and learning on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from infra.lifeline import end
from memagent.config import Config, as_settings
from memagent.errors import MemagentError, UsageError
from memagent.rl.recipe import load_recipe

_START_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Plan:
    """What is served, and when."""

    cron: str
    """Of the nightly digest."""
    scores_cron: str
    """Of the scores."""
    timezone: str
    """Of all schedules."""
    recipe: str
    """Of trainings."""
    retrain_cron: str | None
    """Of trainings; None: only when enough is new."""
    enough: int
    """New training rows that start a training."""
    gate: dict[str, Any] = field(default_factory=dict)
    """Keys of the gate (`memagent.rl.gate.GateSpec`)."""
    at_once: int = 1
    """Flow runs at the same time."""


def up(config: Config, plan: Plan, port: int) -> None:
    """Serve until interrupted or terminated; the server and every flow run end with it, however it ends.

    Raises:
        UsageError: the schedule is not one, or the port is taken.
        MemagentError: the server does not come up, or serving ends by itself.
    """
    _quiet()
    schedules = {"--cron": plan.cron, "--scores-cron": plan.scores_cron, "--retrain-cron": plan.retrain_cron}
    for option, cron in schedules.items():
        if cron:
            _check_schedule(option, cron, plan.timezone)
    trained = load_recipe(plan.recipe).model
    other = "" if trained == config.engine.model else f" It trains {trained}, not {config.engine.model}, which answers."
    for sign in (signal.SIGINT, signal.SIGTERM):  # one that a shell's background job was born to ignore, too
        signal.signal(sign, signal.default_int_handler)
    with _server(port) as url:
        environment = {**os.environ, "PREFECT_API_URL": f"{url}/api"}
        spec = json.dumps({"store": config.store, "sets": _sets(config), **asdict(plan)})
        runner = subprocess.Popen(_ending_with_us("pipelines.up", spec), env=environment, start_new_session=True)
        try:
            print(f"Prefect: {url}   nightly digest: {plan.cron} {plan.timezone}   store: {config.store}")
            print(f"training: {plan.recipe}, when {plan.enough:,} harvested rows are new.{other}")
            print("ask in bulk: prefect deployment run answer-archive/bulk -p corpus=NAME -p 'questions=[\"...\"]'")
            print(f"(with PREFECT_API_URL={url}/api; stop with Ctrl-C)", flush=True)
            raise MemagentError(f"serving ended by itself with status {runner.wait()}")
        except KeyboardInterrupt:
            print("stopped", flush=True)
        finally:
            _end(runner)


def _check_schedule(option: str, cron: str, timezone: str) -> None:
    from prefect.schedules import Cron

    try:
        Cron(cron, timezone=timezone)
    except ValueError as error:
        raise UsageError(f"{option} {cron!r} --timezone {timezone!r}: {error}") from error


def _quiet() -> None:
    for name, value in {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}.items():
        os.environ.setdefault(name, value)


def _sets(config: Config) -> list[str]:
    """Write the configuration out as ``--set`` strings, so that a run does not depend on a file of the moment."""
    return list(as_settings(config.model_dump(exclude_unset=True, exclude={"store"})))


@contextmanager
def _server(port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    if _healthy(url):
        raise UsageError(f"something answers at {url} already: choose another --port")
    start = ("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(_ending_with_us(*start), start_new_session=True, **quiet)
    try:
        began = time.monotonic()
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() - began > _START_SECONDS:
                raise MemagentError(f"the Prefect server does not come up at {url}; try: {' '.join(start)}")
            time.sleep(0.3)
        yield url
    finally:
        _end(process)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2) as answer:  # noqa: S310  (our own address)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, gently first."""
    if process.poll() is None:
        root = psutil.Process(process.pid)
        end([root, *root.children(recursive=True)])
        process.wait()


def _ending_with_us(*module: str) -> list[str]:
    """Return the command of a module that ends when this process has, by whatever signal."""
    return [sys.executable, "-P", "-m", "infra.lifeline", str(os.getpid()), *module]


if __name__ == "__main__":
    from pipelines.flows.deployments import serve_all

    serve_all(**json.loads(sys.argv[1]))
