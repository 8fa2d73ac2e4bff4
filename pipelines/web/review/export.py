"""Answers with their reviews as files, a page of the index in memory at a time."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from memagent.quality.verdicts import current
from pipelines.io.answers import cells_of
from pipelines.io.writer import Link, Row, TableLayout, flat, write_file
from pipelines.web.review import listing
from pipelines.web.review.answer_pages import link
from pipelines.web.review.listing import Filter
from pipelines.web.review.pages import access_of, service_of, session_of
from pipelines.web.review.service import ReviewService

_TEXTS = (
    *("corpus", "document", "title", "question_id", "question", "answer", "review", "engine_answer", "quote"),
    *("run_id", "reading_id", "link"),
)
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(("reviewed_by", "comments", "warnings"), pa.list_(pa.string())),
    **dict.fromkeys(("found", "verbatim"), pa.bool_()),
    "confidence": pa.float32(),
    "confidence_level": pa.string(),
    "answered_at": pa.timestamp("us", tz="UTC"),
}
COLUMNS = pa.schema([(name, _TYPES[name]) for name in cells_of(_TYPES)])
"""Columns of all formats, named and ordered as `memagent answers` has them; `warnings` has why a reading failed."""


def _cells(row: Row) -> Iterator[object]:
    for name in COLUMNS.names:
        yield Link(row[name], "open on the review pages") if name == "link" else flat(row[name])


_LAYOUT = TableLayout(COLUMNS, COLUMNS.names, _cells, group=5_000)


def rows(service: ReviewService, chosen: Filter, reviewer: str, address: str) -> Iterator[Row]:
    """Yield the items of a filter as rows of `COLUMNS`, as one person sees them, with links to this review server."""
    for item in listing.every(service.index.read(), chosen, reviewer):
        verdicts = service.verdicts(item)
        failed, absent = item.state == "failed", item.right == ""
        quote = "" if failed or absent else item.quote
        yield {
            "corpus": item.corpus,
            "document": item.doc_id,
            "title": item.title,
            "question_id": item.question_id,
            "question": item.question,
            "answer": "" if failed else item.answer if item.right is None else item.right,
            "review": "" if item.review == "open" else item.review,
            "engine_answer": "" if failed else item.answer,
            "found": None if failed else item.state == "found" if item.right is None else not absent,
            "warnings": [f"failed: {item.answer}"] if failed else [*filter(None, item.warnings.split("; "))],
            "quote": quote,
            "run_id": item.run_id,
            "reading_id": item.reading_id,
            "link": address + link(item),
            "reviewed_by": sorted({each.reviewer for each in current(verdicts)}),
            "comments": [f"{each.reviewer}: {each.comment}" for each in verdicts if each.comment],
            "verbatim": bool(item.verbatim) if quote else None,
            "confidence": item.confidence,
            "confidence_level": item.level or None,
            "answered_at": item.answered_at,
        }


def export(request: Request) -> Response:
    """Return the answers of a filter as a file."""
    kind, chosen = request.path_params["kind"], Filter.parse(request.query_params)
    if kind not in ("csv", "parquet", "xlsx"):
        raise HTTPException(404, f"there is no format {kind!r}: csv, parquet, xlsx")
    items = rows(service_of(request), chosen, session_of(request).reviewer, access_of(request).address)
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / f"answers.{kind}"
    write_file(path, items, kind, _LAYOUT)  # all of it in this thread, which the index's connection belongs to
    return FileResponse(path, filename=path.name, background=BackgroundTask(folder.cleanup))
