"""Who sees the desk: people with a token of their own, in a browser, from the desk's own pages.

Tokens are in files that only this user can read, one a person. A session is a random secret in a cookie, kept by its
hash. What changes something needs the session's CSRF token and comes from the desk's own origin. Requests under other
host names are refused, so that a page whose name resolves to this machine (DNS rebinding) reaches nothing.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import platformdirs
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memagent.errors import UsageError
from pipelines.desk.journal import Journal
from pipelines.flows.access import auth_string
from pipelines.flows.address import Address

SESSION = timedelta(hours=12)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_OPEN = ("/login", "/static/")
_MOST_BYTES = 2**16
"""Of a form."""
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
class Session:
    """A person who is logged in."""

    reviewer: str
    csrf: str


def token_file(reviewer: str) -> Path:
    """Return the file of a person's token.

    Raises:
        UsageError: the name is none that can be a file's.
    """
    if not _NAME.fullmatch(reviewer):
        raise UsageError(f"reviewer {reviewer!r}: use letters, digits, '.', '_', '-' and '@' (at most 64), as in anna")
    return platformdirs.user_config_path("memagent") / "desk" / reviewer


class Access:
    """Tokens, sessions, and the addresses under which the desk is reached."""

    def __init__(self, journal: Journal, reviewers: Iterable[str], address: Address) -> None:
        """Make the tokens that are missing.

        Args:
            journal: keeps the sessions.
            reviewers: who may log in; the first one may also start runs.
            address: of the desk.

        Raises:
            UsageError: a name is wrong, or a token cannot be kept.
        """
        names = list(dict.fromkeys(reviewers))
        self.owner = names[0]
        self._journal = journal
        self._tokens = {name: _token(auth_string(token_file(name))) for name in names}
        self.origins, self.address = address.origins, address.public
        self.hosts = [origin.partition("://")[2] for origin in self.origins]
        self.cookie = f"memagent-desk-{address.port}"

    def log_in(self, token: str) -> tuple[str, str] | None:
        """Return the person whose token it is, and the secret of a new session; None: it is nobody's."""
        given = _token(token.strip())
        found = [name for name, known in self._tokens.items() if hmac.compare_digest(known.encode(), given.encode())]
        if not found:
            return None
        secret = secrets.token_urlsafe(32)
        self._journal.open_session(_hash(secret), found[0], secrets.token_urlsafe(32), datetime.now(UTC) + SESSION)
        return found[0], secret

    def set_cookie(self, response: Response, secret: str) -> None:
        """Give a browser the secret of its session."""
        secure = self.address.startswith("https:")
        age = int(SESSION.total_seconds())
        response.set_cookie(self.cookie, secret, max_age=age, httponly=True, samesite="lax", secure=secure)

    def session(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the session of a request; None: nobody is logged in. A person who lost access has none."""
        secret = cookies.get(self.cookie)
        found = self._journal.session(_hash(secret)) if secret else None
        return Session(*found) if found and found[0] in self._tokens else None

    def log_out(self, cookies: Mapping[str, str]) -> None:
        """End the session of a request."""
        if secret := cookies.get(self.cookie):
            self._journal.close_session(_hash(secret))


class Gate:
    """ASGI middleware: lets in what `Access` allows, and gives responses the headers that protect their pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if headers.get("host", "").lower() not in self._access.hosts:
            return PlainTextResponse("this server does not have that name", 400)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("method not allowed", 405)
        if method == "POST":
            if headers.get("origin", "").lower() not in self._access.origins:
                return PlainTextResponse("this request comes from another page", 403)
            if not headers.get("content-length", "").isdecimal() or int(headers["content-length"]) > _MOST_BYTES:
                return PlainTextResponse("this form is too large", 413)
        session = self._access.session(HTTPConnection(scope).cookies)
        if session is None and not path.startswith(_OPEN):
            query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
            back = quote(path + query, safe="") if method == "GET" else ""
            return RedirectResponse(f"/login?back={back}" if back else "/login", 303)
        scope.setdefault("state", {})["session"] = session
        return None


def same(given: str, known: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _token(auth: str) -> str:
    """Return the token of ``user:token``, or of a token alone."""
    return auth.rpartition(":")[2]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
