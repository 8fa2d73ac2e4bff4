"""Training rows as files, in the columns of other tools, in and out."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from infra.sources.dataset_files import open_records
from infra.store.claims import used
from infra.store.corpora import check_name, forgotten, remember
from infra.store.documents import DocumentWriter, current_documents, current_sources, document_texts
from infra.store.location import Corpus
from infra.store.qa import CorpusIndex, read_qa
from infra.store.runs import run_id_or_new, write_run
from infra.store.schemas import now
from memagent.errors import UsageError
from memagent.evaluation.records import Columns, IncompleteRecord
from memagent.quality.curation import Qa, split_of
from memagent.questions import PARQUET
from memagent.records import Json, text_hash
from pipelines.harvest import settle
from pipelines.io.writer import TableLayout, write_file

_JOIN = "\n\n"
_TEXT, _LONG, _TEXTS = pa.string(), pa.large_string(), pa.list_(pa.string())
_EXTRA = pa.struct(
    {"index": pa.int64()}
    | dict.fromkeys(("question", "split", "source", "qa_id"), _TEXT)
    | {"documents": _TEXTS, "reading_id": _TEXT, "policy_id": _TEXT, "share": pa.float64(), "pass_rate": pa.float64()}
)
_VERL = {
    "data_source": _TEXT,
    "prompt": pa.list_(pa.struct({"role": _TEXT, "content": _TEXT})),
    "context": _LONG,
    "ability": _TEXT,
    "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXTS}),
    "extra_info": _EXTRA,
}
_OPENRLHF = {"prompt": _LONG, "label": _TEXT, "question": _TEXT, "context": _LONG, "answers": _TEXTS}
_MEMAGENT = {"index": pa.int64(), "input": _TEXT, "context": _LONG, "answers": _TEXTS, "num_docs": pa.int64()}
_OWN = {"question": _TEXT, "documents": pa.list_(_LONG), "answers": _TEXTS, "split": _TEXT, "source": _TEXT}
_KEPT = ("source", "qa_id", "reading_id", "policy_id", "share", "pass_rate")


@dataclass(frozen=True, slots=True)
class ExportedRow:
    """A training row with its place in the file and its texts."""

    corpus: str
    index: int
    qa: Qa
    texts: Sequence[str]

    @property
    def context(self) -> str:
        """The texts as one."""
        return _JOIN.join(self.texts)


def _verl(row: ExportedRow) -> Json:
    extra = {name: getattr(row.qa, name) for name in _KEPT}
    extra |= {"index": row.index, "question": row.qa.question, "split": split_of(row.qa.documents)}
    return {
        "data_source": f"memagent/{row.corpus}",
        "prompt": [{"role": "user", "content": row.qa.question}],
        "context": row.context,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(row.qa.answers)},
        "extra_info": extra | {"documents": list(row.qa.documents)},
    }


def _openrlhf(row: ExportedRow) -> Json:
    return {
        "prompt": f"{row.context}{_JOIN}Question: {row.qa.question}",
        "label": row.qa.answers[0],
        "question": row.qa.question,
        "context": row.context,
        "answers": list(row.qa.answers),
    }


def _memagent(row: ExportedRow) -> Json:
    return {
        "index": row.index,
        "input": row.qa.question,
        "context": row.context,
        "answers": list(row.qa.answers),
        "num_docs": len(row.texts),
    }


def _own(row: ExportedRow) -> Json:
    return {
        "question": row.qa.question,
        "documents": list(row.texts),
        "answers": [answer for answer in row.qa.answers if answer],
        "split": split_of(row.qa.documents),
        "source": row.qa.source,
    }


FORMATS: dict[str, tuple[pa.Schema, Callable[[ExportedRow], Json]]] = {
    "verl": (pa.schema(_VERL), _verl),
    "openrlhf": (pa.schema(_OPENRLHF), _openrlhf),
    "memagent": (pa.schema(_MEMAGENT), _memagent),
    "own": (pa.schema(_OWN), _own),
}
"""Columns, and how a row fills them, by the names of `memagent.evaluation.records.FORMATS`."""


_SOURCE = "qa:"
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_ROWS = 64
_TITLE_CHARS = 80


def export_qa(corpus: Corpus, path: Path, format: str | None = None) -> int:
    """Write the training rows of a corpus to a file atomically; return their number.

    Rows whose documents were deleted since the last harvest are left out. A ``.parquet`` file is Parquet, a ``.jsonl``
    file JSON lines; the format is one of `FORMATS`, by default verl's for Parquet, plain columns for JSON lines.

    Raises UsageError: there are no rows or no such format, or the file is of another kind or cannot be written.
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
    schema, record = FORMATS[name]
    kind = "parquet" if parquet else "jsonl"
    write_file(path, map(record, _exported(corpus, rows)), kind, TableLayout(schema, group=_ROWS))
    return len(rows)


def import_qa(
    corpus: Corpus, path: Path, run_id: str | None = None, columns: Columns | None = None, format: str | None = None
) -> Json:
    """Import the rows of a Parquet or JSON lines file as gold and their texts as documents; return the run's summary.

    A text that equals a document of the corpus is not added again. The file's split is ignored: the split is by
    document. Rows without a question, an answer or a text, and those on a forgotten text, are dropped and counted. A
    format of `memagent.evaluation.records.FORMATS` is recognised where none is given; `columns` are for other files.

    Raises UsageError: the file cannot be read, is of no known format, or a record is malformed.
    """
    run_id = run_id_or_new(run_id)
    check_name(corpus.name)
    with used(corpus, run_id, wait=True, show=None):
        return _import_qa(corpus, path, run_id, columns, format)


def _import_qa(corpus: Corpus, path: Path, run_id: str, columns: Columns | None, format: str | None) -> Json:
    started, refused = now(), Counter[str]()
    records, parse = open_records(path, columns, format)
    there = current_documents(corpus, ["content_hash", "source"])
    # An import may have been killed between its documents and their sources: these are written now.
    known = pc.is_in(there["source"], value_set=current_sources(corpus, ["source"])["source"])
    written = there.filter(pc.or_(known, pc.invert(pc.starts_with(there["source"], _SOURCE))))
    hashes = set(written["content_hash"].to_pylist())
    gone = forgotten(corpus)
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
        if not gone.isdisjoint(stream):
            refused["forgotten text"] += 1
            continue
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


def _exported(corpus: Corpus, rows: Sequence[Qa]) -> Iterator[ExportedRow]:
    ordered = sorted(rows, key=lambda row: (row.stream, row.qa_id))  # rows of one document share its text
    for start in range(0, len(ordered), _ROWS):
        batch = ordered[start : start + _ROWS]
        texts = dict(document_texts(corpus, {name for row in batch for name in row.stream}))
        for index, row in enumerate(batch, start):
            yield ExportedRow(corpus.name, index, row, [texts[name] for name in row.stream])


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
            "warnings": None,
        },
        text,
    )
    writer.source(source, content_hash, content_hash, state="read", documents=1)
