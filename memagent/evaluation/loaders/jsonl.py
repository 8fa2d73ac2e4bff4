"""Rows of a JSON file, each knowing where it stands, so that what is wrong with it can be found again."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from memagent.errors import UsageError
from memagent.evaluation.texts import Match, Sample, Whole
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


FIELDS = frozenset({"index", "input", "outputs", "length"})

_TAIL = 4000
"""Characters at the end of an input among which its question is looked for."""
_QUESTION = re.compile(
    r"(?P<needle>What (?:is|are all) the special magic [^\n]+? mentioned in the provided text\?)"
    r"|(?:Answer the question based on the given documents\.[^\n]*\s+)?"
    r"\bQuestion:[ \t]*(?P<asked>[^\n]+?)(?=\s*Answer:|[ \t]*(?:\n|\Z))"
)
_DOCUMENTS = "Answer the question based on the given documents."
_SPLITS = frozenset({"validation", "test", "train", "dev"})


def read(path: Path, rows: Iterable[JsonRow]) -> Iterator[Sample]:
    """Yield the samples of a file; an id ends with the record's number in it, from 0.

    `index` is no id: ``niah.py`` writes the place of the answer there, which several samples can share.
    `input` holds instruction, text and question in one. The question is the last one near the end in RULER's wording
    ("What are all the special magic ... mentioned in the provided text?", "Question: ..."; what follows it, such as
    the start of an answer, is dropped); where there is none, the last line that is not blank is asked. The text is
    what stands before the question, the instruction at its start included.
    The task is named after the file, or after its folder where the file is called validation.jsonl as RULER does;
    The length asked for is the folder's in RULER's layout (``8192/data/vt/validation.jsonl``), else unknown: a record's
    `length` is what its input came to, other for each, and is kept in ``about["tokens"]``. Facts are not known.
    A file that `memagent.evaluation.ruler` wrote says all this itself ("text_end": where in its input the text ends).
    """
    task = path.parent.name if path.stem in _SPLITS and path.parent.name else path.stem
    asked = _asked(path)
    names = ColumnNames()
    for number, row in enumerate(rows):
        row.whole("index")
        if "text_end" in row.values:
            yield _written(row, names)
            continue
        text, question = split(row.text("input"))
        if not question:
            raise row.wrong("input", "a single line; text and question are needed.")
        documents = task.startswith("qa") or _DOCUMENTS in row.values["input"][-_TAIL:]
        yield Sample(
            sample_id=f"{task}/{asked}/{number}" if asked else f"{task}/{number}",
            task=task,
            length=asked,
            pieces=Whole(text),
            question=question,
            answers=row.texts("outputs"),
            match="part" if documents else "all",
            about={"tokens": row.whole("length")},
        )


def _asked(path: Path) -> int:
    folders = path.parent.parent
    return int(folders.parent.name) if folders.name == "data" and folders.parent.name.isdecimal() else 0


def _written(row: JsonRow, names: ColumnNames) -> Sample:
    prompt, end, depth, about = row.text("input"), row.whole("text_end"), row.get("depth"), row.get("about")
    if end > len(prompt):
        raise row.wrong("text_end", f"{end}, but the input has {len(prompt)} characters.")
    match = next((known for known in get_args(Match) if known == row.text("match")), None)
    if match is None:
        raise row.wrong("match", f"one of {', '.join(get_args(Match))} is needed.")
    if not (depth is None or isinstance(depth, int | float)):
        raise row.wrong("depth", "a number or null is needed.")
    if not isinstance(about, dict):
        raise row.wrong("about", "an object is needed.")
    return Sample(
        sample_id=names.add(row, "sample_id", row.text("sample_id")),
        task=row.text("task"),
        length=row.whole("length"),
        pieces=Whole(prompt[:end]),
        question=row.text("question"),
        answers=row.texts("outputs", blank=True),
        match=match,
        facts=row.texts("facts") if row.list("facts") else (),
        depth=depth,
        about=about,
    )


def split(prompt: str) -> tuple[str, str]:
    """Return (text, question) of a prompt; the question is empty where the prompt is a single line."""
    start = max(0, len(prompt) - _TAIL)
    questions = list(_QUESTION.finditer(prompt, start))
    if questions:
        question = questions[-1]["needle"] or questions[-1]["asked"]
        text = prompt[: questions[-1].start()].rstrip()
    else:
        text, _, question = prompt.rstrip().rpartition("\n")
        text = text.rstrip()
    return (text, question.strip()) if text.strip() else ("", "")
