"""Feedback: people's verdicts on answers come back, from the file that the answers were taken away in."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.store import Store
from infra.tables.delta import Table, now
from infra.tables.qa import answers_of
from memagent.errors import UsageError
from memagent.records import half
from memagent.row_files import FileRow, csv_rows, json_lines, read_text

VERDICTS = ("accepted", "rejected", "corrected")
_NEEDED = ("reading_id", "verdict")
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody says of one answer."""

    reading_id: str
    verdict: str
    answer: str
    """What is right, where it was corrected; empty: the documents do not say."""
    where: str


def load_verdicts(path: Path) -> tuple[list[Verdict], int]:
    """Read a .csv or .jsonl file; return its verdicts, and how many rows have none.

    Columns are `reading_id`, `verdict` and, for what was corrected, `answer`; others are passed over, so that a file
    of ``memagent answers --format csv`` with a column more will do. A row with an empty verdict says nothing.

    Raises:
        UsageError: naming file, line and what is wrong.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a feedback file is .csv or .jsonl")
    found: dict[str, Verdict] = {}
    silent = 0
    for row in reader(path, read_text(path, "feedback file")):
        said = _verdict(row.where, row.values)
        if said is None:
            silent += 1
            continue
        before = found.setdefault(said.reading_id, said)
        if (before.verdict, before.answer) != (said.verdict, said.answer):
            raise UsageError(f"{said.where}: {before.where} says something else of the same reading; leave one of them")
    return list(found.values()), silent


def take_feedback(store: Store, path: Path, corpus: str | None = None) -> dict[str, Any]:
    """Keep the verdicts of a file; return the summary. What was said before, word for word, is not kept twice.

    The corpus is found from the reading; a reading that several corpora have is told of in all of them.

    Raises:
        UsageError: the file cannot be used, holds no verdict, or knows none of the readings.
    """
    said, silent = load_verdicts(path)
    if not said:
        raise UsageError(f"{path} holds no verdict: fill the column verdict with {', '.join(VERDICTS)}")
    corpora: dict[str, list[str]] = defaultdict(list)
    for row in answers_of(store, corpus, [one.reading_id for one in said]):
        corpora[row["reading_id"]].append(row["corpus"])
    unknown = [one for one in said if one.reading_id not in corpora]
    if len(unknown) == len(said):
        whose = f"corpus {corpus!r}" if corpus else "any corpus"
        raise UsageError(
            f"{path}: none of its {len(said)} readings was answered in {whose} of {store.url}: see --store"
        )
    table, at = Table(store, "feedback"), now()
    before = {}
    for row in table.read(corpus).sort_by("given_at").to_pylist():
        before[row["corpus"], row["reading_id"]] = (row["verdict"], row["answer"])
    rows = [
        {"corpus": name, "reading_id": one.reading_id, "verdict": one.verdict, "answer": one.answer, "given_at": at}
        for one in said
        for name in corpora[one.reading_id]
    ]
    new = [row for row in rows if before.get((row["corpus"], row["reading_id"])) != (row["verdict"], row["answer"])]
    table.insert_new(new)
    return {
        "kind": "feedback",
        "corpus": sorted({row["corpus"] for row in rows}),
        "verdicts": dict(Counter(row["verdict"] for row in new)),
        "known_before": len(rows) - len(new),
        "without_verdict": silent,
        "unknown_readings": len(unknown),
        "unknown": [f"{one.where}: {one.reading_id}" for one in unknown[:_MOST_SHOWN]],
    }


def _verdict(where: str, row: dict[str, Any]) -> Verdict | None:
    if "reading_id" not in row:
        raise UsageError(f"{where}: no field 'reading_id'; a feedback file has reading_id, verdict and answer")
    values = {name: "" if row.get(name) is None else row[name] for name in (*_NEEDED, "answer")}
    for name, value in values.items():
        if not isinstance(value, str):
            raise UsageError(f"{where}: field {name!r} must be a text")
        if found := half(value):
            raise UsageError(f"{where}: field {name!r} holds {found}, which is half of a character and no text")
    verdict = values["verdict"].strip().lower()
    if not verdict:
        return None
    if verdict not in VERDICTS:
        raise UsageError(f"{where}: verdict {values['verdict']!r} is none of {', '.join(VERDICTS)}")
    if not values["reading_id"].strip():
        raise UsageError(f"{where}: the reading_id is empty")
    if verdict == "corrected" and "answer" not in row:
        raise UsageError(f"{where}: corrected to what? Add a column 'answer' (empty: the documents do not say)")
    answer = _untamed(values["answer"].strip()) if verdict == "corrected" else ""
    return Verdict(values["reading_id"].strip(), verdict, answer, where)


def _untamed(cell: str) -> str:
    """Take off the mark that keeps a spreadsheet from running a cell (`pipelines.exchange.answers`)."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@") else cell


def _json_lines(path: Path, text: str) -> Iterator[FileRow]:
    return json_lines(path, text, "reading_id and verdict")


def _csv(path: Path, text: str) -> Iterator[FileRow]:
    advice = (
        ". Take the answers with memagent answers CORPUS --format csv, and add a column verdict: accepted, rejected or "
        "corrected (then answer holds what is right)"
    )
    return csv_rows(path, text, _NEEDED, advice)


_READERS = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
