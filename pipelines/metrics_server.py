"""Serve the metrics of a store to Prometheus: ``/metrics``, to whoever has the token."""

import hmac
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.store import Store
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.exporter import StoreCollector, exposition
from pipelines.flows.access import auth_string

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHORTEST = 16
"""Characters of a token."""


def token(file: Path | None) -> tuple[str, Path]:
    """Return the token that a scrape must show, and its file.

    Args:
        file: has the token, as a secret that is mounted does. None: one of this user's, which is made if it is missing.

    Raises:
        UsageError: there is no such file, or no token in it.
    """
    if file is None:
        own = platformdirs.user_config_path("memagent") / "metrics" / "token"
        return auth_string(own), own
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {error}") from error
    if len(text) < _SHORTEST:
        raise UsageError(f"--token-file {file}: a token has at least {_SHORTEST} characters")
    return text, file


def app(read: Callable[[], bytes], secret: str) -> Starlette:
    """Return the server's application; `read` gives the metrics."""

    async def metrics(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), secret.encode()):
            return PlainTextResponse("give the token", 401, headers={"WWW-Authenticate": "Bearer"})
        return Response(await run_in_threadpool(read), media_type=_TYPE)

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/metrics", metrics), Route("/health", health)])


def serve(config: Config, host: str, port: int, token_file: Path | None, days: float) -> None:
    """Serve until interrupted or terminated.

    Raises:
        UsageError: the address cannot be used, or there is no token.
    """
    secret, file = token(token_file)
    collector = StoreCollector(Store(config.store), days)
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    with listening:
        try:
            listening.bind((host, port))
            listening.listen(128)  # whoever comes before the server is there waits
        except OSError as error:
            raise UsageError(
                f"port {port} of {host} cannot be used ({error.strerror}): choose another --port"
            ) from error
        print(f"metrics: http://{host}:{listening.getsockname()[1]}/metrics   store: {config.store}   token: {file}")
        print("(stop with Ctrl-C)", flush=True)
        settings = uvicorn.Config(
            app(lambda: exposition(collector), secret), log_level="warning", server_header=False, lifespan="off"
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listening])
    print("stopped", flush=True)
