"""Records of users' own files: a question, the texts it is asked of and the right answers, in the columns of several
tools.

Known are a file of one's own (`question`, `documents` or `text`, `answers`), verl's and MemAgent's training files
(`prompt`, `context`, `reward_model`, `extra_info`), MemAgent's evaluation files (`input`, `context`, `answers`) and
OpenRLHF's (`prompt` or `input`, `label`). Other columns are named by `Columns`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from memagent.errors import UsageError
from memagent.evaluation.loaders import FileFormat
from memagent.evaluation.loaders.public import split
from memagent.evaluation.texts import Sample, Whole
from memagent.questions import FileRow
from memagent.records import text_hash

_TEXT = ("documents", "text", "context")
_ANSWERS = ("answers", "answer")
_PROMPT = ("prompt", "input")
_LABEL = ("label", "output", "answer")


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One question on one or several texts."""

    question: str
    documents: tuple[str, ...]
    """In reading order."""
    answers: tuple[str, ...]
    """Right answers; one empty text where the documents do not say."""


class IncompleteRecord(UsageError):
    """A record without question, text or answer: an import leaves it out, and counts it."""

    def __init__(self, message: str, lacks: str) -> None:
        super().__init__(message)
        self.lacks = lacks
        """question, answer or context."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a file; all three are named, or none."""

    question: str = ""
    text: str = ""
    """A text, or a list of texts."""
    answers: str = ""

    def __bool__(self) -> bool:
        return bool(self.question)


def columns_of(given: Sequence[str]) -> Columns:
    """Read ``question=NAME``, ``text=NAME`` and ``answers=NAME``.

    Raises:
        UsageError: one is unknown, missing or given twice.
    """
    names = [field.name for field in fields(Columns)]
    columns: dict[str, str] = {}
    for item in given:
        key, _, value = item.partition("=")
        if key not in names or not value or key in columns:
            raise UsageError(f"columns {item!r}: give {', '.join(f'{name}=NAME' for name in names)}, each once")
        columns[key] = value
    missing = [name for name in names if given and name not in columns]
    if missing:
        raise UsageError(f"columns: {missing[0]}=NAME is missing; give {', '.join(f'{name}=NAME' for name in names)}")
    return Columns(**columns)


Parse = Callable[[FileRow], TaskRecord]
"""Reads a record; what is wrong with it is a `UsageError` that names file, line and field."""


class RecordFormat(NamedTuple):
    """The columns of one tool."""

    needed: tuple[tuple[str, ...], ...]
    """Groups of columns, one of each of which a record has."""
    read: Parse

    def fits(self, columns: Collection[str]) -> bool:
        """Whether a file with these columns is of this format."""
        return all(any(name in columns for name in names) for names in self.needed)


def _plain(question: str, text: Sequence[str], answers: Sequence[str]) -> RecordFormat:
    """Return the format that has a column for each, text and answers under one of some names."""

    def read(row: FileRow) -> TaskRecord:
        return _record(row, question, text=_first(row, text), answers=_first(row, answers))

    return RecordFormat(((question,), tuple(text), tuple(answers)), read)


def _verl(row: FileRow) -> TaskRecord:
    extra, reward = row.values.get("extra_info"), row.get("reward_model")
    question = extra.get("question") if isinstance(extra, dict) else None
    if not isinstance(reward, dict) or "ground_truth" not in reward:
        raise row.wrong("reward_model", "an object with ground_truth is needed.")
    given = None if reward["ground_truth"] == [] else reward["ground_truth"]  # nobody means by it that there is none
    gold = FileRow(row.where, {"reward_model.ground_truth": given})
    answers = _answers(gold, "reward_model.ground_truth")
    prompt = question if isinstance(question, str) and question.strip() else _asked(row, "prompt")
    if "context" not in row.values:
        text, prompt = _parted(row, "prompt", prompt)
        return TaskRecord(prompt, (text,), answers)
    return TaskRecord(prompt.strip(), _texts(row, "context"), answers)


def _openrlhf(row: FileRow) -> TaskRecord:
    if row.values.get("question") is not None and row.values.get("context") is not None:
        return _record(row, "question", text="context", answers=_first(row, ("answers", *_LABEL)))
    field = _first(row, _PROMPT)
    text, question = _parted(row, field, _asked(row, field))
    return TaskRecord(question, (text,), _answers(row, _first(row, _LABEL)))


