"""`memagent up`: a Prefect server, the nightly digest and bulk answering on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from memagent.config import Config
from memagent.errors import MemagentError, UsageError

_START_SECONDS = 90
_WATCHED_LENGTHS = (8_000,)
_WATCHED_KINDS = ("niah_single_1", "niah_single_2", "niah_multikey_1")
_WATCHED_N = 20
"""The nightly scores: small, and read once; while policy and reading stay the same, nothing is read again."""


def up(config: Config, cron: str, scores_cron: str, timezone: str, port: int) -> None:
    """Serve until interrupted or terminated; the server and every flow run end with it.

    Raises:
        UsageError: the schedule is not one, or the port is taken.
        MemagentError: the server does not come up, or serving ends by itself.
    """
    _quiet()
    _check_schedule("--cron", cron, timezone)
    _check_schedule("--scores-cron", scores_cron, timezone)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _server(port) as url:
        environment = {**os.environ, "PREFECT_API_URL": f"{url}/api"}
        spec = json.dumps(
            {
                "store": config.store,
                "sets": _sets(config),
                "cron": cron,
                "scores_cron": scores_cron,
                "timezone": timezone,
            }
        )
        command = [sys.executable, "-P", "-m", "pipelines.up", spec]
        runner = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            print(f"Prefect: {url}   nightly digest: {cron} {timezone}   store: {config.store}")
            print("ask in bulk: prefect deployment run answer-archive/bulk -p corpus=NAME -p 'questions=[\"...\"]'")
            print(f"(with PREFECT_API_URL={url}/api; stop with Ctrl-C)", flush=True)
            raise MemagentError(f"serving ended by itself with status {runner.wait()}")
        except KeyboardInterrupt:
            print("stopped", flush=True)
        finally:
            _end(runner)


def _serve(store: str, sets: list[str], cron: str, scores_cron: str, timezone: str) -> None:
    """Serve the deployments to the Prefect server of the environment, until terminated."""
    from prefect import serve
    from prefect.schedules import Cron

    from pipelines.flows import answer_archive, digest_corpus, evaluate_policy

    common = {"store": store, "sets": sets}
    nightly = digest_corpus.to_deployment(
        "nightly",
        schedules=[Cron(cron, timezone=timezone)],
        parameters={"corpus": "*", **common},
        concurrency_limit=1,
    )
    bulk = answer_archive.to_deployment("bulk", parameters=common, concurrency_limit=1)
    scores = evaluate_policy.to_deployment(
        "scores",
        schedules=[Cron(scores_cron, timezone=timezone)],
        parameters={"lengths": list(_WATCHED_LENGTHS), "kinds": list(_WATCHED_KINDS), "n": _WATCHED_N, **common},
        concurrency_limit=1,
    )
    serve(nightly, bulk, scores, print_starting_message=False)


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
    return list(_flat(config.model_dump(exclude_unset=True, exclude={"store"}), ""))


def _flat(values: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            # Strings, numbers, booleans and lists are written alike in JSON and TOML.
            yield f"{prefix}{key}={json.dumps(value, ensure_ascii=False)}"


@contextmanager
def _server(port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    if _healthy(url):
        raise UsageError(f"something answers at {url} already: choose another --port")
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        began = time.monotonic()
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() - began > _START_SECONDS:
                raise MemagentError(f"the Prefect server does not come up at {url}; try: {' '.join(command)}")
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
    tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for one in [process, *tree]:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(sign)
        psutil.wait_procs(tree, timeout=10)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


if __name__ == "__main__":
    _serve(**json.loads(sys.argv[1]))
