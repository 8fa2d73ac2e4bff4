"""Import and export training rows in the columns of verl.

``data_source, prompt [{role, content}], context, ability, reward_model {style, ground_truth}, extra_info``: as in
MemAgent's published files (arXiv 2507.02259). A context is the concatenation of a row's documents.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store import Corpus
from infra.tables.corpora import check_name, remember
from infra.tables.delta import now
from infra.tables.documents import DocumentWriter, current_documents, document_texts
from infra.tables.qa import CorpusIndex, read_qa
from infra.tables.runs import write_run
from memagent.curation import Qa, split_of
from memagent.errors import UsageError
from memagent.records import text_hash
from pipelines.harvest import settle
from pipelines.output_file import output_file
from pipelines.runs import new_run_id

_SOURCE = "qa:"
_JOIN = "\n\n"
_ROWS = 64
_NEEDED = ("prompt", "context", "reward_model")
_TITLE_CHARS = 80
_COMMIT_SECONDS = 5.0
EXTRA = pa.struct(
    [
        ("index", pa.int64()),
        ("question", pa.string()),
        ("split", pa.string()),
        ("source", pa.string()),
        ("qa_id", pa.string()),
        ("documents", pa.list_(pa.string())),
        ("reading_id", pa.string()),
        ("policy_id", pa.string()),
        ("share", pa.float64()),
        ("pass_rate", pa.float64()),
    ]
)
COLUMNS = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("context", pa.large_string()),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.list_(pa.string()))])),
        ("extra_info", EXTRA),
    ]
)
_EXTRA = ("source", "qa_id", "reading_id", "policy_id", "share", "pass_rate")


def export_qa(corpus: Corpus, path: Path) -> int:
    """Write the training rows of a corpus to a Parquet file atomically; return their number.

    Rows whose documents were deleted since the last harvest are left out.

    Raises:
        UsageError: there are no rows, or the file cannot be written.
    """
    check_name(corpus.name)
    index = CorpusIndex(corpus)
    rows = [row for row in read_qa(corpus.store, corpus.name) if index.place(row).documents]
    if not rows:
        raise UsageError(f"corpus {corpus.name!r} has no rows to export: memagent harvest {corpus.name}")
    with output_file(path) as aside, pq.ParquetWriter(aside, COLUMNS, compression="zstd") as writer:
        for batch in _exported(corpus, rows):
            writer.write_table(pa.Table.from_pylist(batch, schema=COLUMNS))
    return len(rows)


def import_qa(corpus: Corpus, path: Path, run_id: str | None = None) -> dict[str, Any]:
    """Import the rows of a Parquet file as gold and their contexts as documents; return the run's summary.

    A context that equals a document of the corpus is not added again. The file's split is ignored: the split is by
    document. Rows without a question, an answer or a context are dropped and counted.

    Raises:
        UsageError: the file cannot be read or has other columns.
    """
    started, run_id, refused = now(), run_id or new_run_id(), Counter[str]()
    file = _open(path)
    check_name(corpus.name)
    hashes = set(current_documents(corpus, ["content_hash"])["content_hash"].to_pylist())
    writer = DocumentWriter(corpus, run_id, started, _COMMIT_SECONDS)
    fresh: list[Qa] = []
    documents = 0
    with file:
        for number, values in enumerate(_rows(file, path)):
            row = _imported(values, f"{path}, row {number}")
            if isinstance(row, str):
                refused[row] += 1
                continue
            content_hash = text_hash(row.context)
            if content_hash not in hashes:
                hashes.add(content_hash)
                _write(writer, row, content_hash, started)
                documents += 1
            fresh.append(Qa(row.question, row.answers, (content_hash,), documents=(), source="gold"))
    writer.flush()
    if not fresh:
        raise UsageError(f"{path} has no usable row: {dict(refused) or 'it is empty'}")
    remember(corpus)
    summary = settle(corpus, fresh, run_id, refused=refused) | {"documents": documents, "file": str(path)}
    summary["seconds"] = round((now() - started).total_seconds(), 2)
    write_run(corpus.store, summary, started, {})
    return summary


def _exported(corpus: Corpus, rows: Sequence[Qa]) -> Iterator[list[dict[str, Any]]]:
    ordered = sorted(rows, key=lambda row: (row.stream, row.qa_id))  # rows of one document share its text
    for start in range(0, len(ordered), _ROWS):
        batch = ordered[start : start + _ROWS]
        texts = dict(document_texts(corpus, {name for row in batch for name in row.stream}))
        yield [
            _exported_row(corpus.name, index, row, _JOIN.join(texts[name] for name in row.stream))
            for index, row in enumerate(batch, start)
        ]


def _exported_row(corpus: str, index: int, row: Qa, context: str) -> dict[str, Any]:
    extra = {name: getattr(row, name) for name in _EXTRA}
    extra |= {"index": index, "question": row.question, "split": split_of(row.documents)}
    return {
        "data_source": f"memagent/{corpus}",
        "prompt": [{"role": "user", "content": row.question}],
        "context": context,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(row.answers)},
        "extra_info": extra | {"documents": list(row.documents)},
    }


@dataclass(frozen=True, slots=True)
class _Row:
    question: str
    answers: tuple[str, ...]
    context: str


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise UsageError(f"no file {path}") from error
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} is not a readable Parquet file: {error}") from error
    columns = file.schema_arrow.names
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise UsageError(
            f"{path} has no column {missing[0]!r}; it has {', '.join(columns)}. Required are: prompt (a list of role "
            "and content), context (a text), reward_model (with ground_truth); extra_info may hold the question."
        )
    return file


def _rows(file: pq.ParquetFile, path: Path) -> Iterator[dict[str, Any]]:
    columns = [name for name in (*_NEEDED, "extra_info") if name in file.schema_arrow.names]
    try:
        for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def _imported(row: dict[str, Any], where: str) -> _Row | str:
    """Return a row, or the reason why it is dropped."""
    extra, reward, prompt = row.get("extra_info"), row["reward_model"], row["prompt"]
    question = extra.get("question") if isinstance(extra, dict) else None
    if not question and isinstance(prompt, list):
        messages = [turn.get("content") for turn in prompt if isinstance(turn, dict) and turn.get("role") == "user"]
        question = messages[-1] if messages else None
    gold = reward.get("ground_truth") if isinstance(reward, dict) else None
    gold = [gold] if isinstance(gold, str) else gold
    context = row["context"]
    for name, value, kind in (("question", question, str), ("answer", gold, list), ("context", context, str)):
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{where}: the {name} is {type(value).__name__}; it must be {kind.__name__}")
    if not question or not question.strip():
        return "no question"
    if not gold or not all(isinstance(answer, str) for answer in gold):
        return "no answer"
    return _Row(question.strip(), tuple(gold), context) if context and context.strip() else "no context"


def _write(writer: DocumentWriter, row: _Row, content_hash: str, first_seen: datetime) -> None:
    source = _SOURCE + content_hash
    size = len(row.context.encode("utf-8", "surrogatepass"))
    writer.document(
        {
            "doc_id": content_hash,
            "content_hash": content_hash,
            "title": " ".join(row.context[: 2 * _TITLE_CHARS].split())[:_TITLE_CHARS],
            "source": source,
            "source_stamp": content_hash,
            "media_type": "text/plain",
            "encoding": "utf-8",
            "size_bytes": size,
            "chars": len(row.context),
            "state": "present",
            "first_seen": first_seen,
        },
        row.context,
    )
    writer.source(source, content_hash, content_hash, state="read", documents=1)
