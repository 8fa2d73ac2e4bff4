"""What all pages share: templates, the person who looks, forms, and errors that say what to do."""

import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from infra.store.claims import is_alive
from infra.store.corpora import check_known, corpora, default_questions
from infra.store.delta import Table
from infra.store.documents import quarantined
from infra.store.location import Corpus
from infra.store.schemas import FailureRow, RunRow
from memagent.errors import MemagentError, UsageError
from memagent.records import Json
from pipelines.views.formatting import duration, failures, number, percent, plain
from pipelines.web.access import Access, Session, same
from pipelines.web.review.service import ReviewService

Form = Mapping[str, str]
_MOST_FIELDS = 30
_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""SQLite's errors of which the disk is the reason; any other is a fault of ours."""


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
    """Return the endpoint of a form: checks its CSRF token, and handles its fields in a thread. With `owner`, only the
    person who started the review server may send it.
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
    status, text = 400, str(error)
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    elif isinstance(error, sqlite3.OperationalError):
        if error.sqlite_errorcode & 0xFF not in _DISK:  # the low byte; what is above it tells more
            raise error
        folder = service_of(request).journal.path.parent
        status, text = 507, f"nothing was saved ({error}): see to the disk of {folder}, and send it again"
    if getattr(request.state, "session", None) is None:
        request.state.session = None
    return render(request, "error.html.j2", status, message=text)


ERRORS: Mapping[Any, Any] = {HTTPException: failed, MemagentError: failed, sqlite3.OperationalError: failed}


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
        "when": lambda value: f"{value:%Y-%m-%d %H:%M} UTC" if value else "",
        "exact": datetime.isoformat,  # as forms carry it
    }
    return environment


_RUNS = 50
_FAILURES = 200
_QUESTIONS = 20
_CHARS = 2_000


def runs(request: Request) -> Response:
    """Show the newest runs of all corpora, or of one, and what is in its quarantine."""
    service = service_of(request)
    names, corpus = corpora(service.store), request.query_params.get("corpus", "")
    if corpus and corpus not in names:
        check_known(Corpus(service.store, corpus))
    columns = ["run_id", "corpus", "kind", "status", "started_at", "ended_at", "withheld", "summary"]
    newest = Table(service.store, "runs").read(corpus or None, columns).sort_by([("started_at", "descending")])
    failed: list[FailureRow] = quarantined(Corpus(service.store, corpus)).to_pylist() if corpus else []
    return render(
        request,
        "runs.html.j2",
        runs=[_run(service, row) for row in newest.slice(0, _RUNS).to_pylist()],
        jobs=service.jobs.started,
        corpora=names,
        defaults={name: len(default_questions(Corpus(service.store, name))) for name in names},
        corpus=corpus,
        failures=failed[:_FAILURES],
        more=max(0, len(failed) - _FAILURES),
    )


def _run(service: ReviewService, row: RunRow) -> Json:
    """Return a run as the page shows it; one without a heartbeat that has not ended is stopped."""
    stopped = row["status"] == "running" and not is_alive(service.store, row["run_id"])
    summary = json.loads(row["summary"] or "{}")
    return {**row, "status": "stopped" if stopped else row["status"], "summary": summary, "failures": failures(summary)}


def _ask(request: Request, form: Form) -> Response:
    """Start to ask questions of a corpus, one a line."""
    service = service_of(request)
    corpus = check_known(Corpus(service.store, form.get("corpus", "")))
    questions = [line.strip() for line in form.get("questions", "").splitlines() if line.strip()]
    if not questions:
        raise UsageError("write a question")
    if len(questions) > _QUESTIONS or max(map(len, questions)) > _CHARS:
        raise UsageError(f"at most {_QUESTIONS} questions of {_CHARS:,} characters; for more: memagent ask --questions")
    service.jobs.ask(corpus.name, questions, archive=form.get("archive") == "1")
    return RedirectResponse("/runs", 303)


def _digest(request: Request, form: Form) -> Response:
    """Start what the nightly digest does, now."""
    service = service_of(request)
    corpus = check_known(Corpus(service.store, form.get("corpus", "")))
    if not default_questions(corpus):
        raise UsageError(
            f"corpus {corpus.name!r} has no default questions: memagent digest {corpus.name} --questions FILE"
        )
    service.jobs.digest(corpus.name)
    return RedirectResponse("/runs", 303)


ask, digest = posted(_ask, owner=True), posted(_digest, owner=True)
