"""Rows of users' files, each knowing where it stands; and questions from a file: JSON lines, CSV, Excel or TOML."""

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from memagent.errors import UsageError
from memagent.records import Json, Question, half, stable_hash

_CELL = 2**24
"""Characters of a CSV cell at most; Python's own limit, 131,072, is less than a long quote."""
PARQUET = (".parquet", ".pq")
"""Suffixes of Parquet files."""
_ROWS = 16
_BUFFER = 2**20
_BLANK = b" \t\r\n"
_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row, or a JSON object, and where it stands: file and line, or file and index in a list.

    The methods return a field as what it must be; what is wrong with one is a `UsageError` that names file, line, field
    and what is needed.
    """

    where: str
    values: Json

    def wrong(self, field: str, what: str) -> UsageError:
        """Return the error that says what is wrong with a field."""
        return UsageError(f"{self.where}, field {field!r}: {what}")

    def get(self, field: str) -> Any:
        """Return a field that must be there."""
        if field not in self.values:
            known = ", ".join(self.values) or "nothing"
            raise self.wrong(field, f"missing; the record holds {known}. Add the field, or give another format.")
        return self.values[field]

    def text(self, field: str, *, blank: bool = False) -> str:
        """Return a text, not blank unless `blank`."""
        return self._text(field, self.get(field), blank=blank)

    def texts(self, field: str, *, blank: bool = False) -> tuple[str, ...]:
        """Return a list of one or more texts, none blank unless `blank`."""
        values = self.list(field)
        if not values:
            raise self.wrong(field, "an empty list; at least one text is needed.")
        return tuple(self._text(f"{field}[{i}]", value, blank=blank) for i, value in enumerate(values))

    def several(self, field: str) -> tuple[str, ...]:
        """Return texts or numbers, a list of them or one, as texts that may be blank."""
        value = self.get(field)
        if not isinstance(value, list):
            return (self._text(field, _written(value), blank=True),)
        return tuple(self._text(f"{field}[{i}]", _written(item), blank=True) for i, item in enumerate(value))

    def whole(self, field: str) -> int:
        """Return a whole number, 0 or more."""
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(field, f"{_kind(value)}; a whole number from 0 is needed.")
        return value

    def name(self, field: str) -> str:
        """Return an identifier, a text or a whole number, as text."""
        value = self.get(field)
        return self._text(field, _written(value) if isinstance(value, int) else value, blank=False)

    def flag(self, field: str, *, default: bool) -> bool:
        """Return true or false; `default` where the field is missing."""
        value = self.values.get(field, default)
        if not isinstance(value, bool):
            raise self.wrong(field, f"{_kind(value)}; true or false is needed.")
        return value

    def list(self, field: str) -> list[Any]:
        """Return a list."""
        value = self.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, f"{_kind(value)}; a list is needed.")
        return value

    def rows(self, field: str) -> "Iterator[FileRow]":
        """Yield the objects of a list."""
        for i, value in enumerate(self.list(field)):
            if not isinstance(value, dict):
                raise self.wrong(f"{field}[{i}]", f"{_kind(value)}; an object is needed.")
            yield FileRow(f"{self.where}, {field}[{i}]", value)

    def _text(self, field: str, value: Any, *, blank: bool) -> str:
        if not isinstance(value, str):
            raise self.wrong(field, f"{_kind(value)}; a text is needed.")
        if not blank and not value.strip():
            raise self.wrong(field, "blank; a text is needed.")
        if surrogate := half(value):
            raise self.wrong(field, f"holds {surrogate}, an unpaired surrogate. Write the file again as UTF-8.")
        return value


def _written(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _kind(value: Any) -> str:
    said = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    # A Parquet file has more kinds: bytes, dates, decimals.
    return "null" if value is None else said.get(type(value), f"a value of type {type(value).__name__}")


class RowNames:
    """The identifiers of a file's rows, none twice."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def add(self, row: FileRow, field: str, name: str) -> str:
        """Return `name`, new to the file.

        Raises:
            UsageError: a row before has it.
        """
        if (before := self._first.setdefault(name, row.where)) is not row.where:
            raise row.wrong(field, f"{name!r} is the one of another record ({before}). Give each its own.")
        return name


