"""`memagent up`: a Prefect server, the nightly digest, bulk answering and learning on this machine.

The server is this user's own. It wants a token that lies in a file which only this user reads, answers pages of its own
origin only, and what callers may not set (`pipelines.flows.access`) goes to the flows by their environment.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from memagent.config import Config
from memagent.errors import MemagentError, UsageError
from memagent.rl.config import load_recipe
from pipelines.flows.access import auth_string, check
from pipelines.flows.serve import Server, end_process, ends_with_us, variables


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
    """Keys of the gate (`memagent.rl.promotion.GateSpec`)."""
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
    recipe = load_recipe(plan.recipe)
    check(engine=recipe.engine)
    trained = recipe.model
    other = "" if trained == config.engine.model else f" It trains {trained}, not {config.engine.model}, which answers."
    auth, shown = _auth()
    for sign in (signal.SIGINT, signal.SIGTERM):  # one that a shell's background job was born to ignore, too
        signal.signal(sign, signal.default_int_handler)
    with Server(port, {**os.environ, **variables(port, auth)}) as server:
        server.wait()
        url = server.url
        spec = json.dumps({"store": config.store, **asdict(plan)})
        runner = subprocess.Popen(
            ends_with_us("pipelines.cli.up", spec), env=_environment(config, url, auth), start_new_session=True
        )
        try:
            print(f"Prefect: {url}   nightly digest: {plan.cron} {plan.timezone}   store: {config.store}")
            print(f"training: {plan.recipe}, when {plan.enough:,} harvested rows are new.{other}")
            print(f"the page asks for what this shows: {shown}")
            print("ask in bulk, in another terminal:")
            print(f'  export PREFECT_API_URL={url}/api PREFECT_API_AUTH_STRING="$({shown})"')
            print("  prefect deployment run answer-archive/bulk -p corpus=NAME -p 'questions=[\"...\"]'")
            print("(stop with Ctrl-C)", flush=True)
            raise MemagentError(f"serving ended by itself with status {runner.wait()}")
        except KeyboardInterrupt:
            print("stopped", flush=True)
        finally:
            end_process(runner)


def _check_schedule(option: str, cron: str, timezone: str) -> None:
    from prefect.schedules import Cron

    try:
        Cron(cron, timezone=timezone)
    except ValueError as error:
        raise UsageError(f"{option} {cron!r} --timezone {timezone!r}: {error}") from error


def _quiet() -> None:
    for name, value in {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}.items():
        os.environ.setdefault(name, value)


def _auth() -> tuple[str, str]:
    """Return the server's ``user:token``, and the command that shows it.

    That of the environment is taken where the user has set one; it is never printed itself.
    """
    if own := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        return own, 'echo "$PREFECT_SERVER_API_AUTH_STRING"'
    from prefect.settings import get_current_settings

    file = Path(get_current_settings().home) / "memagent" / "auth"
    return auth_string(file), f"cat {shlex.quote(str(file))}"


def _environment(config: Config, url: str, auth: str) -> dict[str, str]:
    """Return the runner's environment; its flow runs inherit it.

    It has the whole configuration, so that a run does not depend on a file of the moment, and on no command line, since
    these are shown to all users of the machine.
    """
    environment = {**os.environ, "PREFECT_API_URL": f"{url}/api", "PREFECT_API_AUTH_STRING": auth}
    return {**environment, "MEMAGENT_CONFIG": config.model_dump_json(exclude_unset=True)}


if __name__ == "__main__":
    from pipelines.flows.deployments import serve_all

    serve_all(**json.loads(sys.argv[1]))
