"""Render the report of a run as one HTML file.

All text of documents, questions and models is JSON in inert script elements, which the page's script turns into text
nodes. The content security policy has the hashes of that script and of the style sheet: nothing else runs, and nothing
is fetched.
"""

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from infra.store.claims import used
from infra.store.location import Corpus, Store
from infra.store.rows import FailureRow
from memagent.errors import UsageError
from memagent.records import Json
from pipelines.report.data import ReportedRun, ReportRow, load_failures, load_progress, load_rows, load_run, load_titles
from pipelines.report.details import gather
from pipelines.report.html import asset, embed, sheet, size, when, write_sheet
from pipelines.report.overview import FileListing, overview
from pipelines.run_names import new_run_id
from pipelines.views.visible_answers import archive_warnings

LIMIT_BYTES = 20 * 2**20
"""Small enough to open quickly and to be sent by mail."""
_ROWS_SHARE = 0.75
"""Share of the room for answers and evidence, which take precedence over memories and documents."""
_FAILURES_MOST = 1_000
_DETAIL_CHARS = 2_000
_FRAME_BYTES = 30_000
"""Size of the page without scripts, styles and data."""
_SCRIPTS = ("dom.js", "diff.js", "table.js", "matrix.js", "document.js", "reading.js", "chart.js", "main.js")


def build(store: Store, run_id: str, limit: int = LIMIT_BYTES, review_url: str = "") -> str:
    """Return the report of a finished run as HTML of about `limit` bytes at most.

    Raises UsageError: the store does not know the run, or `review_url` is no address.
    """
    review, run = _address(review_url), load_run(store, run_id)
    failures = load_failures(run)
    rows = load_rows(run, failures)
    titles = load_titles(run.corpus, _hashes(rows))
    style = asset("report.css")
    script = '(() => {\n"use strict";\n' + "\n".join(map(asset, _SCRIPTS)) + "\n})();\n"
    total = max(len(rows), (run.summary.get("readings") or {}).get("total") or 0)
    data: Json = {
        "readings": total,
        "corpus": run.corpus.name,
        "progress": load_progress(store, run_id),
        "failures": [_failure(failure, run) for failure in failures[:_FAILURES_MOST]],
        "failureCounts": _failure_counts(failures, run),
        "leftOut": {"rows": 0, "memories": 0, "documents": 0, "limit": ""},
        "review": review,
        "warnings": archive_warnings(run.corpus),
    }
    room = max(0, limit - len(style) - len(script) - size(data) - _FRAME_BYTES)
    listing = FileListing(titles)
    listed = listing.take(rows, int(room * _ROWS_SHARE))
    room -= size(listing.data) + sum(size(listing.reading(row)) for row in listed if row.answer)
    lengths = {content_hash: row["chars"] or 0 for content_hash, row in titles.items()}
    details = gather(run.corpus, listed, chars=lengths, room=max(0, room))
    changing = {content_hash for history in details.memories.values() for content_hash in history.documents}
    titles |= load_titles(run.corpus, changing - titles.keys())
    readings = [
        (number, embed(listing.reading(row, details.memories.get(row.reading_id))))
        for number, row in enumerate(listed)
        if row.answer
    ]
    documents = [(listing.document(name), embed(passages)) for name, passages in details.documents.items()]
    data["leftOut"] = {
        "rows": total - len(listed),
        "memories": details.memories_left_out,
        "documents": details.documents_left_out,
        "limit": f"{limit / 2**20:.3g} MiB",
    }
    return sheet(
        "template.html.j2",
        style,
        script,
        **overview(run, rows, failures),
        data=embed({**data, **listing.data}),
        readings=readings,
        documents=documents,
    )


def write(store: Store, run_id: str, path: str | Path, limit: int = LIMIT_BYTES, review_url: str = "") -> Path:
    """Write the report of a finished run to `path` atomically; return the path.

    Its readings link to the review server at the address `review_url`, if there is one.

    Raises UsageError: the store does not know the run, or the file cannot be written.
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


def _hashes(rows: list[ReportRow]) -> set[str]:
    """Return the content hashes of the documents that the page names; of a large archive, those with evidence."""
    streams = {content_hash for row in rows for content_hash in row.plan["stream"] or [row.plan["content_hash"]]}
    return streams | {piece["content_hash"] for row in rows for piece in row.evidence}


def _failure(failure: FailureRow, run: ReportedRun) -> Json:
    """Return a quarantine row as ``main.js`` reads it; `mine`: of this run, not of an earlier ingest."""
    row: Json = {**failure}
    shown = {name: (row[name] or "")[:_DETAIL_CHARS] for name in ("stage", "item", "reason", "detail")}
    return {**shown, "mine": failure["run_id"] == run.run_id, "at": when(failure["at"])}


def _failure_counts(failures: list[FailureRow], run: ReportedRun) -> list[Json]:
    counts = Counter((f["stage"], f["reason"], f["run_id"] == run.run_id) for f in failures)
    return [
        {"stage": stage, "reason": reason, "mine": mine, "count": count}
        for (stage, reason, mine), count in counts.most_common()
    ]