def read_text(path: Path, what: str) -> str:
    """Return a file's text, without a byte order mark.

    Raises:
        UsageError: there is no such file (`what` says of which kind), or it cannot be read as UTF-8: names the line.
    """
    try:
        return _decode(path, path.read_bytes(), 1)
    except FileNotFoundError as error:
        raise UsageError(f"no {what} {path}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def json_lines(path: Path, text: str, fields: str) -> Iterator[FileRow]:
    """Yield the rows of JSON lines; empty lines are passed over.

    Raises:
        UsageError: a line is no JSON, or no object; `fields` says which fields it should have.
    """
    for number, line in enumerate(text.split("\n"), 1):  # texts of documents may hold line ends of other kinds
        if line.strip():
            yield _row(f"{path}, line {number}", _parse(path, line, number), fields)


def json_rows(path: Path) -> Iterator[FileRow]:
    """Yield the records of a file: JSON lines one by one, lazily; the items of a JSON list; or one JSON document.

    A list or document is parsed as a whole and so held in memory.

    Raises:
        UsageError: the file cannot be read, is empty, is no UTF-8 or no JSON; names file and line (or index).
    """
    try:
        with path.open("rb") as file:
            number, first = _first_line(file, path)
            opening = first.removeprefix(_MARK).lstrip(_BLANK)
            document = opening.startswith(b"[") or opening.strip(_BLANK) == b"{"
            if document or (path.suffix.lower() == ".json" and not _complete(first)):
                yield from _document(path, first + file.read(), number)
                return
            for place, line in enumerate(chain([first], file), number):
                if line.strip(_BLANK):
                    yield _row(f"{path}, line {place}", _parse(path, _decode(path, line, place), place))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give a file that can be.") from error


def parquet_rows(path: Path, shown: str = "", wanted: Collection[str] = ()) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file, lazily: with the columns that are `wanted`, or all where it has none of them.

    Raises:
        UsageError: it cannot be read, or has no rows; `shown` is its name in the message, by default its path.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name, number = shown or str(path), 0
    try:
        # Otherwise a column of a row group is read as a whole, and files of one row group are usual.
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            there = file.schema_arrow.names
            chosen = [column for column in there if column in wanted] or there
            for batch in file.iter_batches(batch_size=_ROWS, columns=chosen):
                for values in batch.to_pylist():
                    number += 1
                    yield FileRow(f"{name}, row {number}", values)
    except FileNotFoundError as error:
        raise UsageError(f"no file {name}") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is not a readable Parquet file: {error}") from error
    if not number:
        raise UsageError(f"{name} holds no records")


def _first_line(file: Iterable[bytes], path: Path) -> tuple[int, bytes]:
    for number, line in enumerate(file, 1):
        if line.removeprefix(_MARK).strip(_BLANK):
            return number, line
    raise UsageError(f"{path}, line 1: the file is empty. Give one with records.")


def _complete(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _document(path: Path, data: bytes, line: int) -> Iterator[FileRow]:
    value = _parse(path, _decode(path, data, line), line)
    if isinstance(value, dict):
        yield FileRow(str(path), value)
        return
    if not value:
        raise UsageError(f"{path}, line {line}: the list is empty. Give a file with records.")
    for i, item in enumerate(value):
        yield _row(f"{path}, index {i}", item)


def _row(where: str, value: Any, fields: str = "") -> FileRow:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {_kind(value)}; a record (JSON object) is needed{fields and f', with {fields}'}.")
    return FileRow(where, value)


def _decode(path: Path, data: bytes, line: int) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = line + data.count(b"\n", 0, error.start)
        raise UsageError(
            f"{path}, line {bad_line}: byte 0x{data[error.start]:02x} is not UTF-8. Write the file again as UTF-8."
        ) from error


def _parse(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text.rstrip("\r\n"))  # where it is cut off, the error names its last line
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}, line {line + error.lineno - 1}, column {error.colno}: not JSON ({error.msg}). "
            "The file may be cut off or damaged; get it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, line {line}: not JSON that can be read ({error}).") from error


def check_header(path: Path, names: Sequence[str], needed: Sequence[str], advice: str) -> None:
    """Raises UsageError: a needed column is not among the names; `advice` says what to do."""
    if missing := [name for name in needed if name not in names]:
        has = ", ".join(filter(None, names))[:200] or "nothing"
        raise UsageError(f"{path}: the header has no column {missing[0]!r}: it has {has}{advice}")


def csv_rows(path: Path, text: str, needed: Sequence[str], advice: str = "") -> Iterator[FileRow]:
    """Yield the rows of CSV with a header; a row that is shorter than the header has empty cells at its end.

    Cells are separated by what a first line ``sep=;`` names, else by commas; by semicolons or tabs, as spreadsheets of
    many countries write them, where only these give the header the columns it needs. Rows and columns without a name
    in which all is blank are left out: spreadsheets write them for cells that were once used.

    Raises:
        UsageError: the header lacks one of the `needed` columns (`advice` says what to do), a row has a cell without
            a column, or the file is no CSV.
    """
    csv.field_size_limit(_CELL)
    lines = io.StringIO(text, newline="")  # quotes of documents hold line ends of other kinds
    named = _SEPARATOR.match(text)
    skipped = 1 if named and lines.readline() else 0
    mark = named[1] if named else _delimiter(text, needed)
    reader = csv.reader(lines, strict=True, delimiter=mark)  # strict: an unclosed quote takes the rest of the file
    begins = 1
    try:
        names = [name.strip() for name in next(filter(None, reader), [])]
        check_header(path, names, needed, advice)
        begins = reader.line_num + skipped + 1
        twice = sorted(name for name in set(names) if name and names.count(name) > 1)
        if twice:
            raise UsageError(f"{path}: the header has column {twice[0]!r} twice")
        for cells in reader:
            where, begins = f"{path}, line {reader.line_num + skipped}", reader.line_num + skipped + 1
            row = list(zip_longest(names, cells, fillvalue=""))
            if any(cell.strip() and not name for name, cell in row):
                raise UsageError(f"{where}: more fields than the header has. Name each column, or quote the commas.")
            if any(cell.strip() for cell in cells):
                yield FileRow(where, {name: cell for name, cell in row if name})
    except csv.Error as error:
        raise UsageError(f"{path}, line {begins}: {error}") from error


