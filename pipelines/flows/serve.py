"""Prefect's server for the user of this machine: `prefect server start` that also checks the Host header.

It rejects requests under other host names, so that a web page whose name resolves to this machine (DNS rebinding)
reaches nothing. Imports no Prefect at module level, which reads its settings from the environment at import.

    python -m pipelines.flows.serve PORT [HOST NAME ...]

It listens on HOST, by default 127.0.0.1, and answers to the names. Token, origins and the page's URL come from
``PREFECT_`` variables: see `variables`.
"""

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import TracebackType
from typing import Self
from zoneinfo import available_timezones

from infra.system.processes import end_process, ends_with_us
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.records import Json
from pipelines.web.address import Address

_START_SECONDS = 300  # a busy machine is slow; a server that fails ends at once
_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Schedules and settings of the deployments. A schedule or time zone that is None is as the server has it."""

    cron: str | None
    """Schedule of the nightly digest."""
    scores_cron: str | None
    """Schedule of the nightly evaluation."""
    optimize_cron: str | None
    """Schedule of compaction."""
    timezone: str | None
    """Time zone of all schedules."""
    recipe: str
    """Training recipe: a name or a path."""
    retrain_cron: str | None
    """Schedule of trainings, besides when enough rows are new."""
    enough: int
    """New training rows that start a training."""
    check: Json = field(default_factory=dict)
    """Keys of `memagent.rl.promotion.PromotionSpec`."""
    at_once: int = 1
    """Flow runs at the same time."""

    def check_schedules(self) -> None:
        """Refuse a time zone or a schedule that cannot be, before a server is started.

        Raises UsageError: naming the nearest time zone, or the option whose schedule it is.
        """
        from prefect.schedules import Cron

        zones = available_timezones()
        if self.timezone is not None and self.timezone not in zones:
            near = get_close_matches(self.timezone, zones, n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else "as in Europe/Berlin"
            raise UsageError(f"--timezone {self.timezone!r}: there is no such time zone; {advice}")
        for option in ("cron", "scores_cron", "optimize_cron", "retrain_cron"):
            given = getattr(self, option)
            if given is None:
                continue
            try:
                Cron(given, timezone=self.timezone or "UTC")
            except ValueError as error:
                raise UsageError(
                    f"--{option.replace('_', '-')} {given!r}: write five fields, minute hour day month weekday, as in "
                    f"'0 2 * * *' for two at night ({error})"
                ) from error


def variables(address: Address, auth: str) -> dict[str, str]:
    """Return the environment variables of a server; `auth` is its ``user:token``."""
    return {
        "PREFECT_SERVER_API_HOST": address.host,
        "PREFECT_SERVER_API_PORT": str(address.port),
        "PREFECT_API_URL": f"{address.local}/api",
        # URL of the API for the page in the browser; by default it would have the default port.
        "PREFECT_SERVER_UI_API_URL": f"{address.public}/api",
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(address.origins),
    }


class Server:
    """A Prefect server in a subprocess, as a context manager; it also ends with this process."""

    def __init__(self, address: Address, environment: Mapping[str, str]) -> None:
        """`environment` is the server's whole environment, `variables` included."""
        self.url = address.local
        self._address = address
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: deque[str] = deque(maxlen=_LAST_LINES)
        """The last lines of its standard error."""

    def __enter__(self) -> Self:
        """Start it without waiting (see `wait`). Raises UsageError: the port is in use."""
        from pipelines.web.server import listen

        address = self._address
        listen(address).close()
        self._process = subprocess.Popen(
            ends_with_us("pipelines.flows.serve", str(address.port), address.host, *address.names),
            env=self._environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        lines = (line.decode(errors="replace") for line in self._process.stderr or ())
        threading.Thread(target=self._output.extend, args=(lines,), name="stderr", daemon=True).start()
        return self

    def wait(self) -> None:
        """Wait until it answers.

        Raises MemagentError: it ends (the message has its last output), or does not answer within five minutes.
        """
        until = time.monotonic() + _START_SECONDS
        while not self._healthy():
            self.check()
            if time.monotonic() > until:
                raise MemagentError(f"the Prefect server does not answer at {self.url} within {_START_SECONDS} s")
            time.sleep(0.3)
        self.check()  # what answers must be our server, since it gets the token

    def check(self) -> None:
        """Raise MemagentError if it has ended; the message has its last output."""
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            said = "".join(self._output).strip()
            raise MemagentError(
                f"the Prefect server at {self.url} ended with status {status}. Start it again: runs that were under "
                f"way go on. The last that it printed: {said or 'nothing'}"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it and its child processes; SIGTERM first."""
        assert self._process is not None
        end_process(self._process)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=2) as answer:  # noqa: S310  (our own address)
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def main(port: int, host: str, names: Sequence[str]) -> None:
    """Serve until terminated; requests under other names are refused."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    settings = get_current_settings().server.api
    if settings.auth_string is None:
        raise ConfigError("this server needs PREFECT_SERVER_API_AUTH_STRING: use `memagent up`")
    # Around the app, not inside: the server's own services call the app under another host name.
    app = TrustedHostMiddleware(create_app(final=True), allowed_hosts=names, www_redirect=False)
    uvicorn.run(
        app,
        host=host,
        port=port,
        timeout_keep_alive=settings.keepalive_timeout,
        ws_ping_interval=settings.websocket_ping_interval,
        ws_ping_timeout=settings.websocket_ping_timeout,
        log_level="warning",
    )


if __name__ == "__main__":
    serving = Address(int(sys.argv[1]))
    main(serving.port, *((sys.argv[2], sys.argv[3:]) if sys.argv[2:] else (serving.host, serving.names)))
