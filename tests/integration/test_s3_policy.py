"""`infra/deploy/s3-policy.json` allows what the store and its tables ask of an S3 server, and no more."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.store.claims import beat, claimed
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import now
from tests.support.pages import ROOT

POLICY = json.loads((ROOT / "infra" / "deploy" / "s3-policy.json").read_text())
UNSEEN = {"s3:AbortMultipartUpload", "s3:DeleteObjectVersion"}
"""Of uploads that fail, and of a bucket with versioning: neither is here."""
_HOP = {"connection", "transfer-encoding", "keep-alive"}


def action(method: str, target: str) -> str:
    """Return the action of S3 that a request needs."""
    parts = urlsplit(target)
    query, key = parse_qs(parts.query, keep_blank_values=True), parts.path.strip("/").partition("/")[2]
    if not key:
        if method == "POST" and "delete" in query:
            return "s3:DeleteObject"
        if "versions" in query:
            return "s3:ListBucketVersions"
        lists = method == "HEAD" or (method == "GET" and ("list-type" in query or "prefix" in query))
        return "s3:ListBucket" if lists else f"{method} of a bucket, {sorted(query)}"
    if method == "DELETE":
        return "s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject"
    if method in ("GET", "HEAD") and not {"acl", "tagging", "versionId"} & set(query):
        return "s3:GetObject"
    if method in ("PUT", "POST") and set(query) <= {"uploads", "uploadId", "partNumber", "x-id"}:
        return "s3:PutObject"
    return f"{method} of an object, {sorted(query)}"


@pytest.fixture
def asked(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, set[str]]]:
    """A server between the clients and S3; gives the actions that they need, with the keys or prefixes."""
    import os

    behind = urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc
    seen: dict[str, set[str]] = {}

    class Recording(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            name = query.get("prefix", [""])[0] or urlsplit(self.path).path.strip("/").partition("/")[2]
            seen.setdefault(action(self.command, self.path), set()).add(name)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            # A client may end a request before it has all of the answer.
            with closing(http.client.HTTPConnection(behind)) as upstream, suppress(OSError):
                self.pass_on(upstream, body)

        def pass_on(self, upstream: http.client.HTTPConnection, body: bytes) -> None:
            # With the Host that was signed.
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for header, value in answer.getheaders():
                if header.lower() not in _HOP and (header.lower() != "content-length" or self.command == "HEAD"):
                    self.send_header(header, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_policy_has_what_is_asked_for_and_no_more(s3_bucket, asked, tmp_path):
    store = Store(f"{s3_bucket}/memagent")
    corpus = Corpus(store, "c")
    store.check_reachable()
    store.check()
    # Files: also one that is sent in parts.
    large = tmp_path / "weights"
    large.write_bytes(bytes(60 * 2**20))
    store.put_file(large, "policies", "p", "weights")
    assert store.size(store.path("policies", "p", "weights")) == 60 * 2**20
    store.get_file(tmp_path / "back", "policies", "p", "weights")
    store.update_bytes(lambda before: (before or b"") + b"x", "claims", "a.json")
    store.update_bytes(lambda before: (before or b"") + b"x", "claims", "a.json")
    assert store.read_bytes("claims", "a.json") == b"xx" and store.exists("claims", "a.json")
    assert not store.exists("claims", "b.json") and store.folders() == ["claims", "policies"]
    assert store.list("policies", suffix="") and not store.list("nothing")
    beat(store, "r")
    with claimed(corpus, "r", ["w"], wait=False, waiting=print):
        pass
    # Tables: commits, merges, deletions.
    runs = Table(store, "runs")
    row = {"corpus": "c", "run_id": "a", "kind": "ask", "status": "running", "started_at": now()}
    runs.append([row])
    runs.upsert([row | {"status": "completed"}])
    assert runs.read("c")["status"].to_pylist() == ["completed"]
    runs.delete("c", run_id=["a"])
    part = store.write_part(runs.read("c"), "turns", "c", "part.parquet")
    assert store.read_part("turns", "c", "part.parquet").num_rows == 0
    store.delete(part)
    store.erase_versions()

    own = [statement for statement in POLICY["Statement"] if statement["Sid"].startswith("Store")]
    allowed = {each for statement in own for each in statement["Action"]}
    assert set(asked) <= allowed, "what the store asks for is allowed"
    assert allowed - UNSEEN == set(asked), "nothing is allowed that it does not ask for"
    # Everything is beneath the store's prefix, as the policy's resources and its condition are.
    for names in asked.values():
        assert all(name == "memagent" or name.startswith("memagent/") for name in names), names
    sources = [statement for statement in POLICY["Statement"] if statement["Sid"].startswith("Source")]
    assert {each for statement in sources for each in statement["Action"]} == {"s3:GetObject", "s3:ListBucket"}
