"""Prefect's server for the user of this machine: `prefect server start`, and besides it answers to its own names only.

A web page that has its own name resolve to this machine would count as the server's own origin in a browser (DNS
rebinding); it does not know the token, and is not answered at all.

    python -m pipelines.flows.serve PORT

Token, origins and the page's address come from ``PREFECT_`` variables: see `variables`.
"""

import math
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from infra.processes import end, tree
from memagent.errors import ConfigError, MemagentError, UsageError

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_START_SECONDS = 300  # a machine that is busy starts it slowly; one that fails ends, and is not waited for
_LAST_WORDS = 20


def variables(port: int, auth: str) -> dict[str, str]:
    """Return the environment of a server at a port, whose clients know the ``user:token`` of `auth`."""
    return {
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        # Where the page in the browser finds the API: it would be the default port, or what another server's user set.
        "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in _NAMES),
    }


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ends_with_us(*module: str) -> list[str]:
    """Return the command of a module that ends when this process has, by whatever signal."""
    return [sys.executable, "-P", "-m", "infra.processes", str(os.getpid()), *module]


class Server:
    """A Prefect server as a process of its own: starts with the body of `with`, ends with it or with this process."""

    def __init__(self, port: int, environment: Mapping[str, str]) -> None:
        """Take the port and the server's environment (`variables`, over this process's own)."""
        self.url = f"http://{HOST}:{port}"
        self._port = port
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        """What it has last written to its standard error."""

    def __enter__(self) -> Self:
        """Start it, and do not wait (`wait`).

        Raises:
            UsageError: something answers at the port already.
        """
        if self._healthy():
            raise UsageError(f"something answers at {self.url} already: choose another --port")
        self._process = subprocess.Popen(
            ends_with_us("pipelines.flows.serve", str(self._port)),
            env=self._environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        lines = (line.decode(errors="replace") for line in self._process.stderr or ())
        threading.Thread(target=self._words.extend, args=(lines,), name="last words", daemon=True).start()
        return self

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            MemagentError: it ends, or does not answer within five minutes; with what it said last.
        """
        until = time.monotonic() + _START_SECONDS
        while not self._healthy():
            self._check(until)
            time.sleep(0.3)
        self._check(math.inf)  # what answers there must be ours: it is told the token

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it and all that it has started, gently first."""
        assert self._process is not None
        end_process(self._process)

    def _check(self, until: float) -> None:
        assert self._process is not None
        if self._process.poll() is None and time.monotonic() < until:
            return
        said = "".join(self._words).strip()
        raise MemagentError(f"the Prefect server does not come up at {self.url}: {said or 'it says nothing'}")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=2) as answer:  # noqa: S310  (our own address)
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it has started, gently first."""
    if process.poll() is None:
        end(tree(process.pid))
        process.wait()


def main(port: int) -> None:
    """Serve until terminated."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    settings = get_current_settings().server.api
    if settings.auth_string is None:
        raise ConfigError("this server is not started without PREFECT_SERVER_API_AUTH_STRING: use `memagent up`")
    # Around the app, not in it: the server's own services call the app under a name of their own.
    app = TrustedHostMiddleware(create_app(final=True), allowed_hosts=_NAMES, www_redirect=False)
    uvicorn.run(
        app,
        host=HOST,
        port=port,
        timeout_keep_alive=settings.keepalive_timeout,
        ws_ping_interval=settings.websocket_ping_interval,
        ws_ping_timeout=settings.websocket_ping_timeout,
        log_level="warning",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
