"""`memagent up`: a Prefect server, the nightly digest, bulk answering and learning on this machine.

The server is private to this user: it requires a token from a file that only this user can read, and accepts requests
of its own origin only. Settings that callers may not change (`pipelines.flows.parameters`) reach the flows through
their environment.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from infra.store.location import Store
from infra.system.processes import end_process, ends_with_us
from memagent.config import Config
from memagent.errors import MemagentError, UsageError
from memagent.records import stable_hash
from memagent.rl.config import load_recipe
from pipelines.flows.parameters import check
from pipelines.flows.serve import Server, ServingPlan, variables
from pipelines.web.address import Address, auth_string

_SHORTEST = 16
"""Characters of a token by which other machines are let in."""
_LOOK_SECONDS = 1.0
"""Time between two looks at whether the server and what serves the flows are alive."""


def up(config: Config, plan: ServingPlan, address: Address, review_port: int | None = None) -> None:
    """Serve until interrupted or terminated; the server, the review server and all flow runs end with this process.

    The review server is on the same host; without `review_port` it is not served.

    Raises:
        UsageError: a schedule or the address is invalid, the port is in use, or the token is too short for a server
            that others reach.
        MemagentError: the server does not start, or ends by itself.
    """
    address.check()
    review_at = Address(review_port, address.host) if review_port else None
    if review_at is not None:
        review_at.check()
    for name, value in {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}.items():
        os.environ.setdefault(name, value)
    plan.check_schedules()
    check(engine=load_recipe(plan.recipe).engine)
    auth, shown = _auth()
    if not (address.is_private and address.url is None) and len(auth.rpartition(":")[2]) < _SHORTEST:
        raise UsageError(
            f"PREFECT_SERVER_API_AUTH_STRING: for other machines a token has {_SHORTEST} characters at least; unset it,"
            " and one is made"
        )
    for sign in (signal.SIGINT, signal.SIGTERM):  # even if a shell started this in the background with SIGINT ignored
        signal.signal(sign, signal.default_int_handler)
    with (
        _database(config.store) as database,
        Server(address, {**os.environ, **database, **variables(address, auth)}) as server,
    ):
        server.wait()
        # The whole configuration, so that later edits of a file do not change a run; not on the command line, which all
        # users of the machine can read.
        settings = {"MEMAGENT_CONFIG": config.model_dump_json(exclude_unset=True)}
        prefect = {**settings, "PREFECT_API_URL": f"{server.url}/api", "PREFECT_API_AUTH_STRING": auth}
        started = {
            "the flows": _start(prefect, "pipelines.cli.up", config.store, json.dumps(asdict(plan))),
            "the watch over the store": _start(prefect, "pipelines.cli.up", config.store),
        }
        if review_at is not None:  # the pages print their address and a login link, or why they cannot be served
            listens = ("--port", str(review_at.port), "--host", review_at.host)
            started["the review pages"] = _start(settings, "memagent", "review", *listens)
        try:
            _tell(config, plan, address, log_in=shown)
            if review_at is None:
                print("check answers, in another terminal: memagent review")
            print("(stop with Ctrl-C)", flush=True)
            _wait(server, started)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        finally:
            for process in started.values():
                end_process(process)


@contextmanager
def _database(store: str) -> Iterator[dict[str, str]]:
    """Give the variable of the server's database: one for each store, since deployments have the same names for all.

    A database that the user has named is taken as it is.

    Raises UsageError: another `memagent up` has that of the store.
    """
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    if settings.server.database.model_fields_set & {"connection_url", "driver", "host", "name"}:
        yield {}
        return
    file = Path(settings.home) / "memagent" / f"{stable_hash(Store(store).url)[:16]}.db"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(file.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"memagent up already serves {store}: end it first") from error
    with lock:
        yield {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}"}


def _tell(config: Config, plan: ServingPlan, address: Address, *, log_in: str) -> None:
    """Print what is served, and how it is used; `log_in`: the command that shows the token."""
    trained, answering = load_recipe(plan.recipe).model, config.engine.model
    other = "" if trained == answering else f" It trains {trained}, not {answering}, which answers."
    if address.warning:
        print(address.warning)
    print(f"Prefect: {address.public}   store: {config.store}")
    print(f"training: {plan.recipe}, when {plan.enough:,} new harvested rows are there.{other}")
    print(f"log in to the page with the output of: {log_in}")
    print("ask in bulk, in another terminal:")
    print(f'  export PREFECT_API_URL={address.local}/api PREFECT_API_AUTH_STRING="$({log_in})"')
    print("  prefect deployment run answer-archive/bulk -p corpus=NAME -p 'questions=[\"...\"]'")


def _wait(server: Server, started: Mapping[str, "subprocess.Popen[bytes]"]) -> NoReturn:
    """Wait until one of the processes ends. Raises MemagentError: which did."""
    while True:
        server.check()
        for name, process in started.items():
            if (status := process.poll()) is not None:
                raise MemagentError(f"what serves {name} ended with status {status}: start memagent up again")
        time.sleep(_LOOK_SECONDS)


def _start(environment: Mapping[str, str], *command: str) -> "subprocess.Popen[bytes]":
    """Start a module of ours, which ends with this process; flow runs inherit its environment."""
    return subprocess.Popen(ends_with_us(*command), env={**os.environ, **environment}, start_new_session=True)


def _auth() -> tuple[str, str]:
    """Return the server's ``user:token``, and the command that shows it.

    The user's environment variable takes precedence. The token itself is never printed.
    """
    if auth := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        return auth, 'echo "$PREFECT_SERVER_API_AUTH_STRING"'
    from prefect.settings import get_current_settings

    file = Path(get_current_settings().home) / "memagent" / "auth"
    return auth_string(file), f"cat {shlex.quote(str(file))}"


if __name__ == "__main__":
    from pipelines.flows.deployments import serve_all, serve_watch

    if len(sys.argv) > 2:
        serve_all(sys.argv[1], ServingPlan(**json.loads(sys.argv[2])))
    else:
        serve_watch(sys.argv[1])
