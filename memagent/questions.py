"""Questions from a file: JSON lines, CSV or TOML."""

import csv
import io
import json
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memagent.errors import UsageError
from memagent.records import Question, half, stable_hash

_KEYS = {"id", "question", "answers", "documents"}


def ask(text: str, place: str = "the question") -> Question:
    """Make a question from its text; the id is derived from the text.

    Raises:
        UsageError: naming `place`: there is no text, or it is none that could be kept.
    """
    text = text.strip()
    if not text:
        raise UsageError(f"{place} is empty")
    _check_whole(place, text)
    return Question(stable_hash(text)[:12], text)


def load_questions(path: str) -> list[Question]:
    """Load questions.

    Each has `question`, and optionally `id`, `answers` (gold; an empty list or text says that the
    documents do not tell) and `documents` (ids or globs). In CSV, several answers or documents
    are separated by ``|``. A TOML file holds them as ``[[question]]`` tables.

    Raises:
        UsageError: naming file, line and field.
    """
    file = Path(path)
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv, ".toml": _toml}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a questions file is .jsonl, .csv or .toml")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"no questions file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    questions = [_question(path, place, row) for place, row in reader(path, text)]
    if not questions:
        raise UsageError(f"{path} holds no questions")
    seen: dict[str, str] = {}
    for question in questions:
        if question.question_id in seen:
            raise UsageError(f"{path}: id {question.question_id!r} stands twice; ids must differ")
        seen[question.question_id] = question.text
    return questions


def _question(path: str, place: str, row: dict[str, Any]) -> Question:
    unknown = set(row) - _KEYS
    if unknown:
        raise UsageError(f"{path}, {place}: unknown field {sorted(unknown)[0]!r}; known: {', '.join(sorted(_KEYS))}")
    for name, value in row.items():
        for one in value if isinstance(value, list) else [value]:
            _check_whole(f"{path}, {place}: field {name!r}", one)
    text = row.get("question")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{path}, {place}: field 'question' must be a text")
    documents = _texts(path, place, "documents", row.get("documents")) or ()
    answers = _texts(path, place, "answers", row.get("answers"))
    if answers is not None and not any(answer.strip() for answer in answers):
        answers = ("",)
    identity = row.get("id")
    if identity is not None and (not isinstance(identity, str | int) or identity == ""):
        raise UsageError(f"{path}, {place}: field 'id' must be a text")
    made = stable_hash(text.strip(), documents)[:12] if documents else stable_hash(text.strip())[:12]
    return Question(str(identity) if identity is not None else made, text.strip(), documents, answers)


def _check_whole(place: str, value: object) -> None:
    if isinstance(value, str) and (found := half(value)):
        raise UsageError(f"{place} holds {found}, which is half of a character and no text: write it anew as UTF-8")


def _texts(path: str, place: str, name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return tuple(str(item) for item in value)
    raise UsageError(f"{path}, {place}: field {name!r} must be a text or a list of texts")


def _json_lines(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: must be an object with a field 'question'")
        yield f"line {number}", row


def _csv(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if "question" not in (reader.fieldnames or []):
        raise UsageError(f"{path}: the header has no column 'question'")
    for row in reader:
        place = f"line {reader.line_num}"
        if None in row:
            raise UsageError(f"{path}, {place}: more fields than the header has")
        cells: dict[str, Any] = {k: v for k, v in row.items() if v is not None}
        cells = {k: v for k, v in cells.items() if v != "" or k == "question"}
        for name in ("answers", "documents"):
            if name in cells:
                cells[name] = [part.strip() for part in cells[name].split("|")]
        yield place, cells


def _toml(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        rows: Iterable[Any] = tomllib.loads(text).get("question", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        yield f"question {number}", row if isinstance(row, dict) else {}
