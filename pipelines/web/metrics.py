"""The metrics of a store for Prometheus: ``/metrics``, to whoever has the token."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from infra.store import Store
from memagent.config import Config
from memagent.errors import MemagentError
from pipelines.web.access import bears
from pipelines.web.address import Address
from pipelines.web.server import never
from pipelines.web.store_metrics import StoreCollector, exposition
from pipelines.web.tokens import auth_string, token_file, token_in

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPart:
    """The part of a server that Prometheus scrapes."""

    def __init__(
        self, read: Callable[[], bytes], address: Address, given: Path | None = None, *, store: str = ""
    ) -> None:
        """Find the token that a scrape must show.

        Args:
            read: gives the metrics.
            address: of the server.
            given: has the token, as a mounted secret does; None: one of this user's, made if it is missing.
            store: what is told of the store.

        Raises:
            UsageError: there is no such file, or no token in it.
        """
        self._file = given or token_file("metrics")
        self._token = token_in(given) if given else auth_string(self._file)
        self._read, self._address, self._store = read, address, store

    @property
    def routes(self) -> list[BaseRoute]:
        """Its path."""
        return [Route("/metrics", self._metrics)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Nothing is started."""
        yield

    def lines(self) -> list[str]:
        """Say where it is."""
        return [f"metrics: {self._address.local}/metrics   store: {self._store}   token: {self._file}"]

    async def broken(self) -> MemagentError:
        """It never is."""
        return await never()

    async def _metrics(self, request: Request) -> Response:
        if not bears(request.headers, self._token):
            return PlainTextResponse("give the token", 401, headers={"WWW-Authenticate": "Bearer"})
        return Response(await run_in_threadpool(self._read), media_type=_TYPE)


def metrics_part(config: Config, address: Address, given: Path | None = None, days: float = 30) -> MetricsPart:
    """Return the metrics of a store, as `MetricsPart` serves them.

    Args:
        config: whose store.
        address: of the server.
        given: file of the token, or None.
        days: runs that began so many days ago count, too.
    """
    collector = StoreCollector(Store(config.store), days)
    return MetricsPart(lambda: exposition(collector), address, given, store=config.store)
