"""Who may use a server of this package: by which name, with which token, from which pages.

Secrets are in files that only this user can read. Programs send theirs as a bearer token. A person opens a link that is
signed with theirs and works once; what changes something then needs the session's CSRF token and comes from the
server's own pages. Requests under other host names are refused (`pipelines.web.server`), so that a page whose name
resolves to this machine (DNS rebinding) reaches nothing.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pipelines.web.address import Address, auth_string, token_file

if TYPE_CHECKING:
    from pipelines.web.review.journal import VerdictJournal

SESSION = timedelta(hours=12)
LINK = timedelta(hours=12)
"""For which a login link that nobody has opened is valid."""
_OPEN = ("/login", "/static/")
_MOST_BYTES = 2**16
"""Of a form."""
_BACK_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Session:
    """A person who is logged in."""

    reviewer: str
    csrf: str


def bears(headers: Headers, token: str) -> bool:
    """Whether a request has a token, with or without its user, as its bearer token."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and same(_secret(given.strip()), _secret(token))


def login_link(address: Address, reviewer: str) -> str:
    """Return a link that logs a person in once, within `LINK`.

    Raises UsageError: the name is wrong, or the person's token cannot be kept.
    """
    ends = f"{time.time() + LINK.total_seconds():.0f}"
    signed = f"{reviewer}:{ends}:{secrets.token_urlsafe(16)}"
    code = f"{signed}:{_signature(_own_token(reviewer), signed)}"
    return f"{address.public}/login?code={quote(code, safe='')}"


class Access:
    """Reviewers, their sessions, and the addresses under which the review pages are reached."""

    def __init__(self, sessions: "VerdictJournal", reviewers: Iterable[str], address: Address) -> None:
        """Make the tokens that are missing. The first reviewer may also start runs.

        Raises UsageError: a name is wrong, or a token cannot be kept.
        """
        names = list(dict.fromkeys(reviewers))
        self.owner = names[0]
        self._sessions = sessions
        self._names = frozenset(names)
        for name in names:
            _own_token(name)
        self.origins, self.address = address.origins, address.public
        self.cookie = f"memagent-review-{address.port}"
        self.back_cookie = f"{self.cookie}-back"

    def log_in(self, code: str) -> str | None:
        """Return the secret of a new session for the code of a login link; None: it is wrong, used or too old."""
        signed, _, signature = code.rpartition(":")
        reviewer, _, rest = signed.partition(":")
        ends = rest.partition(":")[0]
        if reviewer not in self._names or not same(signature, _signature(_own_token(reviewer), signed)):
            return None
        if float(ends) < time.time():
            return None
        if not self._sessions.use_link(_hash(signed), datetime.fromtimestamp(float(ends), UTC)):
            return None
        secret = f"{reviewer}:{secrets.token_urlsafe(32)}"
        self._sessions.open_session(_key(secret), reviewer, secrets.token_urlsafe(32), datetime.now(UTC) + SESSION)
        return secret

    def set_cookie(self, response: Response, secret: str) -> None:
        """Give a browser the secret of its session."""
        secure = self.address.startswith("https:")
        age = int(SESSION.total_seconds())
        response.set_cookie(self.cookie, secret, max_age=age, httponly=True, samesite="lax", secure=secure)

    def session(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the session of a request; None: nobody is logged in. It ends with the person's access or token."""
        secret = cookies.get(self.cookie, "")
        if secret.partition(":")[0] not in self._names:
            return None
        found = self._sessions.session(_key(secret))
        return Session(*found) if found else None

    def log_out(self, cookies: Mapping[str, str]) -> None:
        """End the session of a request."""
        secret = cookies.get(self.cookie, "")
        if secret.partition(":")[0] in self._names:
            self._sessions.close_session(_key(secret))


class PageGuard:
    """ASGI middleware: lets in people with a session, and forms from the server's own pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("method not allowed", 405)
        if method == "POST":
            if headers.get("origin", "").lower() not in self._access.origins:
                return PlainTextResponse("this request comes from another page", 403)
            if not headers.get("content-length", "").isdecimal() or int(headers["content-length"]) > _MOST_BYTES:
                return PlainTextResponse("this form is too large", 413)
        session = self._access.session(HTTPConnection(scope).cookies)
        if session is None and not path.startswith(_OPEN):
            return self._to_login(scope)
        scope.setdefault("state", {})["session"] = session
        return None

    def _to_login(self, scope: Scope) -> Response:
        """Return the way to the login page; a cookie has the page that was asked for."""
        response = RedirectResponse("/login", 303)
        if scope["method"] == "GET":
            query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
            wanted = quote(scope["path"] + query, safe="")
            response.set_cookie(self._access.back_cookie, wanted, max_age=_BACK_SECONDS, httponly=True, samesite="lax")
        return response


def same(given: str, known: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _own_token(reviewer: str) -> str:
    """Return a person's token, read anew each time: who deletes its file ends the links and sessions made with it."""
    return auth_string(token_file("review", reviewer))


def _key(secret: str) -> str:
    """Return by what a session is kept: a hash of its secret, which names the person, and of the person's token."""
    return _hash(f"{secret}:{_own_token(secret.partition(':')[0])}")


def _secret(auth: str) -> str:
    """Return the token of ``user:token``, or of a token alone."""
    return auth.rpartition(":")[2]


def _signature(token: str, signed: str) -> str:
    return hmac.new(token.encode(), signed.encode("utf-8", "replace"), "sha256").hexdigest()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
