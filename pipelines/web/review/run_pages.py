"""The page of runs: their state, what they cost and what failed; questions and digests are started there."""

import json
from datetime import datetime
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from infra.store import Corpus, Store
from infra.tables.claims import is_alive
from infra.tables.corpora import check_known, corpora, default_questions
from infra.tables.delta import Table
from infra.tables.documents import quarantined
from infra.tables.rows import FailureRow, RunRow
from memagent.errors import UsageError
from memagent.records import Json
from pipelines.formatting import failures
from pipelines.web.review.pages import Form, posted, render, service_of

_RUNS = 50
_FAILURES = 200
_QUESTIONS = 20
_CHARS = 2_000


class ShownRun(TypedDict):
    """A row of the table of runs."""

    run_id: str
    corpus: str
    kind: str
    status: str
    started_at: datetime
    seconds: float | None
    readings: Json
    tokens: int
    engine_seconds: float | None
    failures: dict[str, int]


def runs(request: Request) -> Response:
    """Show the newest runs of all corpora, or of one, and what is in its quarantine."""
    service = service_of(request)
    names, corpus = corpora(service.store), request.query_params.get("corpus", "")
    if corpus and corpus not in names:
        check_known(Corpus(service.store, corpus))
    failed: list[FailureRow] = quarantined(Corpus(service.store, corpus)).to_pylist() if corpus else []
    return render(
        request,
        "runs.html.j2",
        runs=newest_runs(service.store, corpus or None),
        jobs=service.jobs.started,
        corpora=names,
        defaults={name: len(default_questions(Corpus(service.store, name))) for name in names},
        corpus=corpus,
        failures=failed[:_FAILURES],
        more=max(0, len(failed) - _FAILURES),
    )


def newest_runs(store: Store, corpus: str | None) -> list[ShownRun]:
    """Return the newest runs, the newest first; one without a heartbeat that has not ended is stopped."""
    table = Table(store, "runs").read(
        corpus, ["run_id", "corpus", "kind", "status", "started_at", "ended_at", "summary"]
    )
    rows: list[RunRow] = table.sort_by([("started_at", "descending")]).slice(0, _RUNS).to_pylist()
    return [_shown(store, row) for row in rows]


def _shown(store: Store, row: RunRow) -> ShownRun:
    summary = json.loads(row["summary"] or "{}")
    ended = row["status"] != "running"
    return {
        "run_id": row["run_id"],
        "corpus": row["corpus"],
        "kind": row["kind"],
        "status": row["status"] if ended or is_alive(store, row["run_id"]) else "stopped",
        "started_at": row["started_at"],
        "seconds": summary.get("seconds"),
        "readings": summary.get("readings") or {},
        "tokens": (summary.get("prompt_tokens") or 0) + (summary.get("output_tokens") or 0),
        "engine_seconds": summary.get("engine_seconds"),
        "failures": failures(summary),
    }


def _ask(request: Request, form: Form) -> Response:
    """Start to ask questions of a corpus, one a line."""
    service = service_of(request)
    corpus = check_known(Corpus(service.store, form.get("corpus", "")))
    questions = [line.strip() for line in form.get("questions", "").splitlines() if line.strip()]
    if not questions:
        raise UsageError("write a question")
    if len(questions) > _QUESTIONS or max(map(len, questions)) > _CHARS:
        raise UsageError(
            f"at most {_QUESTIONS} questions of {_CHARS:,} characters; for more, memagent ask --questions FILE"
        )
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
