"""A server of models that says what a test gives it: replies in the shapes of different providers."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A response: its body as JSON, or as it is given if it is text."""

    body: Body | str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def entry(name: str, **more: Any) -> Body:
    """Return a model as a listing has it."""
    return {"id": name, "object": "model", "created": 1, "owned_by": "somebody", **more}


def models(*entries: Body, status: int = 200) -> Said:
    """Return a model listing."""
    return Said({"object": "list", "data": list(entries)}, status)


def chat(content: Any, finish: str | None = "stop", usage: Any = None, **message: Any) -> Said:
    """Return a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return Said(body if usage is None else {**body, "usage": usage})


def refusal(message: str, status: int = 400, **more: Any) -> Said:
    """Return an error as OpenAI states it."""
    return Said({"error": {"message": message, "type": "invalid_request_error", **more}}, status)


@dataclass(slots=True)
class ModelServer:
    """What a running server was asked."""

    url: str
    asked: list[Body] = field(default_factory=list)
    listed: int = 0
    """How often its models were asked for."""


@contextmanager
def model_server(
    replies: Sequence[Said] = (),
    listing: Said | None = None,
    refuses: Callable[[Body], Said | None] = lambda request: None,
) -> Iterator[ModelServer]:
    """Serve `replies` in order, the last one for ever, unless `refuses` has another for a request."""
    given = iter(replies)
    last = [Said("no reply", 500)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.listed += 1
            self._send(listing or models(entry("m")))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(request)
            refused = refuses(request)
            if refused is None:
                last[0] = next(given, last[0])
            self._send(refused or last[0])

        def _send(self, said: Said) -> None:
            data = (said.body if isinstance(said.body, str) else json.dumps(said.body)).encode()
            self.send_response(said.status)
            kind = "text/html" if isinstance(said.body, str) else "application/json"
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **said.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server = ModelServer(f"http://127.0.0.1:{http.server_address[1]}/v1")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
