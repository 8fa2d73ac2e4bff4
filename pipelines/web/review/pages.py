"""What all pages share: templates, the person who looks, forms, and errors that say what to do."""

import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memagent.errors import MemagentError
from pipelines.formatting import duration, number, percent, plain
from pipelines.web.access import Access, Session, same
from pipelines.web.review.service import ReviewService

Form = Mapping[str, str]
_MOST_FIELDS = 30


def service_of(request: Request) -> ReviewService:
    """Return the review server."""
    return cast(ReviewService, request.app.state.service)


def access_of(request: Request) -> Access:
    """Return who may do what."""
    return cast(Access, request.app.state.access)


def session_of(request: Request) -> Session:
    """Return the session; the gate has let nobody in without one."""
    return cast(Session, request.state.session)


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page; its texts are escaped, and a missing value is an error."""
    session: Session | None = request.state.session
    shared = {
        "session": session,
        "owner": session is not None and session.reviewer == access_of(request).owner,
        "busy": service_of(request).refresher.busy,
        "trouble": service_of(request).journal.trouble,
        "path": request.url.path,
    }
    return HTMLResponse(_environment().get_template(template).render(**shared, **values), status)


def posted(
    handle: Callable[[Request, Form], Response], *, owner: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a form: checks its CSRF token, and handles it in a thread.

    Args:
        handle: gets the request and the form's fields.
        owner: only the person who started the review server may send it.
    """

    async def endpoint(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
        session = session_of(request)
        if not same(fields.get("csrf", ""), session.csrf):
            raise HTTPException(403, "this form is of another session: open the page again")
        if owner and session.reviewer != access_of(request).owner:
            raise HTTPException(403, f"only {access_of(request).owner} starts runs on these review pages")
        return await run_in_threadpool(handle, request, fields)

    return endpoint


async def failed(request: Request, error: Exception) -> Response:
    """Return the page of an error."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    text = error.detail if isinstance(error, HTTPException) else str(error)
    if getattr(request.state, "session", None) is None:
        request.state.session = None
    return render(request, "error.html.j2", status, message=text)


ERRORS: Mapping[Any, Any] = {HTTPException: failed, MemagentError: failed}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipelines.web.review"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": plain,
        "number": number,
        "percent": percent,
        "duration": duration,
        "when": _when,
        "exact": _exact,
        "confidence": _confidence,
    }
    return environment


def _when(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def _confidence(value: float) -> str:
    """Return a probability in percent; rounded down, so that only certainty is 100%."""
    thousandths = math.floor(1000 * value + 1e-6)
    return f"{thousandths / 10:g}%"


def _exact(value: datetime) -> str:
    """Return a time as forms carry it."""
    return value.isoformat()
