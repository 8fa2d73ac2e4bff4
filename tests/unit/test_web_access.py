"""The token of a server that is one user's own."""

import asyncio
import os
import socket
import stat
from typing import ClassVar

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from memagent.config import load_config
from memagent.errors import UsageError
from pipelines.web import server as web_server
from pipelines.web.address import Address, auth_string, token_file
from pipelines.web.api.app import _body_of, _TokenGuard
from pipelines.web.api.protocol import ApiError
from pipelines.web.metrics import metrics_part
from pipelines.web.review.listing import whole
from pipelines.web.server import web_app


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_once_and_nobody_else_reads_it(tmp_path):
    file = tmp_path / "home" / "memagent" / "auth"
    before = os.umask(0)
    try:
        made = auth_string(file)
    finally:
        os.umask(before)
    user, _, token = made.partition(":")
    assert user == "memagent" and len(token) >= 40
    assert mode(file) == 0o600 and mode(file.parent) == 0o700
    assert auth_string(file) == made == file.read_text().strip()
    assert list(file.parent.iterdir()) == [file]
    assert auth_string(tmp_path / "other" / "auth") != made


@pytest.mark.parametrize("readable", [0o644, 0o620, 0o604])
def test_a_token_that_others_could_have_read_or_written_is_made_anew(tmp_path, readable):
    file = tmp_path / "auth"
    made = auth_string(file)
    file.chmod(readable)
    assert auth_string(file) != made and mode(file) == 0o600


@pytest.mark.parametrize("held", ["", "memagent:short", "x" * 50, "memagent:" + "ü" * 43])
def test_what_is_no_token_is_made_anew(tmp_path, held):
    file = tmp_path / "auth"
    file.write_text(held, encoding="utf-8")
    file.chmod(0o600)
    assert len(auth_string(file)) > 50


def test_a_link_to_another_file_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("memagent:" + "a" * 43)
    target.chmod(0o600)
    file = tmp_path / "own" / "auth"
    file.parent.mkdir()
    file.symlink_to(target)
    assert auth_string(file) != target.read_text() and not file.is_symlink()
    assert target.read_text() == "memagent:" + "a" * 43


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="token cannot be kept in"):
        auth_string(tmp_path / "file" / "auth")


def test_a_replaced_token_is_void_at_once_and_no_redirect_names_a_requests_host(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_config_path", lambda app: tmp_path / app)
    metrics = metrics_part(load_config(store=str(tmp_path / "store")), Address(4300))
    api = Mount("/v1", app=_TokenGuard(Starlette()))
    http = TestClient(web_app([*metrics.routes, api], ["*"]), follow_redirects=False)
    for server, path, opened in (("metrics", "/metrics", 200), ("serve", "/v1/models", 404)):
        bearer = {"Authorization": f"Bearer {auth_string(token_file(server))}"}
        assert http.get(path, headers=bearer).status_code == opened
        token_file(server).unlink()
        assert http.get(path, headers=bearer).status_code == 401
    slash = http.get("/metrics/", headers={"Host": "evil.example"})
    assert slash.status_code == 404 and "location" not in slash.headers


@pytest.mark.parametrize(
    "body", [b'{"a": "\\ud800"}', b'{"a": Infinity}', b'{"a": NaN}', b'{"a": 1e400}', b"[1]", b"{"]
)
def test_what_cannot_be_written_again_is_a_bad_request(body):
    class Sent:
        headers: ClassVar = {}

        async def stream(self):
            yield body

    with pytest.raises(ApiError) as refused:
        asyncio.run(_body_of(Sent(), 1_000))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("12", 12),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("9" * 5000, None),
        ("-1", None),
        ("", None),
        (None, None),
    ],
)
def test_a_number_of_a_request_fits_into_the_index(given, number):
    assert whole(given) == number


async def test_a_connection_that_sends_no_request_is_closed_and_a_slow_answer_is_not(monkeypatch):
    monkeypatch.setattr(web_server, "_HEADER_SECONDS", 0.2)

    async def slow(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        for part in (b"o", b"k"):
            await asyncio.sleep(0.5)
            await send({"type": "http.response.body", "body": part, "more_body": part == b"o"})

    listening = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(slow, http=web_server._Impatient, lifespan="off", log_level="warning")
    server = uvicorn.Server(settings)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        begun, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        asked, asking = await asyncio.open_connection(*listening.getsockname())
        asking.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert await asyncio.wait_for(begun.read(), 5) == b"", "closed without a word"
        assert (await asyncio.wait_for(asked.read(), 5)).endswith(b"ok")
    finally:
        server.should_exit = True
        await serving
        for one in (writer, asking):
            one.close()
