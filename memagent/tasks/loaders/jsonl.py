"""Rows of a JSON file, each knowing where it stands, so that what is wrong with it can be found again."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.errors import UsageError
from memagent.records import Json

_HALF = re.compile("[\ud800-\udfff]")
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class JsonRow:
    """A JSON object and where it stands: file and line, or file and index in a list."""

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

    def whole(self, field: str) -> int:
        """Return a whole number, 0 or more."""
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(field, f"{_kind(value)}; a whole number from 0 is needed.")
        return value

    def name(self, field: str) -> str:
        """Return an identifier, a text or a whole number, as text."""
        value = self.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._text(field, value, blank=False)

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

    def rows(self, field: str) -> "Iterator[JsonRow]":
        """Yield the objects of a list."""
        for i, value in enumerate(self.list(field)):
            if not isinstance(value, dict):
                raise self.wrong(f"{field}[{i}]", f"{_kind(value)}; an object is needed.")
            yield JsonRow(f"{self.where}, {field}[{i}]", value)

    def _text(self, field: str, value: Any, *, blank: bool) -> str:
        if not isinstance(value, str):
            raise self.wrong(field, f"{_kind(value)}; a text is needed.")
        if not blank and not value.strip():
            raise self.wrong(field, "blank; a text is needed.")
        if _HALF.search(value):
            raise self.wrong(field, "holds half of a surrogate pair, which is no text. Write the file anew as UTF-8.")
        return value


class ColumnNames:
    """The identifiers of a file, none twice."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def add(self, row: JsonRow, field: str, name: str) -> str:
        """Return `name`, new to the file.

        Raises:
            UsageError: a record before has it.
        """
        if (before := self._first.setdefault(name, row.where)) is not row.where:
            raise row.wrong(field, f"{name!r} is the one of another record ({before}). Give each its own.")
        return name


def read_rows(path: Path) -> Iterator[JsonRow]:
    """Yield the records of a file: JSON lines one by one, lazily; the items of a JSON list; or one JSON document.

    A list or document is parsed as a whole and so held in memory.

    Raises:
        UsageError: the file cannot be read, is empty, is no UTF-8 or no JSON; names file and line (or index).
    """
    try:
        with path.open("rb") as file:
            number, first = _first_line(file, path)
            opening = first.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
            if opening.startswith(b"[") or opening.strip(_BLANK) == b"{":
                yield from _document(path, first + file.read(), number)
                return
            if path.suffix.lower() == ".json" and not _complete(first):
                yield from _document(path, first + file.read(), number)
                return
            yield _line(path, number, first)
            for following, line in enumerate(file, number + 1):
                if line.strip(_BLANK):
                    yield _line(path, following, line)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give a file that can be.") from error


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        UsageError: it cannot be read or is no UTF-8; names file and line.
    """
    try:
        return _decode(path, path.read_bytes(), 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give a file that can be.") from error


def _first_line(file: Any, path: Path) -> tuple[int, bytes]:
    for number, line in enumerate(file, 1):
        if line.removeprefix(b"\xef\xbb\xbf").strip(_BLANK):
            return number, line
    raise UsageError(f"{path}, line 1: the file is empty. Give one with records.")


def _complete(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _document(path: Path, data: bytes, line: int) -> Iterator[JsonRow]:
    value = _parse(path, _decode(path, data, line), line)
    if isinstance(value, dict):
        yield JsonRow(str(path), value)
        return
    if not value:
        raise UsageError(f"{path}, line {line}: the list is empty. Give a file with records.")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise UsageError(f"{path}, index {i}: {_kind(item)}; a record (JSON object) is needed.")
        yield JsonRow(f"{path}, index {i}", item)


def _line(path: Path, number: int, line: bytes) -> JsonRow:
    value = _parse(path, _decode(path, line, number), number)
    if not isinstance(value, dict):
        raise UsageError(f"{path}, line {number}: {_kind(value)}; a record (JSON object) is needed.")
    return JsonRow(f"{path}, line {number}", value)


def _decode(path: Path, data: bytes, line: int) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = line + data.count(b"\n", 0, error.start)
        raise UsageError(
            f"{path}, line {bad_line}: byte 0x{data[error.start]:02x} is not UTF-8. Write the file anew as UTF-8."
        ) from error


def _parse(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}, line {line + error.lineno - 1}, column {error.colno}: no JSON ({error.msg}). "
            "The file may be cut off or damaged; get it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, line {line}: no JSON that can be read ({error}).") from error


def _kind(value: Any) -> str:
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    # A Parquet file has more kinds: bytes, dates, decimals.
    return "null" if value is None else names.get(type(value), f"a value of type {type(value).__name__}")
