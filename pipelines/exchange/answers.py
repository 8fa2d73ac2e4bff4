"""The answers of a corpus, as people and programs take them away."""

import csv
import io
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.documents import current_documents
from infra.tables.plans import read_plan
from infra.tables.rows import AnswerRow, EvidenceRow
from infra.tables.schemas import EVIDENCE
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.runs import run_answers, sampled_runs

COLUMNS = pa.schema(
    [
        ("document", pa.string()),
        ("title", pa.string()),
        ("source", pa.string()),
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("found", pa.bool_()),
        ("evidence", pa.list_(EVIDENCE)),
        ("gold", pa.list_(pa.string())),
        ("policy_id", pa.string()),
        ("reading_id", pa.string()),
        ("run_id", pa.string()),
        ("answered_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns of every format; csv has the first piece of evidence as quote and place."""


class AnsweredDocument(TypedDict):
    """Of which document an answer is."""

    doc_id: str
    title: str
    source: str
    content_hash: NotRequired[str]
    """Absent for the archive as one stream, and for a document that is no longer there."""


class GivenAnswer(TypedDict):
    """An answer as people and programs get it: `COLUMNS`."""

    document: str
    title: str
    source: str
    question_id: str
    question: str
    answer: str
    found: bool
    evidence: list[EvidenceRow]
    gold: list[str] | None
    policy_id: str
    reading_id: str
    run_id: str
    answered_at: datetime


def answer_table(config: Config, corpus: str, run_id: str | None = None) -> list[GivenAnswer]:
    """Return one row per document and question: of a run, or the newest answers of the corpus.

    Raises:
        UsageError: there is no such run, or the corpus has no documents.
    """
    store = Store(config.store)
    documents = current_documents(Corpus(store, corpus), ["doc_id", "content_hash", "title", "source"]).to_pylist()
    if not documents:
        raise UsageError(f"corpus {corpus!r} has no documents in {store.url}")
    return _of_run(Corpus(store, corpus), run_id, documents) if run_id else _newest(Corpus(store, corpus), documents)


def write_answers(rows: list[GivenAnswer], format_: str, output: Path | None) -> None:
    """Write rows as table, csv, jsonl or parquet, to a file or to standard output."""
    if format_ == "table" and output is None:
        from rich.console import Console

        from pipelines.cli.live import answers_table

        answers_table(Console(), rows)
        return
    writers = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
    if format_ not in writers:
        raise UsageError(f"--format {format_}: one of table (on the terminal), csv, jsonl, parquet")
    data = writers[format_](rows)
    if output is not None:
        output.write_bytes(data)
    elif format_ == "parquet" and sys.stdout.isatty():
        raise UsageError("parquet is not for the terminal: give -o FILE")
    else:
        sys.stdout.buffer.write(data)


def _of_run(corpus: Corpus, run_id: str, documents: list[AnsweredDocument]) -> list[GivenAnswer]:
    try:
        plan = read_plan(corpus, run_id).to_pylist()
    except FileNotFoundError as error:
        raise UsageError(f"no run {run_id} in {corpus.store.url}: memagent status {corpus.name} lists them") from error
    by_id = {document["doc_id"]: document for document in documents}
    answers = run_answers(corpus, plan)
    return [
        _row(by_id.get(row["doc_id"], {"doc_id": row["doc_id"], "title": row["title"], "source": ""}), answer)
        | {"question_id": row["question_id"], "gold": row["gold"]}
        for row in plan
        if (answer := answers.get(row["reading_id"])) is not None
    ]


def _newest(corpus: Corpus, documents: list[AnsweredDocument]) -> list[GivenAnswer]:
    newest: dict[tuple[str, str], AnswerRow] = {}
    archive: dict[str, AnswerRow] = {}
    samples = sampled_runs(corpus)
    for answer in Table(corpus.store, "answers").read(corpus.name).sort_by("answered_at").to_pylist():
        if answer["run_id"] in samples:
            continue
        if answer["scope"] == "archive":
            archive[answer["question"]] = answer
        else:
            newest[answer["content_hash"], answer["question"]] = answer
    questions = dict.fromkeys(question for _, question in newest)
    rows = [
        _row(document, newest[document["content_hash"], question])
        for document in documents
        for question in questions
        if (document["content_hash"], question) in newest
    ]
    whole: AnsweredDocument = {"doc_id": "", "title": "the archive as one stream", "source": ""}
    return rows + [_row(whole, answer) for answer in archive.values()]


def _row(document: AnsweredDocument, answer: AnswerRow) -> GivenAnswer:
    return {
        "document": document["doc_id"],
        "title": document["title"],
        "source": document["source"],
        "question_id": answer["question_id"],
        "question": answer["question"],
        "answer": answer["answer"],
        "found": answer["found"],
        "evidence": answer["evidence"],
        "gold": None,
        "policy_id": answer["policy_id"],
        "reading_id": answer["reading_id"],
        "run_id": answer["run_id"],
        "answered_at": answer["answered_at"],
    }


def _csv(rows: list[GivenAnswer]) -> bytes:
    names = [name for name in COLUMNS.names if name != "evidence"]
    places = ["quote", "segment", "char_start", "char_end"]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([*names, *places])
    for row in rows:
        first: Mapping[str, object] = row["evidence"][0] if row["evidence"] else {}
        gold = "|".join(row["gold"]) if row["gold"] is not None else ""
        cells = [gold if name == "gold" else row.get(name, "") for name in names]
        where = [first.get(k, "") for k in ("quote", "segment_index", "char_start", "char_end")]
        writer.writerow([_tame(cell) for cell in (*cells, *where)])
    return buffer.getvalue().encode("utf-8")


def _tame(cell: Any) -> Any:
    """Keep a spreadsheet from running a cell of a document as a formula."""
    return "'" + cell if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _jsonl(rows: list[GivenAnswer]) -> bytes:
    return "".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")


def _parquet(rows: list[GivenAnswer]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), buffer, compression="zstd")
    return buffer.getvalue()
