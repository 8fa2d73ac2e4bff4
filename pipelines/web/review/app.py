"""The review pages put together: addresses, logging in and out, and what the browser is sent besides."""

import getpass
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from memagent.config import Config
from pipelines.web.access import Access, PageGuard, login_link
from pipelines.web.address import Address
from pipelines.web.review import answer_pages
from pipelines.web.review import pages as run_pages
from pipelines.web.review.pages import ERRORS, Form, access_of, posted, render
from pipelines.web.review.service import ReviewService
from pipelines.web.server import ServerPart

_STATIC = {
    "report.css": ("pipelines.report", "text/css"),
    "review.css": ("pipelines.web.review", "text/css"),
    "review.js": ("pipelines.web.review", "text/javascript"),
    "icon.svg": ("pipelines.web.review", "image/svg+xml"),
}


def review_part(config: Config, reviewers: Sequence[str], address: Address, *, show: bool = False) -> ServerPart:
    """Return the part of a server on which people check answers; it has all paths that no other part has.

    `reviewers` may log in besides the user who starts it; `show` opens the pages in the browser.

    Raises UsageError: a name is wrong.
    """
    service = ReviewService(config)
    names = list(dict.fromkeys([getpass.getuser(), *reviewers]))
    access = Access(service.journal, names, address)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await run_in_threadpool(service.stop)

    def lines() -> list[str]:
        links = {name: login_link(address, name) for name in names}
        if show:
            webbrowser.open(links[access.owner])
        return [
            f"review: {address.public}   store: {config.store}",
            *(f"{name} logs in once with {link}" for name, link in links.items()),
        ]

    return ServerPart([Mount("/", app=app(service, access))], lines, running)


def app(service: ReviewService, access: Access) -> Starlette:
    """Return the web application of a review server."""
    one = "/answers/{corpus}/{reading_id}"
    routes = [
        Route("/", answer_pages.answers),
        Route(one, answer_pages.answer),
        Route(f"{one}/memory", answer_pages.memory),
        Route(f"{one}/page", answer_pages.pdf_page),
        Route(f"{one}/page.png", answer_pages.pdf_picture),
        Route(f"{one}/verdict", answer_pages.give, methods=["POST"]),
        Route("/failed/{id}", answer_pages.failure),
        Route("/undo", answer_pages.undo, methods=["POST"]),
        Route("/runs", run_pages.runs),
        Route("/runs/ask", run_pages.ask, methods=["POST"]),
        Route("/runs/digest", run_pages.digest, methods=["POST"]),
        Route("/export.{kind}", answer_pages.export),
        Route("/login", _log_in),
        Route("/logout", posted(_log_out), methods=["POST"]),
        Route("/static/{name}", _static),
    ]
    made = Starlette(routes=routes, middleware=[Middleware(PageGuard, access=access)], exception_handlers=ERRORS)
    made.state.service, made.state.access = service, access
    return made


def _log_in(request: Request) -> Response:
    """Begin a session by the code of a login link; without one, say how to get a link."""
    code = request.query_params.get("code")
    access = access_of(request)
    # Not for HEAD: programs that only look at a link would use it up.
    secret = access.log_in(code) if code and request.method == "GET" else None
    if secret is None:
        return render(request, "login.html.j2", 403 if code else 200, wrong=bool(code))
    response = RedirectResponse(_own(unquote(request.cookies.get(access.back_cookie, ""))) or "/", 303)
    response.delete_cookie(access.back_cookie)
    access.set_cookie(response, secret)
    return response


def _log_out(request: Request, form: Form) -> Response:
    access_of(request).log_out(request.cookies)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(access_of(request).cookie)
    return response


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "there is no such file")
    package, kind = _STATIC[name]
    data = (files(package) / name).read_bytes()
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=300"})


def _own(back: str) -> str:
    """Return a path of this review server to go back to; empty: it is none."""
    plain = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable() and "\\" not in back
    return back if plain else ""
