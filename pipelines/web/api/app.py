"""Readings for programs: OpenAI's ``/v1/models`` and ``/v1/chat/completions``, and MCP tools at ``/mcp``."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.cluster.session import lazy_ray
from memagent.errors import EngineDied, MemagentError
from memagent.records import Json
from pipelines.views.formatting import doubt
from pipelines.web.access import bears
from pipelines.web.address import Address, auth_string, token_file
from pipelines.web.api.mcp_server import Tools, http_app, mcp_server
from pipelines.web.api.protocol import ApiError, ChatCompletion, ChatRequest, FoundAnswer, api_error
from pipelines.web.api.reader import TEXT_MODEL, Ended, HeldReader, Reads
from pipelines.web.server import ServerPart

T = TypeVar("T")
MOST_BYTES = 64 * 2**20
"""Of a request's body, unless the server is told otherwise: some fifteen million tokens of English."""
READINGS = 32
"""Requests that are read at once; the next one is told to come again."""
_RETRY_SECONDS = 5
_PROGRESS_SECONDS = 1.0
"""A stream says how far it is this often, so that nobody in between takes it for dead."""
_STALLED_SECONDS = 30.0
"""Without a byte of a request, after which its place is given to another."""
_CLOSED = 499
"""Status in no log but a proxy's: the client has gone."""


