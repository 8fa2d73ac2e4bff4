"""Training rows as files, in the columns of other tools (`pipelines.exchange.qa_formats`), in and out."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from infra.dataset_files import PARQUET, open_records
from infra.store import Corpus
from infra.tables.claims import used
from infra.tables.corpora import check_name, remember
from infra.tables.delta import now
from infra.tables.document_writer import DocumentWriter
from infra.tables.documents import current_documents, document_texts
from infra.tables.qa import CorpusIndex, read_qa
from infra.tables.runs import write_run
from memagent.curation import Qa
from memagent.errors import UsageError
from memagent.records import text_hash
from memagent.tasks.records import Columns, IncompleteRecord
from pipelines.exchange.qa_formats import FORMATS, ExportedRow, QaFormat
from pipelines.harvest import settle
from pipelines.output_file import output_file
from pipelines.run_names import run_id_or_new

_SOURCE = "qa:"
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_ROWS = 64
_TITLE_CHARS = 80


class _Writer(Protocol):
    def write(self, records: list[dict[str, Any]]) -> None: ...


def export_qa(corpus: Corpus, path: Path, format: str | None = None) -> int:
    """Write the training rows of a corpus to a file atomically; return their number.

    Rows whose documents were deleted since the last harvest are left out. A ``.parquet`` file is Parquet, a ``.jsonl``
    file JSON lines.

    Args:
        corpus: whose rows.
        path: the file.
        format: one of `pipelines.exchange.qa_formats.FORMATS`; by default verl's for Parquet, plain columns for JSON
            lines.

    Raises:
        UsageError: there are no rows or no such format, or the file is of another kind or cannot be written.
    """
    check_name(corpus.name)
    parquet = path.suffix.lower() in PARQUET
    if not parquet and path.suffix.lower() not in _JSON_LINES:
        raise UsageError(
            f"{path}: training rows are written as .parquet or .jsonl; answers as a table: memagent answers "
            f"{corpus.name} -o {path.name}"
        )
    name = format or ("verl" if parquet else "own")
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}. There are: {', '.join(FORMATS)}")
    index = CorpusIndex(corpus)
    rows = [row for row in read_qa(corpus.store, corpus.name) if index.place(row).documents]
    if not rows:
        raise UsageError(f"corpus {corpus.name!r} has no rows to export: memagent harvest {corpus.name}")
    with output_file(path) as aside, _writer(aside, FORMATS[name], parquet=parquet) as writer:
        for batch in _exported(corpus, rows):
            writer.write([FORMATS[name].record(row) for row in batch])
    return len(rows)


def import_qa(
    corpus: Corpus,
    path: Path,
    run_id: str | None = None,
    columns: Columns | None = None,
    format: str | None = None,
) -> dict[str, Any]:
    """Import the rows of a file as gold and their texts as documents; return the run's summary.

    A text that equals a document of the corpus is not added again. The file's split is ignored: the split is by
    document. Rows without a question, an answer or a text are dropped and counted.

    Args:
        corpus: where to.
        path: Parquet or JSON lines.
        run_id: name of the run.
        columns: those that hold question, text and answers, where they are of no known format.
        format: one of `memagent.tasks.records.FORMATS`; else it is recognised.

    Raises:
        UsageError: the file cannot be read, is of no known format, or a record is malformed.
    """
    run_id = run_id_or_new(run_id)
    check_name(corpus.name)
    with used(corpus, run_id, wait=True, show=None):
        return _import_qa(corpus, path, run_id, columns, format)


def _import_qa(corpus: Corpus, path: Path, run_id: str, columns: Columns | None, format: str | None) -> dict[str, Any]:
    started, refused = now(), Counter[str]()
    records, parse = open_records(path, columns, format)
    hashes = set(current_documents(corpus, ["content_hash"])["content_hash"].to_pylist())
    writer = DocumentWriter(corpus, run_id, started)
    fresh: list[Qa] = []
    documents = 0
    for raw in records:
        try:
            record = parse(raw)
        except IncompleteRecord as error:
            refused[f"no {error.lacks}"] += 1
            continue
        stream = tuple(text_hash(text) for text in record.documents)
        for content_hash, text in zip(stream, record.documents, strict=True):
            if content_hash not in hashes:
                hashes.add(content_hash)
                _write(writer, text, content_hash, started)
                documents += 1
        fresh.append(Qa(record.question, record.answers, stream, documents=(), source="gold"))
    if not fresh:
        raise UsageError(f"{path} has no usable row: {dict(refused)}")
    writer.commit()
    remember(corpus)
    summary = settle(corpus, fresh, run_id, refused=refused) | {"documents": documents, "file": str(path)}
    summary["seconds"] = round((now() - started).total_seconds(), 2)
    write_run(corpus.store, summary, started, {})
    return summary


class _ParquetWriter:
    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer, self._schema = writer, schema

    def write(self, records: list[dict[str, Any]]) -> None:
        self._writer.write_table(pa.Table.from_pylist(records, schema=self._schema))


class _JsonWriter:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, records: list[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@contextmanager
def _writer(path: Path, format: QaFormat, *, parquet: bool) -> Iterator[_Writer]:
    if parquet:
        with pq.ParquetWriter(path, format.schema, compression="zstd") as writer:
            yield _ParquetWriter(writer, format.schema)
    else:
        with path.open("w", encoding="utf-8") as file:
            yield _JsonWriter(file)


def _exported(corpus: Corpus, rows: Sequence[Qa]) -> Iterator[list[ExportedRow]]:
    ordered = sorted(rows, key=lambda row: (row.stream, row.qa_id))  # rows of one document share its text
    for start in range(0, len(ordered), _ROWS):
        batch = ordered[start : start + _ROWS]
        texts = dict(document_texts(corpus, {name for row in batch for name in row.stream}))
        yield [
            ExportedRow(corpus.name, index, row, [texts[name] for name in row.stream])
            for index, row in enumerate(batch, start)
        ]


def _write(writer: DocumentWriter, text: str, content_hash: str, first_seen: datetime) -> None:
    source = _SOURCE + content_hash
    size = len(text.encode("utf-8", "surrogatepass"))
    writer.document(
        {
            "doc_id": content_hash,
            "content_hash": content_hash,
            "title": " ".join(text[: 2 * _TITLE_CHARS].split())[:_TITLE_CHARS],
            "source": source,
            "source_stamp": content_hash,
            "media_type": "text/plain",
            "encoding": "utf-8",
            "size_bytes": size,
            "chars": len(text),
            "state": "present",
            "first_seen": first_seen,
        },
        text,
    )
    writer.source(source, content_hash, content_hash, state="read", documents=1)