_SEPARATOR = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""The first line by which Excel is told the separator."""


def _delimiter(text: str, needed: Sequence[str]) -> str:
    header = text[: text.find("\n") + 1 or len(text)].strip("\r\n")
    fits = (mark for mark in ",;\t" if set(needed) <= {name.strip(' "') for name in header.split(mark)})
    return next(fits, ",")


_KEYS = {"id", "question", "answers", "documents"}


def ask(text: str, where: str = "the question") -> Question:
    """Make a question from its text; the id is derived from the text.

    Raises: UsageError: the text is empty or cannot be stored; the message names `where`."""
    text = text.strip()
    if not text:
        raise UsageError(f"{where} is empty")
    if surrogate := half(text):
        raise UsageError(f"{where} holds {surrogate}, an unpaired surrogate: write it again as UTF-8")
    return Question(stable_hash(text)[:12], text)


def load_questions(path: str, workbook: Callable[..., Iterator[FileRow]] | None = None) -> list[Question]:
    """Load questions.

    Each has `question`, and optionally `id`, `answers` (gold; an empty list or text means that the documents do not
    say) and `documents` (ids or globs). In CSV and Excel, several answers or documents are separated by ``|``; an empty
    cell gives none, and ``|`` alone in `answers` means that the documents do not say. A TOML file holds them as
    ``[[question]]`` tables.

    Args:
        path: of the file.
        workbook: reads the rows of Excel (`pipelines.io.writer.xlsx_rows`); None: Excel is refused.

    Raises:
        UsageError: naming file, line and field.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".xlsx" and workbook:
        rows = _from_cells(workbook(file, ["question"], optional=_KEYS))
    elif reader := _READERS.get(suffix):
        rows = reader(file, read_text(file, "questions file"))
    else:
        raise UsageError(f"{path}: a questions file is .jsonl, .csv, .xlsx or .toml")
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for row in rows:
        question = _question(row)
        if (first := seen.setdefault(question.question_id, row.where)) != row.where:
            same = f"id {question.question_id!r}" if row.values.get("id") is not None else "question"
            raise UsageError(f"{row.where}: the same {same} as in {first}")
        questions.append(question)
    if not questions:
        raise UsageError(f"{path} holds no questions")
    return questions


def _question(row: FileRow) -> Question:
    if unknown := sorted(set(row.values) - _KEYS):
        raise UsageError(f"{row.where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    # A field that is null is not there.
    given = FileRow(row.where, {name: value for name, value in row.values.items() if value is not None})
    text = given.text("question").strip()
    documents = given.several("documents") if "documents" in given.values else ()
    answers = given.several("answers") if "answers" in given.values else None
    if answers is not None and not any(answer.strip() for answer in answers):
        answers = ("",)
    derived = stable_hash(text, documents) if documents else stable_hash(text)
    return Question(given.name("id") if "id" in given.values else derived[:12], text, documents, answers)


def _from_cells(rows: Iterable[FileRow]) -> Iterator[FileRow]:
    for row in rows:
        cells: Json = {name: cell for name, cell in row.values.items() if cell != "" or name == "question"}
        for name in ("answers", "documents"):
            if name in cells:
                cells[name] = [part.strip() for part in cells[name].split("|")]
        yield FileRow(row.where, cells)


def _toml(path: Path, text: str) -> Iterator[FileRow]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from error
    rows = tables.get("question", [])
    if unknown := sorted(set(tables) - {"question"}):
        raise UsageError(f"{path}: unknown key {unknown[0]!r}: write each question as a table [[question]]")
    if not isinstance(rows, list):
        raise UsageError(f"{path}: 'question' must be a table [[question]], one for each question")
    for number, row in enumerate(rows, 1):
        yield FileRow(f"{path}, question {number}", row if isinstance(row, dict) else {})


_json_lines = partial(json_lines, fields="a field 'question'")
_READERS: dict[str, Callable[[Path, str], Iterator[FileRow]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": lambda path, text: _from_cells(csv_rows(path, text, ["question"])),
    ".toml": _toml,
}
