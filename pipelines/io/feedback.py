"""Import feedback: people's verdicts on answers, from a file of exported answers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict, cast

from infra.store.claims import used
from infra.store.delta import Table
from infra.store.feedback import FEEDBACK_CLAIM, FeedbackTarget, answers_of, feedback_row, judged
from infra.store.location import Corpus, Store
from infra.store.runs import new_run_id
from infra.store.schemas import now
from memagent.errors import UsageError
from memagent.quality.verdicts import ABSENT, COUNTING, as_meant, current, disputed, right_answer
from memagent.questions import FileRow, csv_rows, json_lines, read_text
from memagent.records import Json, half
from pipelines.io.writer import without_prefix, xlsx_rows

_NEEDED = ("reading_id", "verdict")
_OPTIONAL = ("answer", "review", "engine_answer")
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """A verdict on one answer, as a file gives it."""

    reading_id: str
    verdict: Literal["accepted", "rejected", "corrected"]
    answer: str
    """As the table has it."""
    where: str
    on_correction: bool = False
    """Whether it is on a correction, which the file shows in place of the reader's answer."""
    shown: str | None = None
    """What the file shows for the reader's answer, where nothing else in it tells whether that was edited."""
    engine_answer: str | None = None
    """The reader's answer, where the file has it: a spreadsheet may have changed how it is written."""


class FeedbackSummary(TypedDict):
    """The summary of an import of feedback; counts are of verdicts."""

    kind: str
    corpus: list[str]
    verdicts: dict[str, int]
    not_in_document: int
    """Of these, corrections without an answer: the documents do not say."""
    disputed: int
    """Answers of these corpora on which people contradict each other now."""
    list_disputed: list[str]
    """The commands that list them."""
    known_before: int
    without_verdict: int
    unknown_readings: int
    unknown: list[str]
    """The first few, with file and line."""


def load_verdicts(path: Path) -> tuple[list[FileVerdict], int]:
    """Read a .csv, .xlsx or .jsonl file; return its verdicts and the number of rows without one.

    Columns are `reading_id`, `verdict` and, for corrections, `answer`. Others are ignored, so a file of ``memagent
    answers --format csv`` with a verdict column works. Rows with an empty verdict are skipped.

    Raises UsageError: the file is malformed; the message has file and line.
    """
    verdicts: dict[str, FileVerdict] = {}
    empty = 0
    for row in _file_rows(path):
        verdict = _verdict(row.where, row.values)
        if verdict is None:
            empty += 1
            continue
        before = verdicts.setdefault(verdict.reading_id, verdict)
        if (before.verdict, before.answer) != (verdict.verdict, verdict.answer):
            raise UsageError(f"{verdict.where}: {before.where} says something else of the same reading; keep one")
    return list(verdicts.values()), empty


def take_feedback(store: Store, path: Path, corpus: str | None = None, reviewer: str = "") -> FeedbackSummary:
    """Store the verdicts of a file, as those of a reviewer; return the summary. Known verdicts are skipped.

    The corpus is looked up by reading; a reading of several corpora gets the verdict in each. Waits for a run that has
    the whole store: what it forgets is looked up after it.

    Raises UsageError: the file is malformed, has no verdict, or none of its readings exists.
    """
    verdicts, empty = load_verdicts(path)
    if not verdicts:
        raise UsageError(f"{path} holds no verdict: fill the column verdict with {', '.join(COUNTING)}")
    _homes(store, path, verdicts, corpus)  # before anything is written: it may be another store than was meant
    with used(Corpus(store, FEEDBACK_CLAIM), new_run_id(), wait=True, show=None):
        return _add(store, verdicts, _homes(store, path, verdicts, corpus), empty, corpus, reviewer)


