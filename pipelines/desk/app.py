"""The desk's pages put together: addresses, logging in and out, and what the browser is sent besides."""

from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipelines.desk import answer_pages, export, run_pages
from pipelines.desk.access import Access, Gate
from pipelines.desk.desk import Desk
from pipelines.desk.pages import ERRORS, Form, access_of, posted, render

_STATIC = {
    "report.css": ("pipelines.report", "text/css"),
    "desk.css": ("pipelines.desk", "text/css"),
    "desk.js": ("pipelines.desk", "text/javascript"),
    "icon.svg": ("pipelines.desk", "image/svg+xml"),
}


def app(desk: Desk, access: Access) -> Starlette:
    """Return the web application of a desk."""
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
        Route("/export.{kind}", export.export),
        Route("/login", _login_page),
        Route("/login", _log_in, methods=["POST"]),
        Route("/logout", posted(_log_out), methods=["POST"]),
        Route("/static/{name}", _static),
    ]
    made = Starlette(routes=routes, middleware=[Middleware(Gate, access=access)], exception_handlers=ERRORS)
    made.state.desk, made.state.access = desk, access
    return made


def _login_page(request: Request) -> Response:
    """Ask for a token."""
    return render(request, "login.html.j2", back=_own(request.query_params.get("back", "")), wrong=False)


async def _log_in(request: Request) -> Response:
    """Begin a session."""
    async with request.form(max_files=0, max_fields=5) as form:
        token, back = str(form.get("token", "")), _own(str(form.get("back", "")))
    access = access_of(request)
    found = await run_in_threadpool(access.log_in, token)
    if found is None:
        return render(request, "login.html.j2", 403, back=back, wrong=True)
    response = RedirectResponse(back or "/", 303)
    access.set_cookie(response, found[1])
    return response


def _log_out(request: Request, form: Form) -> Response:
    """End the session."""
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
    """Return a path of this desk to go back to; empty: it is none."""
    plain = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable() and "\\" not in back
    return back if plain else ""