def api_part(
    reader: HeldReader, address: Address, *, at_once: int = READINGS, most_bytes: int = MOST_BYTES
) -> ServerPart:
    """Return the part of a server whose models are readings, and whose tools an assistant calls, for who has the token.

    The token is made when there is none. So many requests are read `at_once`, each with a body of `most_bytes` at most.

    Raises UsageError: the token cannot be kept.
    """
    auth_string(token_file("serve"))
    server, endpoint = mcp_server(Tools(reader.config, reader)), _Endpoint(reader, at_once, most_bytes)
    models = Starlette(
        routes=[
            Route("/models", endpoint.models),
            Route("/models/{model:path}", endpoint.model),
            Route("/chat/completions", endpoint.chat, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
    )
    models.router.redirect_slashes = False

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        # Requests that ask a corpus hold a thread each while they wait for answers.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * at_once + 8))
        print(f"loading {reader.spec.policy.policy_id}", flush=True)
        with lazy_ray(reader.config.ray):  # for all runs, should one have so much to plan that it needs Ray
            try:
                await reader.start()
                async with server.session_manager.run():
                    yield
            finally:
                await reader.stop()

    async def broken() -> MemagentError:
        """Wait until the engine has died as often as it may."""
        await reader.engine_gone.wait()
        return EngineDied("engine processes keep crashing: see above, and run memagent doctor")

    local = address.local
    lines = [
        f"endpoint: {local}/v1   tools: {local}/mcp   store: {reader.config.store}",
        f"its API key is in {token_file('serve')}",
    ]
    routes = [Mount("/v1", app=_TokenGuard(models)), Route("/mcp", _TokenGuard(http_app(server)))]
    return ServerPart(routes, lambda: lines, running, broken)


class _TokenGuard:
    """ASGI middleware: lets in requests that bear the token, read anew each time: one that is replaced is void."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if bears(Headers(scope=scope), auth_string(token_file("serve"))):
            await self._app(scope, receive, send)
            return
        message = "no token, or a wrong one: `memagent serve` prints at its start in which file the API key is"
        await ApiError(401, message, "invalid_api_key").response()(scope, receive, send)


class _Endpoint:
    def __init__(self, reader: HeldReader, at_once: int, most_bytes: int) -> None:
        self._reader, self._at_once, self._most_bytes = reader, at_once, most_bytes
        self._under_way = 0

    async def models(self, request: Request) -> Response:
        """List the models."""
        names = await asyncio.to_thread(self._reader.models)
        return JSONResponse({"object": "list", "data": [_model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["model"]
        if name not in await asyncio.to_thread(self._reader.models):
            raise ApiError(404, f"there is no model {name!r}", "model_not_found", "model")
        return JSONResponse(_model(name))

    async def chat(self, request: Request) -> Response:
        """Read, and answer."""
        if self._under_way >= self._at_once:  # before its body is taken
            message = f"{self._at_once} requests are being read: try again, or see memagent serve --at-once"
            raise ApiError(429, message, "too_many_readings", retry_after=_RETRY_SECONDS)
        self._under_way += 1
        is_streamed = False
        try:
            chat = ChatRequest.model_validate(await _body_of(request, self._most_bytes))
            reading = await self._reader.reading(chat)
            if chat.stream:
                is_streamed = True
                return _Stream(self, self._chunks(chat, reading))
            whole = await _unless_gone(self._whole(chat, reading), request.receive)
            return JSONResponse(whole) if whole is not None else Response(status_code=_CLOSED)
        except ClientDisconnect:
            return Response(status_code=_CLOSED)
        except Exception as error:  # whatever it is, the client gets an error object
            return self.told(error).response()
        finally:
            if not is_streamed:
                self.end()

    def end(self) -> None:
        """Count a request as read."""
        self._under_way -= 1

    def told(self, error: Exception) -> ApiError:
        """Return what the client is told of an error."""
        if isinstance(error, EngineDied):  # it was started again as often as it may be
            self._reader.engine_gone.set()
        return api_error(error)

    async def _lines(self, chat: ChatRequest, reading: Reads) -> AsyncGenerator[tuple[FoundAnswer | None, str]]:
        """Yield the answers of a response with their lines, nothing whenever none has come for a second, and at the end
        a line that counts what `limit` leaves out.
        """
        shown = more = 0
        async with aclosing(_with_pauses(reading.answers())) as answers:
            async for answer in answers:
                if answer is None:
                    yield None, ""
                elif chat.model == TEXT_MODEL or (answer.found and shown < chat.limit):
                    shown += 1
                    yield answer, reading.line(answer)
                else:
                    more += answer.found
        if more:
            yield None, f"... {more:,} more found (limit is {chat.limit:,})"

    def _closing(self, ended: Ended, said: str) -> str:
        return f"\n{ended.says}".rstrip() if said else f"{self._reader.not_found}{doubt('', ended.about.warnings)}"

    async def _whole(self, chat: ChatRequest, reading: Reads) -> dict[str, object]:
        async with aclosing(self._lines(chat, reading)) as lines:
            said = [each async for each in lines]
        ended = reading.ended()
        lines_said = "\n".join(line for _, line in said if line)
        text, stopped = _stopped(lines_said + self._closing(ended, lines_said), chat.stops)
        finish = "stop" if stopped else ended.finish_reason
        about = ended.about.model_copy(update={"answers": [answer for answer, _ in said if answer]})
        return ChatCompletion(chat.model).whole(text, finish, ended.usage, about)

    async def _chunks(self, chat: ChatRequest, reading: Reads) -> AsyncGenerator[dict[str, object]]:
        completion, said, stopped = ChatCompletion(chat.model), "", False
        yield completion.chunk({"role": "assistant", "content": ""})
        async with aclosing(self._lines(chat, reading)) as lines:
            async for answer, line in lines:
                if answer is None and not line:
                    yield completion.chunk({}, about=reading.progress)
                elif line and not stopped:
                    text, stopped = _stopped(line if not said else f"\n{line}", chat.stops)
                    said += text
                    yield completion.chunk({"content": text}, about=answer)
        ended = reading.ended()
        if not stopped and (closing := self._closing(ended, said)):
            yield completion.chunk({"content": closing})
        finish = "stop" if stopped else ended.finish_reason
        yield completion.chunk({}, finish, ended.about)
        if chat.stream_options is not None and chat.stream_options.include_usage:
            yield completion.usage(ended.usage)


class _Stream(Response):
    """Server-sent events. A client that goes cancels what makes them; an error becomes the last one."""

    media_type = "text/event-stream"

    def __init__(self, endpoint: _Endpoint, chunks: AsyncGenerator[dict[str, object]]) -> None:
        super().__init__()
        self._endpoint, self._chunks = endpoint, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _unless_gone(self._send(send), receive)
        finally:
            self._endpoint.end()

    async def _send(self, send: Send) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    await _event(send, json.dumps(chunk))
        except Exception as error:  # the status is sent already
            await _event(send, json.dumps(self._endpoint.told(error).body()))
        await _event(send, "[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body_of(request: Request, most: int) -> Json:
    """Return the JSON object of a request's body, of which no more than `most` bytes are taken.

    Raises ApiError: it is larger, or no JSON object, or stops coming.
    """
    too_large = ApiError(413, f"the request is larger than {most:,} bytes: see memagent serve --max-bytes", "too_large")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(_STALLED_SECONDS) as patience:
            async for part in request.stream():
                patience.reschedule(asyncio.get_running_loop().time() + _STALLED_SECONDS)
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        message = f"nothing of the request has come for {_STALLED_SECONDS:g} seconds: send it again"
        raise ApiError(408, message, "timeout") from error
    try:
        body = json.loads(b"".join(parts))
        # What Python reads and nothing behind it can write: unpaired surrogates, infinities.
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the request is no JSON object", "invalid_json")
    return body


async def _event(send: Send, data: str) -> None:
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})


async def _unless_gone(work: Awaitable[T], receive: Receive) -> T | None:
    """Return what some work comes to; None: the client has gone, and the work was cancelled."""
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, going), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, going):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _with_pauses(answers: AsyncGenerator[FoundAnswer]) -> AsyncGenerator[FoundAnswer | None]:
    """Yield answers as they come, and None whenever none has come for a second."""
    async with aclosing(answers) as source:
        while True:
            waited = asyncio.ensure_future(anext(source, None))
            try:
                while not (await asyncio.wait((waited,), timeout=_PROGRESS_SECONDS))[0]:
                    yield None
                answer = waited.result()
            finally:
                if not waited.done():
                    waited.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await waited
            if answer is None:
                return
            yield answer


def _stopped(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Return a text up to the first of some others, and whether one of them is in it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "memagent"}


def _http_error(request: Request, error: Any) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(error.status_code, message, "no_such_route").response()


def _api_error(request: Request, error: Any) -> Response:
    response: Response = error.response()
    return response