def _homes(store: Store, path: Path, verdicts: Sequence[FileVerdict], corpus: str | None) -> dict[str, list[str]]:
    """Return the corpora that have the readings, by reading.

    Raises UsageError: none has any, or the answer or correction that a verdict is on was never given: it was edited.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    corrections: dict[str, set[str]] = defaultdict(set)
    judged_in = cache(lambda name: judged(Corpus(store, name)))
    by_reading = {verdict.reading_id: verdict for verdict in verdicts}
    for row in answers_of(store, corpus, by_reading):
        homes[row["reading_id"]].append(row["corpus"])
        verdict = by_reading[row["reading_id"]]
        if verdict.shown is not None and verdict.shown.split() != row["answer"].split():
            raise UsageError(f"{verdict.where}: {_EDITED}")
        if verdict.engine_answer is not None and not _may_be_one(verdict.engine_answer, row["answer"]):
            raise UsageError(f"{verdict.where}: {_SORTED}")
        if verdict.on_correction:
            same = judged_in(row["corpus"]).get(FeedbackTarget(row["content_hash"], row["question"]), ())
            rights = (each.verdict.right for each in same)
            corrections[row["reading_id"]] |= {as_meant(right) for right in rights if right is not None}
    for name, known in corrections.items():
        if as_meant(right_answer(by_reading[name].answer)) not in known:
            raise UsageError(f"{by_reading[name].where}: {_EDITED}")
    if not homes:
        scope = f"corpus {corpus!r}" if corpus else "any corpus"
        raise UsageError(
            f"{path}: none of its {len(verdicts)} readings was answered in {scope} of {store.url}: see --store"
        )
    return homes


def _may_be_one(cell: str, answer: str) -> bool:
    """Whether a cell may be what a spreadsheet has made of an answer: it writes numbers and dates in its own way."""
    if not any(char.isdigit() for char in cell + answer):
        return cell.casefold().split() == answer.casefold().split()
    return not (cell.isdecimal() and answer.isdecimal()) or int(cell) == int(answer)


def _add(
    store: Store,
    verdicts: Sequence[FileVerdict],
    homes: dict[str, list[str]],
    empty: int,
    corpus: str | None,
    reviewer: str,
) -> FeedbackSummary:
    unknown = [verdict for verdict in verdicts if verdict.reading_id not in homes]
    table, given_at = Table(store, "feedback"), now()
    stored = {}
    for row in table.read(corpus).sort_by("given_at").to_pylist():
        given_at = max(given_at, row["given_at"] + timedelta(microseconds=1))  # another clock may be ahead
        if (row["reviewer"] or "") == reviewer and row["verdict"] != "comment":  # others' verdicts are another matter
            stored[row["corpus"], row["reading_id"]] = (row["verdict"], row["answer"])
    rows = [
        feedback_row((name, verdict.reading_id), reviewer, given_at, verdict.verdict, verdict.answer)
        for verdict in verdicts
        for name in homes.get(verdict.reading_id, ())
    ]
    new = [row for row in rows if stored.get((row["corpus"], row["reading_id"])) != (row["verdict"], row["answer"])]
    table.insert_new(new)
    corpora = sorted({row["corpus"] for row in rows})
    disputes = {
        name: sum(disputed(current(each.verdict for each in same)) for same in judged(Corpus(store, name)).values())
        for name in corpora
    }
    return {
        "kind": "feedback",
        "corpus": corpora,
        "verdicts": dict(Counter(row["verdict"] for row in new)),
        "not_in_document": sum(row["verdict"] == "corrected" and not row["answer"] for row in new),
        "disputed": sum(disputes.values()),
        "list_disputed": [f"memagent answers {name} --where review=disputed" for name in corpora if disputes[name]],
        "known_before": len(rows) - len(new),
        "without_verdict": empty,
        "unknown_readings": len(unknown),
        "unknown": [f"{verdict.where}: {verdict.reading_id}" for verdict in unknown[:_MOST_SHOWN]],
    }


def _verdict(where: str, row: Json) -> FileVerdict | None:
    if "reading_id" not in row:
        raise UsageError(f"{where}: no field 'reading_id'; a feedback file has reading_id, verdict and answer")
    values = {name: "" if row.get(name) is None else row[name] for name in (*_NEEDED, *_OPTIONAL)}
    for name, value in values.items():
        if not isinstance(value, str):
            raise UsageError(f"{where}: field {name!r} must be a text")
        if surrogate := half(value):
            raise UsageError(f"{where}: field {name!r} holds {surrogate}, an unpaired surrogate")
    verdict = values["verdict"].strip().lower()
    by_reader = "corrected" not in (verdict, values["review"]) and {"answer", "engine_answer"} <= row.keys()
    if by_reader and values["answer"].split() != values["engine_answer"].split():  # they are exported as one text
        raise UsageError(f"{where}: {_EDITED}")
    if not verdict:
        return None
    if verdict not in COUNTING:
        raise UsageError(f"{where}: verdict {values['verdict']!r} is none of {', '.join(COUNTING)}")
    if not values["reading_id"].strip():
        raise UsageError(f"{where}: the reading_id is empty")
    on_correction = values["review"] == "corrected" and verdict != "corrected"
    if "answer" not in row and (verdict == "corrected" or on_correction):
        raise UsageError(f"{where}: corrected to what? Add a column 'answer' (empty: the documents do not say)")
    answer = right_answer(values["answer"].strip()) if verdict == "corrected" or on_correction else ""
    if verdict == "accepted" and on_correction:
        verdict = "corrected"
    elif verdict == "rejected" and on_correction:
        answer = answer or ABSENT
    kind = cast(Literal["accepted", "rejected", "corrected"], verdict)
    shown = values["answer"] or None if kind == "accepted" and "engine_answer" not in row else None
    by_engine = values["engine_answer"] if "engine_answer" in row else None
    return FileVerdict(values["reading_id"].strip(), kind, answer, where, on_correction, shown, by_engine)


_EDITED = (
    "its answer is not the one that was exported. To change an answer, set verdict to corrected; "
    "keep the columns engine_answer and review"
)
_SORTED = "its engine_answer is not this reading's: were the rows sorted without the column reading_id?"
_ADVICE = (
    ". Take the answers with memagent answers CORPUS -o answers.xlsx (or .csv), and add a column verdict: accepted, "
    "rejected or corrected (then answer holds what is right)"
)


def _file_rows(path: Path) -> Iterator[FileRow]:
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        return xlsx_rows(path, _NEEDED, _ADVICE, _OPTIONAL)
    if suffix not in (".csv", ".jsonl", ".ndjson"):
        raise UsageError(f"{path}: a feedback file is .csv, .xlsx or .jsonl")
    text = read_text(path, "feedback file")
    if suffix == ".csv":
        rows = csv_rows(path, text, _NEEDED, _ADVICE)
        return (FileRow(row.where, {name: without_prefix(cell) for name, cell in row.values.items()}) for row in rows)
    return json_lines(path, text, "reading_id and verdict")
