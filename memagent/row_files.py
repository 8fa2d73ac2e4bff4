"""Row files of users: JSON lines or CSV. Each row knows its file and line, for error messages."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memagent.errors import UsageError
from memagent.records import Json

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