FORMATS: dict[str, RecordFormat] = {
    "verl": RecordFormat((("prompt",), ("reward_model",)), _verl),
    "memagent": _plain("input", ("context",), ("answers",)),
    "openrlhf": RecordFormat((_PROMPT, ("label", "output")), _openrlhf),
    "own": _plain("question", _TEXT, _ANSWERS),
}
"""By name, in the order in which a file is tried."""
KNOWN_COLUMNS = frozenset((*_TEXT, *_ANSWERS, *_PROMPT, *_LABEL, "question", "reward_model", "extra_info"))
"""All that any of them reads."""


def parser(where: str, names: Sequence[str], columns: Columns | None = None, format: str | None = None) -> Parse:
    """Return what reads the records of a file, which messages call `where`, by the names of its columns.

    `columns` are those that hold question, text and answers, where they are of no known format; `format` is one of
    `FORMATS`, by default the one that has these columns.

    Raises:
        UsageError: the format is unknown, not recognised, or a column is missing.
    """
    if columns:
        missing = [name for name in (columns.question, columns.text, columns.answers) if name not in names]
        if missing:
            raise UsageError(f"{where} has no column {missing[0]!r}; it has {', '.join(names)}")
        return _plain(columns.question, (columns.text,), (columns.answers,)).read
    if format is not None and format not in FORMATS:
        raise UsageError(f"no format {format!r}. There are: {', '.join(FORMATS)}")
    for name, known in FORMATS.items():
        if format in (None, name) and known.fits(names):
            return known.read
    wanted = {name: known for name, known in FORMATS.items() if format in (None, name)}
    described = "; ".join(
        f"{name}: {', '.join(' or '.join(group) for group in known.needed)}" for name, known in wanted.items()
    )
    raise UsageError(
        f"{where} has the columns {', '.join(names) or '(none)'}, which are not enough. Needed are {described}; or "
        "name yours: --columns question=NAME --columns text=NAME --columns answers=NAME"
    )


def read_own(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of a file that could be trained on; an answer is right as it is for training."""
    rest = iter(rows)
    first = next(rest)
    parse = parser(str(path), list(first.values))
    for number, row in enumerate(chain([first], rest)):
        record = parse(row)
        text = Whole("\n\n".join(record.documents))
        sample = Sample(f"{path.stem}/{number}", path.stem, 0, text, record.question, record.answers, match="exact")
        yield replace(sample, origins=tuple(map(text_hash, record.documents)))


OWN = FileFormat(
    frozenset({"question", "text", "answers"}),
    read_own,
    lambda names: any(known.fits(names) for known in FORMATS.values()),
)
"""Users' own files among the formats of evaluation."""


def _record(row: FileRow, question: str, text: str, answers: str) -> TaskRecord:
    asked = _given(row, question, "question")
    return TaskRecord(asked.text(question).strip(), _texts(row, text), _answers(row, answers))


def _given(row: FileRow, field: str, what: str) -> FileRow:
    """Return the row if it has something in a field.

    Raises:
        IncompleteRecord: it has null, or a blank text.
    """
    value = row.get(field)
    blank = isinstance(value, str) and not value.strip() and what != "answer"  # a blank answer: there is none
    if value is None or blank:
        problem = row.wrong(field, f"{'blank' if blank else 'null'}; {'a text' if blank else 'a value'} is needed.")
        raise IncompleteRecord(str(problem), what)
    return row


def _first(row: FileRow, names: Sequence[str]) -> str:
    """Return the first of some fields that a record has; the first one where it has none, so that it is missed."""
    return next((name for name in names if row.values.get(name) is not None), names[0])


def _texts(row: FileRow, field: str) -> tuple[str, ...]:
    given = _given(row, field, "context")
    return given.texts(field) if isinstance(given.get(field), list) else (given.text(field),)


def _answers(row: FileRow, field: str) -> tuple[str, ...]:
    """Return the answers of a field: texts or numbers, one or a list; nothing but blank ones: not in the text."""
    answers = _given(row, field, "answer").several(field)
    given = tuple(answer for answer in answers if answer.strip())
    if given and len(given) < len(answers):
        raise row.wrong(field, "a blank one among the answers. Leave it out, or give it alone: the text does not say.")
    return given or ("",)


def _asked(row: FileRow, field: str) -> str:
    """Return a prompt: a text, or the content of the last message of a user."""
    messages = _given(row, field, "question").get(field)
    if not isinstance(messages, list):
        return row.text(field)
    turns = [turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "user"]
    if not turns:
        raise row.wrong(field, "a text, or a list with a user's message, is needed.")
    return _given(FileRow(row.where, {field: turns[-1].get("content")}), field, "question").text(field)


def _parted(row: FileRow, field: str, prompt: str) -> tuple[str, str]:
    """Return (text, question) of a prompt that holds both."""
    text, question = split(prompt)
    if not question:
        raise row.wrong(field, "a single line, and no column context; the text is needed as well as the question.")
    return text, question
