"""Questions from a file: JSON lines, CSV or TOML."""

import csv
import io
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memagent.errors import UsageError
from memagent.records import Json, Question, half, stable_hash

_CELL = 2**24
"""Characters of a CSV cell at most; Python's own limit, 131,072, is less than a long quote."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row, and where it is."""

    where: str
    """File and line."""
    values: Json


def read_text(path: Path, what: str) -> str:
    """Return a file's text, without a byte order mark.

    Raises:
        UsageError: there is no such file (`what` says of which kind), or it cannot be read as UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"no {what} {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def json_lines(path: Path, text: str, fields: str) -> Iterator[FileRow]:
    """Yield the rows of JSON lines; empty lines are passed over.

    Raises:
        UsageError: a line is no JSON, or no object; `fields` says which fields it should have.
    """
    for number, line in enumerate(text.split("\n"), 1):  # texts of documents may hold line ends of other kinds
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON ({error})") from error
        if not isinstance(values, dict):
            raise UsageError(f"{where}: must be an object with {fields}")
        yield FileRow(where, values)


def csv_rows(path: Path, text: str, needed: Sequence[str], advice: str = "") -> Iterator[FileRow]:
    """Yield the rows of CSV with a header; a row that is shorter than the header has empty cells at its end.

    Cells are separated by commas; by semicolons or tabs, as spreadsheets of many countries write them, where only these
    give the header the columns it needs.

    Raises:
        UsageError: the header lacks one of the `needed` columns (`advice` says what to do), a row is longer than the
            header, or the file is no CSV.
    """
    csv.field_size_limit(_CELL)
    lines = io.StringIO(text, newline="")  # quotes of documents hold line ends of other kinds
    reader = csv.DictReader(
        lines, strict=True, delimiter=_delimiter(text, needed)
    )  # strict: a quote that is never closed takes the rest of the file
    begins = 1
    try:
        names = list(reader.fieldnames or [])
        missing = [name for name in needed if name not in names]
        if missing:
            raise UsageError(f"{path}: the header has no column {missing[0]!r}{advice}")
        begins = reader.line_num + 1
        twice = sorted(name for name in set(names) if names.count(name) > 1)
        if twice:
            raise UsageError(f"{path}: the header has column {twice[0]!r} twice")
        for row in reader:
            where, begins = f"{path}, line {reader.line_num}", reader.line_num + 1
            if None in row:
                raise UsageError(f"{where}: more fields than the header has")
            yield FileRow(where, {name: value or "" for name, value in row.items()})
    except csv.Error as error:
        raise UsageError(f"{path}, line {begins}: {error}") from error


def _delimiter(text: str, needed: Sequence[str]) -> str:
    header = text[: text.find("\n") + 1 or len(text)].strip("\r\n")
    for mark in (",", ";", "\t"):
        if set(needed) <= {name.strip('"') for name in header.split(mark)}:
            return mark
    return ","


_KEYS = {"id", "question", "answers", "documents"}


def ask(text: str, where: str = "the question") -> Question:
    """Make a question from its text; the id is derived from the text.

    Raises: UsageError: the text is empty or cannot be stored; the message names `where`."""
    text = text.strip()
    if not text:
        raise UsageError(f"{where} is empty")
    _check_whole(where, text)
    return Question(stable_hash(text)[:12], text)


def load_questions(path: str) -> list[Question]:
    """Load questions.

    Each has `question`, and optionally `id`, `answers` (gold; an empty list or text means that the documents do not
    say) and `documents` (ids or globs). In CSV, several answers or documents are separated by ``|``. A TOML file holds
    them as ``[[question]]`` tables.

    Raises:
        UsageError: naming file, line and field.
    """
    file = Path(path)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a questions file is .jsonl, .csv or .toml")
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for row in reader(file, read_text(file, "questions file")):
        question = _question(row)
        if (first := seen.setdefault(question.question_id, row.where)) != row.where:
            same = f"id {question.question_id!r}" if row.values.get("id") is not None else "question"
            raise UsageError(f"{row.where}: the same {same} as in {first}")
        questions.append(question)
    if not questions:
        raise UsageError(f"{path} holds no questions")
    return questions


def _question(given: FileRow) -> Question:
    where, row = given.where, given.values
    unknown = set(row) - _KEYS
    if unknown:
        raise UsageError(f"{where}: unknown field {sorted(unknown)[0]!r}; known: {', '.join(sorted(_KEYS))}")
    for name, value in row.items():
        for item in value if isinstance(value, list) else [value]:
            _check_whole(f"{where}: field {name!r}", item)
    text = row.get("question")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where}: field 'question' must be a text")
    documents = _texts(given, "documents") or ()
    answers = _texts(given, "answers")
    if answers is not None and not any(answer.strip() for answer in answers):
        answers = ("",)
    identity = row.get("id")
    if identity is not None and (
        isinstance(identity, bool) or not isinstance(identity, str | int) or not str(identity).strip()
    ):
        raise UsageError(f"{where}: field 'id' must be a text")
    question_id = stable_hash(text.strip(), documents)[:12] if documents else stable_hash(text.strip())[:12]
    return Question(str(identity) if identity is not None else question_id, text.strip(), documents, answers)


def _check_whole(where: str, value: object) -> None:
    if isinstance(value, str) and (surrogate := half(value)):
        raise UsageError(f"{where} holds {surrogate}, an unpaired surrogate: write the file again as UTF-8")


def _texts(row: FileRow, name: str) -> tuple[str, ...] | None:
    value = row.values.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (str(value),)
    if isinstance(value, list) and all(isinstance(i, str | int | float) and not isinstance(i, bool) for i in value):
        return tuple(str(item) for item in value)
    raise UsageError(f"{row.where}: field {name!r} must be a text or a list of texts")


def _json_lines(path: Path, text: str) -> Iterator[FileRow]:
    return json_lines(path, text, "a field 'question'")


def _csv(path: Path, text: str) -> Iterator[FileRow]:
    for row in csv_rows(path, text, ["question"]):
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


_READERS = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv, ".toml": _toml}
