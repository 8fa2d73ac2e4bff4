"""Answers with their reviews as files, a page of the index in memory at a time."""

import csv
import io
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from memagent.quality.verdicts import current
from pipelines.io.answers import escape
from pipelines.web.review import listing
from pipelines.web.review.answer_pages import link
from pipelines.web.review.index import Subject, verdicts_on
from pipelines.web.review.listing import Filter, ListedAnswer
from pipelines.web.review.pages import access_of, service_of, session_of

_TEXTS = (
    *("corpus", "document", "title", "question_id", "question", "answer", "review", "engine_answer", "state", "quote"),
    *("run_id", "reading_id", "link"),
)
COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("reviewers", pa.list_(pa.string())),
        ("comments", pa.list_(pa.string())),
        ("confidence", pa.float32()),
        ("answered_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns of all formats; in csv and xlsx lists are joined by ``|``."""
_GROUP = 5_000


@dataclass(frozen=True, slots=True)
class Rows:
    """The items of a filter, as one person sees them, with links to this review server."""

    connection: Callable[[], sqlite3.Connection]
    chosen: Filter
    reviewer: str
    address: str

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield them as rows of `COLUMNS`."""
        connection = self.connection()
        for item in listing.every(connection, self.chosen, self.reviewer):
            yield self._row(connection, item)

    def _row(self, connection: sqlite3.Connection, item: ListedAnswer) -> dict[str, Any]:
        people: list[str] = []
        comments: list[str] = []
        pair = connection.execute("SELECT subject, question FROM item WHERE id = ?", (item.id,)).fetchone()
        if verdicts := verdicts_on(connection, Subject(pair["subject"], pair["question"])):
            people = sorted({each.reviewer for each in current(verdicts)})
            comments = [f"{each.reviewer}: {each.comment}" for each in verdicts if each.comment]
        failed = item.state == "failed"
        return {
            "corpus": item.corpus,
            "document": item.doc_id,
            "title": item.title,
            "question_id": item.question_id,
            "question": item.question,
            "answer": "" if failed else item.answer if item.right is None else item.right,
            "review": "" if item.review == "open" else item.review,
            "engine_answer": "" if failed else item.answer,
            "state": f"failed: {item.answer}" if failed else item.state,
            "quote": "" if failed else item.quote,
            "run_id": item.run_id,
            "reading_id": item.reading_id,
            "link": self.address + link(item),
            "reviewers": people,
            "comments": comments,
            "confidence": item.confidence,
            "answered_at": item.answered_at,
        }


def export(request: Request) -> Response:
    """Return the answers of a filter as a file."""
    kind = request.path_params["kind"]
    service, access = service_of(request), access_of(request)
    rows = Rows(service.index.read, Filter.parse(request.query_params), session_of(request).reviewer, access.address)
    if kind == "csv":
        headers = {"Content-Disposition": 'attachment; filename="answers.csv"'}
        return StreamingResponse(csv_lines(rows), media_type="text/csv; charset=utf-8", headers=headers)
    writers = {"parquet": write_parquet, "xlsx": write_xlsx}
    if kind not in writers:
        raise HTTPException(404, f"there is no format {kind!r}: csv, parquet, xlsx")
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / f"answers.{kind}"
    writers[kind](rows, path)
    return FileResponse(path, filename=path.name, background=BackgroundTask(folder.cleanup))


def csv_lines(rows: Rows) -> Iterator[str]:
    """Yield the lines of a CSV file that spreadsheets open as UTF-8."""
    text = io.StringIO()
    writer = csv.writer(text)
    text.write("\ufeff")
    writer.writerow(COLUMNS.names)
    for row in rows:
        writer.writerow([escape(cell) for cell in _cells(row)])
        if text.tell() > 2**16:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def write_parquet(rows: Rows, path: Path) -> None:
    """Write a Parquet file."""
    waiting = iter(rows)
    with pq.ParquetWriter(path, COLUMNS, compression="zstd") as writer:
        while group := list(islice(waiting, _GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=COLUMNS))


def write_xlsx(rows: Rows, path: Path) -> None:
    """Write a workbook whose column `link` can be clicked."""
    from pipelines.io.writer import Link, write_xlsx

    at = COLUMNS.names.index("link")
    cells = (
        [
            Link(str(cell), "open on the review pages") if column == at else cell
            for column, cell in enumerate(_cells(row))
        ]
        for row in rows
    )
    with path.open("wb") as file:
        write_xlsx(COLUMNS.names, cells, file)


def _cells(row: dict[str, Any]) -> list[str | float]:
    return [_cell(row[name]) for name in COLUMNS.names]


def _cell(value: Any) -> str | float:
    if isinstance(value, float):
        return value
    return "|".join(value) if isinstance(value, list) else "" if value is None else str(value)
