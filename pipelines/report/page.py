"""Render the report of a run as one HTML file.

All text of documents, questions and models is JSON in inert script elements, which the page's script turns into text
nodes. The content security policy has the hashes of that script and of the style sheet: nothing else runs, and nothing
is fetched.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from infra.store.claims import used
from infra.store.location import Corpus, Store
from infra.store.rows import FailureRow
from memagent.errors import UsageError
from pipelines.report import overview as header
from pipelines.report.data import (
    ReportedRun,
    ReportRow,
    SpeedPoint,
    load_failures,
    load_progress,
    load_rows,
    load_run,
    load_titles,
)
from pipelines.report.details import gather
from pipelines.report.html import embed, size, write_sheet
from pipelines.report.overview import FileListing
from pipelines.run_names import new_run_id
from pipelines.views.formatting import number, plain
from pipelines.views.memory import Timeline

LIMIT_BYTES = 20 * 2**20
"""Small enough to open quickly and to be sent by mail."""
_ROWS_SHARE = 0.75
"""Share of the room for answers and evidence, which take precedence over memories and documents."""
_FAILURES_MOST = 1_000
_DETAIL_CHARS = 2_000
_FRAME_BYTES = 30_000
"""Size of the page without scripts, styles and data."""
_SCRIPTS = ("dom.js", "diff.js", "table.js", "matrix.js", "document.js", "reading.js", "chart.js", "main.js")


class ShownFailure(TypedDict):
    """A quarantine row, as ``main.js`` reads it; `mine`: of this run, not of an earlier ingest."""

    stage: str
    item: str
    reason: str
    detail: str
    mine: bool
    at: str


class FailureCount(TypedDict):
    """Number of failures by stage and reason."""

    stage: str
    reason: str
    mine: bool
    count: int


class LeftOut(TypedDict):
    """What did not fit the size limit."""

    rows: int
    memories: int
    documents: int
    limit: str


class PageData(TypedDict):
    """The page's data besides `pipelines.report.overview.ListingData`."""

    readings: int
    corpus: str
    progress: list[SpeedPoint]
    failures: list[ShownFailure]
    failureCounts: list[FailureCount]
    leftOut: LeftOut
    review: str
    """Address of the review server that readings link to; empty: none."""


def build(store: Store, run_id: str, limit: int = LIMIT_BYTES, review_url: str = "") -> str:
    """Return the report of a finished run as HTML of about `limit` bytes at most.

    Raises:
        UsageError: the store does not know the run.
    """
    return page(store, run_id, limit, _address(review_url))


def write(store: Store, run_id: str, path: str | Path, limit: int = LIMIT_BYTES, review_url: str = "") -> Path:
    """Write the report of a finished run to `path` atomically; return the path.

    Its readings link to the review server at the address `review_url`, if there is one.

    Raises:
        UsageError: the store does not know the run, or the file cannot be written.
    """
    return write_sheet(Path(path), build(store, run_id, limit, review_url))


def write_to_store(store: Store, run_id: str) -> str:
    """Write the report beside the run's other files; return its path or URL."""
    with used(Corpus(store, "_reports"), new_run_id(), wait=True, show=None):
        path = store.write_bytes(build(store, run_id).encode("utf-8"), "runs", run_id, "report.html")
    return f"s3://{path}" if store.is_s3 else path


def _address(review_url: str) -> str:
    parts = urlsplit(review_url)
    if review_url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise UsageError(
            f"--review-url {review_url!r}: give the address of a review server, as in http://127.0.0.1:4300"
        )
    return review_url.rstrip("/")


def page(store: Store, run_id: str, limit: int, review_url: str = "") -> str:
    """Return the report of a run as HTML; see `build`."""
    run = load_run(store, run_id)
    failures = load_failures(store, run)
    rows = load_rows(store, run, failures)
    titles = load_titles(store, run, _hashes(rows))
    style, script = _asset("report.css"), _script()
    total = max(len(rows), (run.summary.get("readings") or {}).get("total") or 0)
    data: PageData = {
        "readings": total,
        "corpus": run.corpus,
        "progress": load_progress(store, run_id),
        "failures": [_failure(failure, run) for failure in failures[:_FAILURES_MOST]],
        "failureCounts": _failure_counts(failures, run),
        "leftOut": {"rows": 0, "memories": 0, "documents": 0, "limit": ""},
        "review": review_url,
    }
    room = max(0, limit - len(style) - len(script) - size(data) - _FRAME_BYTES)
    listing = FileListing(titles)
    listed = listing.take(rows, int(room * _ROWS_SHARE))
    room -= size(listing.data) + sum(size(listing.reading(row)) for row in listed if row.answer)
    lengths = {content_hash: row["chars"] or 0 for content_hash, row in titles.items()}
    details = gather(store, run, listed, chars=lengths, room=max(0, room))
    titles |= load_titles(store, run, _changing(details.memories.values()) - titles.keys())
    readings = [
        (i, embed(listing.reading(row, details.memories.get(row.reading_id))))
        for i, row in enumerate(listed)
        if row.answer
    ]
    documents = [(listing.document(name), embed(passages)) for name, passages in details.documents.items()]
    data["leftOut"] = {
        "rows": total - len(listed),
        "memories": details.memories_left_out,
        "documents": details.documents_left_out,
        "limit": f"{limit / 2**20:.3g} MiB",
    }
    html: str = (
        _environment()
        .from_string(_asset("template.html.j2"))
        .render(
            run=run,
            facts=header.facts(run, rows, failures),
            scores=run.summary.get("scores") or [],
            origin=header.origin(run),
            policies=header.shares(rows, "policy_id"),
            configs=header.shares(rows, "config_hash"),
            settings=list(header.settings(run.config)),
            data=embed({**data, **listing.data}),
            readings=readings,
            documents=documents,
            style=Markup(style),  # noqa: S704  our own file
            script=Markup(script),  # noqa: S704
            style_hash=_sha(style),
            script_hash=_sha(script),
        )
    )
    return html


def _hashes(rows: list[ReportRow]) -> set[str]:
    """Return the content hashes of the documents that the page names; of a large archive, those with evidence."""
    streams = {content_hash for row in rows for content_hash in row.plan["stream"] or [row.plan["content_hash"]]}
    return streams | {piece["content_hash"] for row in rows for piece in row.evidence}


def _changing(timelines: Iterable[Timeline]) -> set[str]:
    """Return the content hashes of the documents that changed a memory."""
    return {change["document"] for timeline in timelines for change in timeline["changes"] if change["document"]}


def _failure(failure: FailureRow, run: ReportedRun) -> ShownFailure:
    return {
        "stage": _clipped(failure["stage"]),
        "item": _clipped(failure["item"]),
        "reason": _clipped(failure["reason"]),
        "detail": _clipped(failure["detail"]),
        "mine": failure["run_id"] == run.run_id,
        "at": header.when(failure["at"]),
    }


def _clipped(text: str | None) -> str:
    return (text or "")[:_DETAIL_CHARS]


def _failure_counts(failures: list[FailureRow], run: ReportedRun) -> list[FailureCount]:
    counts = Counter((f["stage"], f["reason"], f["run_id"] == run.run_id) for f in failures)
    return [
        {"stage": stage, "reason": reason, "mine": mine, "count": count}
        for (stage, reason, mine), count in counts.most_common()
    ]


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "when": header.when, "number": number, "figure": header.figure}
    return environment


def _asset(name: str) -> str:
    return (files("pipelines.report") / name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _sha(text: str) -> str:
    """Return the hash of an inline element's text for a content security policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
