"""One server for people and programs: parts under paths of their own, with the same rules for names and headers.

/               review pages
/v1, /mcp       readings as OpenAI's models, and as tools of an assistant
/metrics        counts for Prometheus
/health         whether it is up
"""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from memagent.errors import MemagentError, UsageError
from pipelines.web.address import Address

_GRACE_SECONDS = 2
"""That requests in progress have to end when the server stops."""
_HEADER_SECONDS = 20.0
"""That a connection has to send a request's headers: each one that waits takes a file of the process."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class ServerPart:
    """What a server serves under some paths."""

    routes: Sequence[BaseRoute]
    """Its paths, with its own access rules behind them."""
    lines: Callable[[], Iterable[str]]
    """Say where it is and who may use it, once it runs."""
    running: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    """Starts it in the server's event loop, and stops it after the body."""
    broken: Callable[[], Awaitable[MemagentError]] | None = None
    """Waits until it cannot go on, and returns why; the server then ends. None: it never is."""


class Headers:
    """ASGI middleware: gives responses the headers that protect pages, and has nothing kept unless it says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def web_app(routes: Sequence[BaseRoute], names: Sequence[str]) -> Starlette:
    """Return the application of a server that requests may call by some names, without ports (``*``: any). Of its
    parts' routes the first that fits a path is taken.
    """
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list(names), www_redirect=False)
    made = Starlette(routes=[Route("/health", _health), *routes], middleware=[Middleware(Headers), hosts])
    made.router.redirect_slashes = False  # to any host that a request names
    return made


def serve(
    make: Callable[[Address], Sequence[ServerPart]], address: Address, names: Sequence[str] | None = None
) -> None:
    """Serve until interrupted or terminated, or until a part cannot go on.

    Args:
        make: makes the parts of the address with the port that is open.
        address: where it listens; port 0: any that is free. A proxy may pass others' requests on.
        names: by which requests may call it; None: those of the address.

    Raises:
        UsageError: the port is in use.
        MemagentError: a part cannot start or go on.
    """
    _raise_file_limit()
    listening = listen(address)
    try:
        address = replace(address, port=listening.getsockname()[1])
        parts = make(address)
        settings = uvicorn.Config(
            web_app([route for part in parts for route in part.routes], names or address.names),
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            http=_Impatient,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(parts, _Server(settings), listening, address))
    finally:
        listening.close()
    print("stopped", flush=True)


def listen(address: Address) -> socket.socket:
    """Return a socket on which connections to an address wait. Raises UsageError: its port is in use."""
    # By its protocol asyncio knows that answers are to be sent at once, and not after a pause (Nagle).
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(128)  # who comes before the pages are there waits
    except OSError as error:
        listening.close()
        place = f"port {address.port} of {address.host}"
        raise UsageError(f"{place} cannot be used ({error.strerror}): choose another --port") from error
    return listening


class _Impatient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Closes a connection on which no request begins for too long; uvicorn waits for slow headers forever."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to look."""
        super().connection_made(transport)
        self._look(object())

    def _look(self, before: Any) -> None:
        cycle: Any = self.cycle
        if cycle is before and (cycle is None or cycle.response_complete):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(_HEADER_SECONDS, self._look, cycle)


def _raise_file_limit() -> None:
    """Let this process have as many connections and files open as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems name more than they give
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Server(uvicorn.Server):
    """Ends at a signal without sending it again, so that engines are stopped in good order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take interrupts and terminations while the body runs."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


async def _serve(
    parts: Sequence[ServerPart], server: uvicorn.Server, listening: socket.socket, address: Address
) -> None:
    broken: list[MemagentError] = []
    async with AsyncExitStack() as running:
        for part in parts:
            await running.enter_async_context(part.running())
        if address.warning:
            print(address.warning)
        for line in (line for part in parts for line in part.lines()):
            print(line)
        print("(stop with Ctrl-C)", flush=True)
        async with _ending(parts, server, broken):
            await server.serve(sockets=[listening])
    if broken:
        raise broken[0]


@asynccontextmanager
async def _ending(
    parts: Sequence[ServerPart], server: uvicorn.Server, broken: list[MemagentError]
) -> AsyncIterator[None]:
    """Have the server end when a part breaks during the body; `broken` then has why."""

    async def watch(breaks: Callable[[], Awaitable[MemagentError]]) -> None:
        broken.append(await breaks())
        server.should_exit = True

    watching = [asyncio.create_task(watch(part.broken)) for part in parts if part.broken]
    try:
        yield
    finally:
        for task in watching:
            task.cancel()


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")
