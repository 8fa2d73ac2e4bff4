"""Question files of users: JSON lines and Parquet of any size, read as a stream.

Only questions, answers and hashes are held in memory. The texts are laid out, each one once, in an Arrow file that is
mapped into memory and has no name: it is gone with the process.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from hashlib import file_digest
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.location import file_system
from memagent.errors import UsageError
from memagent.evaluation.loaders import FORMATS, load_samples, recognise
from memagent.evaluation.records import KNOWN_COLUMNS, Columns, Parse, TaskRecord, parser
from memagent.evaluation.texts import Sample
from memagent.quality.curation import Qa, families
from memagent.questions import PARQUET, FileRow, json_rows, parquet_rows
from memagent.records import text_hash

_JSON = (".jsonl", ".ndjson", ".json")
_SAMPLE = "sample"
_PARSED = ("own", "memagent")
"""Formats of evaluation whose columns `memagent.evaluation.records` reads as well, with blank answers."""
_BATCH_CHARS = 8_000_000
_SCHEMA = pa.schema([("text", pa.large_binary())])


class DatasetFile:
    """The questions of a file, and their texts by content hash."""

    def __init__(self, path: str, columns: Columns | None = None, format: str | None = None) -> None:
        """Read the file.

        Args:
            path: a local file, or an ``s3://`` URL.
            columns: the columns that hold question, text and answers, where they are not recognised.
            format: one of `memagent.evaluation.records.FORMATS`; else it is recognised.

        Raises UsageError: it cannot be read, has no records, or one is malformed: names file, line or row, and field.
        """
        self.path = path
        self.rows: list[Qa] = []
        """One for each question on a text; `documents` names the family of its texts, by which a split goes."""
        self._places: dict[str, tuple[int, int]] = {}
        with tempfile.TemporaryDirectory(prefix="memagent-dataset-") as folder:
            local = _local(path, Path(folder))
            self.content_hash = file_hash(str(local))
            laid_out = f"{folder}/texts.arrow"
            with pa.OSFile(laid_out, "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                self._read(*open_records(local, columns, format, shown=path), writer)
            self._texts = pa.ipc.open_file(pa.memory_map(laid_out))

    def text(self, content_hash: str) -> str:
        """Return a text by its content hash. Raises KeyError."""
        batch, row = self._places[content_hash]
        data: bytes = self._texts.get_batch(batch)["text"][row].as_py()
        return data.decode("utf-8")

    def _read(self, rows: Iterator[FileRow], parse: Parse, writer: "pa.ipc.RecordBatchFileWriter") -> None:
        waiting: list[bytes] = []
        batches = 0
        seen: dict[str, tuple[str, int]] = {}
        for given in rows:
            where, record = given.where, parse(given)
            stream = tuple(text_hash(text) for text in record.documents)
            for name, text in zip(stream, record.documents, strict=True):
                if name not in self._places:
                    self._places[name] = (batches, len(waiting))
                    waiting.append(text.encode("utf-8"))
            row = Qa(record.question, record.answers, stream, documents=stream, source="gold")
            before, number = seen.setdefault(row.qa_id, (where, len(self.rows)))
            if before == where:
                self.rows.append(row)
            elif any(self.rows[number].answers) != any(record.answers):
                raise UsageError(f"{where}: the question and text of {before}; one says that there is no answer")
            else:
                # The answers of both are right.
                both = dict.fromkeys((*self.rows[number].answers, *record.answers))
                self.rows[number] = replace(row, answers=tuple(both))
            if sum(map(len, waiting)) >= _BATCH_CHARS:
                writer.write_batch(pa.record_batch([pa.array(waiting, pa.large_binary())], schema=_SCHEMA))
                waiting, batches = [], batches + 1
        if waiting:
            writer.write_batch(pa.record_batch([pa.array(waiting, pa.large_binary())], schema=_SCHEMA))
        self.rows = _with_families(self.rows)


def open_records(
    path: Path, columns: Columns | None = None, format: str | None = None, shown: str = ""
) -> tuple[Iterator[FileRow], Parse]:
    """Return the raw records of a file, lazily, and what reads each; arguments are as of `DatasetFile`.

    `shown` is the file's name in messages, by default its path. A file of another format that evaluation reads is
    read as samples, whose answers are then compared as training compares them.

    Raises:
        UsageError: the file cannot be read, or is of no known format; what is wrong with a record is raised when it is
            reached or read.
    """
    suffix, name = path.suffix.lower(), shown or str(path)
    if suffix not in (*PARQUET, *_JSON):
        raise UsageError(f"{name}: a data set file is .parquet or .jsonl")
    wanted = set(astuple(columns)) if columns else KNOWN_COLUMNS
    rows = parquet_rows(path, name, wanted) if suffix in PARQUET else json_rows(path)
    first = next(rows)
    if not columns and format is None and (known := _known(path, first)) not in _PARSED:
        samples = load_samples(path, format=known)
        return (FileRow(f"{name}, {sample.sample_id}", {_SAMPLE: sample}) for sample in samples), _of_sample
    return chain([first], rows), parser(name, list(first.values), columns, format)


def _known(path: Path, first: FileRow) -> str:
    """Return the format of evaluation that a file has all fields of; ``own``: its columns, if any fit, are a user's."""
    names = pq.read_schema(path).names if path.suffix.lower() in PARQUET else first.values
    try:
        known = recognise(FileRow(first.where, dict.fromkeys(names)))
    except UsageError:
        return "own"
    return known if FORMATS[known].fields.issubset(names) else "own"


def _of_sample(row: FileRow) -> TaskRecord:
    sample: Sample = row.values[_SAMPLE]
    return TaskRecord(sample.question, (sample.text(),), sample.answers)


def file_hash(path: str) -> str:
    """Return the hash of a file's bytes, by which a data set is known whatever it is called.

    Raises UsageError: it cannot be read.
    """
    try:
        with file_system(path).open(path.removeprefix("s3://"), "rb") as file:
            return file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def split_rows(rows: Sequence[Qa]) -> tuple[list[Qa], list[Qa]]:
    """Return (training, validation) rows, nine to one; texts of one family are on one side.

    Raises UsageError: all rows are of one family, so that none can be held out.
    """
    groups = {row.documents[0] for row in rows}
    held_out = {name for name in groups if int(name[:8], 16) % 10 == 0} or {min(groups, default="")}
    train = [row for row in rows if row.documents[0] not in held_out]
    if not train:
        raise UsageError(
            f"all {len(rows)} questions are on one text, or on texts that stand together in lists: none can be "
            "held out for validation. Give a validation file: --validation FILE"
        )
    return train, [row for row in rows if row.documents[0] in held_out]


def _with_families(rows: list[Qa]) -> list[Qa]:
    """Name the family of each row's texts: texts that stand in one list are of one family.

    Where most rows are of one (paragraphs drawn by chance from a pool), every list is a family.
    """
    root = families((row.stream[0], name) for row in rows for name in row.stream)
    of_row = [root[row.stream[0]] for row in rows]
    if max(Counter(of_row).values(), default=0) > len(rows) / 2:
        of_row = [text_hash("".join(row.stream)) for row in rows]
    return [replace(row, documents=(family,)) for row, family in zip(rows, of_row, strict=True)]


def _local(path: str, folder: Path) -> Path:
    """Return a path of this machine; what is on S3 is downloaded into a folder."""
    if not path.startswith("s3://"):
        return Path(path).expanduser()
    target = folder / path.rsplit("/", 1)[-1]
    try:
        file_system(path).get_file(path.removeprefix("s3://"), str(target))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    return target
