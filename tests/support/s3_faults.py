"""An S3 endpoint that fails: a proxy before a real one, which spoils a share of the requests."""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from yarl import URL

from tests.support.ports import first_port

Fault = Literal["500", "503", "reset", "cut", "slow"]
"""Internal error; slow down; a connection that is closed before the answer, or in the middle of it; 5 s of waiting."""
FAULTS: tuple[Fault, ...] = ("500", "503", "reset", "cut", "slow")
_SLOW_SECONDS = 5.0
_ERRORS = {"500": "InternalError", "503": "SlowDown"}
_HOPS = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}


@dataclass
class Faulty:
    """The proxy: `share` of the requests are spoilt, by a fault chosen at random."""

    endpoint: str
    faults: tuple[Fault, ...]
    share: float
    done: Counter[str] = field(default_factory=Counter)
    """Requests by fault; ``ok`` are the others."""
    _random: random.Random = field(default_factory=lambda: random.Random(1))
    _session: ClientSession | None = None

    async def start(self, app: web.Application) -> None:
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=60),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
        )

    async def stop(self, app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        fault = self._random.choice(self.faults) if self._random.random() < self.share else "ok"
        self.done[fault] += 1
        body = await request.read()
        if fault in _ERRORS:
            code = _ERRORS[fault]
            return web.Response(
                status=int(fault),
                body=f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>made up</Message></Error>'.encode(),
                content_type="application/xml",
            )
        if fault == "reset":
            self._close(request)
            return web.Response(status=500)
        if fault == "slow":
            await asyncio.sleep(_SLOW_SECONDS)
        return await self._forward(request, body, cut=fault == "cut")

    async def _forward(self, request: web.Request, body: bytes, *, cut: bool) -> web.StreamResponse:
        assert self._session is not None
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOPS]
        url = URL(self.endpoint + request.raw_path, encoded=True)
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as upstream:
            data = await upstream.read()
            kept = [(k, v) for k, v in upstream.headers.items() if k.lower() not in _HOPS | {"content-length"}]
            if request.method == "HEAD":
                kept.append(("Content-Length", upstream.headers.get("Content-Length", "0")))
                return web.Response(status=upstream.status, headers=kept)
            if cut:  # what was asked for is done, and nobody hears of it
                self._close(request)
                return web.Response(status=500)
            return web.Response(status=upstream.status, headers=kept, body=data)

    @staticmethod
    def _close(request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()


@contextmanager
def faulty_s3(share: float, *faults: Fault) -> Iterator[Faulty]:
    """Put a proxy before the S3 server that ``AWS_ENDPOINT_URL`` names, and let that variable lead to it."""
    before = os.environ["AWS_ENDPOINT_URL"]
    proxy = Faulty(before, faults or FAULTS, share)
    port = first_port(27_000, 2_000)
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> web.AppRunner:
        app = web.Application(client_max_size=2**30)
        app.on_startup.append(proxy.start)
        app.on_cleanup.append(proxy.stop)
        app.router.add_route("*", "/{path:.*}", proxy.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    if not ready.wait(30):
        raise RuntimeError("the proxy does not start")
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    try:
        yield proxy
    finally:
        os.environ["AWS_ENDPOINT_URL"] = before
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
