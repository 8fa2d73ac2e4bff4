"""Who may use the endpoint: programs of this machine that have its token, one request at a time within limits."""

import json
from collections.abc import Iterable
from pathlib import Path

import platformdirs
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memagent.records import Json
from pipelines.desk.access import same
from pipelines.flows.access import auth_string
from pipelines.flows.address import HOST
from pipelines.serving.errors import ApiError

MOST_BYTES = 64 * 2**20
"""Of a request's body, unless the server is told otherwise: some fifteen million tokens of English."""


def token_file() -> Path:
    """Return the file that holds the endpoint's token."""
    return platformdirs.user_config_path("memagent") / "serve" / "token"


def endpoint_token() -> str:
    """Return the token, which is made when there is none.

    Raises:
        UsageError: it cannot be kept.
    """
    return auth_string(token_file()).rpartition(":")[2]


class Gate:
    """ASGI middleware: lets in requests under the server's own names that bear the token."""

    def __init__(self, app: ASGIApp, token: str, port: int, hosts: Iterable[str] = ()) -> None:
        """Guard an application.

        Args:
            app: what is guarded.
            token: what clients send as their API key.
            port: of this machine, at which it is reached.
            hosts: other names with ports under which a proxy serves it.
        """
        self._app, self._token = app, token
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        await (refusal.response() if refusal else self._app)(scope, receive, with_headers)

    def _refusal(self, headers: Headers) -> ApiError | None:
        if headers.get("host", "").lower() not in self._hosts:  # a page whose name resolves to this machine
            return ApiError(400, "this server does not have that name", "unknown_host")
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same(given.strip().rpartition(":")[2], self._token):
            message = f"no token, or a wrong one: the API key is in {token_file()}"
            return ApiError(401, message, "invalid_api_key")
        return None


async def body_of(request: Request, most: int) -> Json:
    """Return the JSON object of a request's body, of which no more than `most` bytes are taken.

    Raises:
        ApiError: it is larger, or no JSON object.
    """
    too_large = ApiError(413, f"the request is larger than {most:,} bytes: see memagent serve --max-bytes", "too_large")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    try:
        body = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the request is no JSON object", "invalid_json")
    return body
