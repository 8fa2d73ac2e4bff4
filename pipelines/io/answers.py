"""Export the answers of a corpus."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import translate
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, get_args

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import buckets
from infra.store.corpora import check_known
from infra.store.delta import DataFile, Table
from infra.store.documents import check_documents, current_documents, documents_count
from infra.store.feedback import Reviews
from infra.store.location import Corpus, Store
from infra.store.plans import plan_parts, read_plan
from infra.store.schemas import EVIDENCE, AnswerRow, DocumentRow, PlannedReading
from memagent.config import Config
from memagent.errors import UsageError
from memagent.quality.verdicts import Review, Status
from memagent.records import LEVELS, Level
from pipelines.io.writer import WRITERS, Row, TableLayout, flat, write_file
from pipelines.runs import run_answers
from pipelines.views.formatting import rounded
from pipelines.views.visible_answers import (
    CONCATENATED,
    AnswerRule,
    Citations,
    CitedEvidence,
    archive_warnings,
    changed_since,
    documents_with,
    question_ids,
    reader_warnings,
    visible_answers,
)

FIELDS = (
    *("document", "title", "source", "question_id", "question", "answer", "found", "run_id", "policy_id", "review"),
    *("confidence", "confidence_level"),
)
"""Fields that answers can be filtered by."""
_NUMBERS = ("confidence",)
_OPEN = "open"
"""The review of an answer of which nobody has said anything, as the pages call it."""
_CHOICES = {"found": ("true", "false"), "review": (_OPEN, *get_args(Status)), "confidence_level": (*LEVELS, "none")}
_CONDITION = re.compile(r"(\w+)\s*(?:=|(?=[<>]))(.*)", re.DOTALL)
_COMPARISON = re.compile(r"([<>])\s*(\d*\.?\d+(?:e-?\d+)?)")

Condition = tuple[str, str]
"""A field and a pattern for its whole value, whatever its case, where ``*`` stands for any characters and ``?`` for
one. Of a number ``<0.8`` or ``>0.8``."""


def parse(items: Iterable[str]) -> list[Condition]:
    """Return conditions as they are written on the command line: ``field=pattern``, ``confidence<0.8``.

    Raises UsageError: one is written otherwise.
    """
    found = [(item, _CONDITION.fullmatch(item)) for item in items]
    if wrong := [item for item, match in found if match is None]:
        raise UsageError(f"--where {wrong[0]!r}: write it as field=pattern, as in 'document=*.pdf'")
    return [(match[1], match[2]) for _, match in found if match is not None]


def passing(conditions: Sequence[Condition]) -> Callable[[Mapping[str, object]], bool]:
    """Return a function that tells whether a row passes all conditions. A number that is not known passes none.

    Raises UsageError: there is no such field, it never has such a value, or a number is not compared with one.
    """
    unknown = {name for name, _ in conditions} - set(FIELDS)
    if unknown:
        raise UsageError(f"--where {sorted(unknown)[0]}=...: one of {', '.join(FIELDS)}")
    conditions = [(name, (words or _OPEN) if name == "review" else words) for name, words in conditions]
    for name, words in conditions:
        if name in _CHOICES and not any(map(_pattern(words), _CHOICES[name])):
            raise UsageError(f"--where {name}={words}: one of {', '.join(_CHOICES[name])}")
    tests = [(name, _comparison(name, words) if name in _NUMBERS else _pattern(words)) for name, words in conditions]
    return lambda row: all(test((row[name] or _OPEN) if name == "review" else row[name]) for name, test in tests)


def _pattern(words: str) -> Callable[[object], bool]:
    only_stars = words.replace("[", "[[]")
    pattern = re.compile(translate(only_stars), re.IGNORECASE)
    return lambda value: pattern.fullmatch(str(value)) is not None


def _comparison(name: str, words: str) -> Callable[[object], bool]:
    found = _COMPARISON.fullmatch(words.strip())
    if found is None:
        raise UsageError(f"--where {name}{words}: compare it with a number, as in '{name}<0.8' or '{name}>0.8'")
    below, limit = found[1] == "<", float(found[2])
    return lambda value: isinstance(value, float) and (value < limit if below else value > limit)


_DOCUMENT = ["doc_id", "content_hash", "title", "source", "warnings"]
_TEXTS = pa.list_(pa.string())
COLUMNS = pa.schema(
    {
        **dict.fromkeys(("document", "title", "source", "question_id", "question", "answer"), pa.string()),
        "found": pa.bool_(),
        "evidence": pa.list_(pa.struct([*EVIDENCE, ("page", pa.int32()), ("document", pa.string())])),
        "gold": _TEXTS,
        **dict.fromkeys(("policy_id", "reading_id", "run_id"), pa.string()),
        "answered_at": pa.timestamp("us", tz="UTC"),
        "review": pa.string(),
        "reviewed_by": _TEXTS,
        "engine_answer": pa.string(),
        "confidence": pa.float32(),
        "confidence_level": pa.string(),
        "warnings": _TEXTS,
    }
)
"""Columns of all formats; csv and xlsx have only the first piece of evidence, as quote and position."""
_BINARY = ("xlsx", "parquet")


class AnsweredDocument(TypedDict):
    """The document of an answer."""

    doc_id: str
    title: str
    source: str
    content_hash: NotRequired[str]
    """Absent for all documents, concatenated, and for a deleted document."""
    warnings: Sequence[str] | None
    """Of its text: parts not read, or read by OCR."""


class GivenAnswer(TypedDict):
    """An exported answer: `COLUMNS`."""

    document: str
    title: str
    source: str
    question_id: str
    question: str
    answer: str
    """What people said is right, where they did; else the engine's."""
    found: bool
    """Whether the document says it, as far as is known."""
    evidence: list[CitedEvidence]
    gold: list[str] | None
    policy_id: str
    reading_id: str
    run_id: str
    answered_at: datetime
    review: Status | Literal[""]
    """What people's verdicts come to; empty: nobody has said anything."""
    reviewed_by: list[str]
    engine_answer: str
    confidence: float | None
    """The engine's, of its own answer (`memagent.records.ReadingResult`); None: not known."""
    confidence_level: Level | None
    """How far to trust it, by held-out answers; None: the reader declares none."""
    warnings: list[str]
    """What speaks against the reader's answer, unless people have settled it; then of the document's text: parts not
    read, or read by OCR."""


def answer_table(config: Config, corpus: str, run_id: str | None = None) -> list[GivenAnswer]:
    """Return one row per document and question: the answers of a run, or the newest of the corpus.

    Raises UsageError: there is no such run, or the corpus has no documents.
    """
    return list(answer_rows(Corpus(Store(config.store), corpus), run_id))


def answer_rows(
    corpus: Corpus, run_id: str | None = None, where: Sequence[Condition] = (), *, withheld: bool = False
) -> Iterator[GivenAnswer]:
    """Return an iterator over what `answer_table` returns, which reads a bucket of the corpus at a time.

    Args:
        corpus: the corpus.
        run_id: a run; None: the newest answers to all questions.
        where: conditions that all must hold.
        withheld: in place of the newest answers that people are shown, those that are newer and of withheld digests.

    Raises:
        UsageError: there is no such run or field, a comparison is none, or the corpus has no documents.
    """
    passes = passing(where)
    check_known(corpus)
    check_documents(corpus)
    rows = _of_run(corpus, run_id) if run_id else _newest(corpus, withheld=withheld)
    return filter(passes, rows)


def write_answers(rows: Iterable[GivenAnswer], format_: str | None, output: Path | None) -> None:
    """Write rows as csv, xlsx, jsonl or parquet, to a file (atomically) or to standard output.

    By default the format is what the file's name ends with.

    Raises UsageError: the format is unknown, the file cannot be written, or a binary one would go to the terminal.
    """
    format_ = format_ or (output.suffix.removeprefix(".") if output else "")
    if format_ not in WRITERS:
        where = f"{output} has no known format" if output else f"there is no format {format_!r}"
        raise UsageError(f"{where}: give --format csv, xlsx, jsonl or parquet (or table, on the terminal)")
    if output is not None:
        write_file(output, rows, format_, _LAYOUT)
    elif format_ in _BINARY and sys.stdout.isatty():
        raise UsageError(f"{format_} is not for the terminal: give -o FILE")
    else:
        WRITERS[format_](rows, _LAYOUT, sys.stdout.buffer)


def _of_run(corpus: Corpus, run_id: str) -> Iterator[GivenAnswer]:
    whole = cache(partial(_concatenated, corpus))
    try:
        for bucket, table in plan_parts(corpus, run_id):
            plan: list[PlannedReading] = table.to_pylist()
            documents: list[AnsweredDocument] = current_documents(corpus, _DOCUMENT, bucket).to_pylist()
            by_id = {document["doc_id"]: document for document in documents}
            answers, reviews = run_answers(corpus, plan), Reviews(corpus, bucket)
            citations = Citations(corpus, answers.values())
            for row in plan:
                if (answer := answers.get(row["reading_id"])) is not None:
                    document = by_id.get(row["doc_id"]) or _planned_document(row, whole)
                    yield _given(document, answer, citations, review=reviews.of(answer), planned=row)
    except FileNotFoundError as error:
        raise UsageError(f"no run {run_id} in {corpus.store.url}: memagent status {corpus.name} lists them") from error


def _planned_document(
    row: PlannedReading, whole: Callable[[], AnsweredDocument], present: DocumentRow | None = None
) -> AnsweredDocument:
    """Return a document from the plan: it may have been changed or deleted since. `whole` gives that of an archive."""
    if row["scope"] == "archive":
        return whole()
    source, warnings = (present["source"], present["warnings"]) if present else ("", None)
    return {"doc_id": row["doc_id"], "title": row["title"], "source": source, "warnings": warnings}


def _concatenated(corpus: Corpus) -> AnsweredDocument:
    return {"doc_id": "", "title": CONCATENATED, "source": "", "warnings": archive_warnings(corpus)}


def _newest(corpus: Corpus, *, withheld: bool) -> Iterator[GivenAnswer]:
    rule, ids = AnswerRule.of(corpus), question_ids(corpus)
    order = {question: number for number, question in enumerate(ids)}

    def place(answer: AnswerRow) -> int:
        return order.get(answer["question"], len(order))  # others come last, oldest first

    for bucket in buckets(documents_count(corpus)):
        documents: list[AnsweredDocument] = current_documents(corpus, _DOCUMENT, bucket).to_pylist()
        by_text: dict[str, list[AnswerRow]] = defaultdict(list)
        for answer in visible_answers(corpus, bucket, rule, withheld=withheld).to_pylist():
            by_text[answer["content_hash"]].append(answer)
        reviews, citations = Reviews(corpus, bucket), Citations(corpus, bucket=bucket)
        for document in documents:
            for answer in sorted(by_text[document["content_hash"]], key=place):
                yield _given(document, _renamed(answer, ids), citations, reviews.of(answer))
    shown: list[AnswerRow] = visible_answers(corpus, None, rule, withheld=withheld).to_pylist()
    reviews, citations = Reviews(corpus), Citations(corpus, shown)
    changed, whole = changed_since(corpus, shown), cache(partial(_concatenated, corpus))
    for answer in shown:
        said = filter(None, [changed.get(answer["reading_id"]), *(whole()["warnings"] or ())])
        yield _given({**whole(), "warnings": [*said]}, _renamed(answer, ids), citations, reviews.of(answer))


def _renamed(answer: AnswerRow, ids: Mapping[str, str]) -> AnswerRow:
    return {**answer, "question_id": ids.get(answer["question"], answer["question_id"])}


def _given(
    document: AnsweredDocument,
    answer: AnswerRow,
    citations: Citations,
    review: Review | None = None,
    planned: PlannedReading | None = None,
) -> GivenAnswer:
    """Return an answer as it is exported; `planned` is its row of a run's plan, where it is given as that run's."""
    found = review.found(answer["found"]) if review else answer["found"]
    return {
        "document": document["doc_id"],
        "title": document["title"],
        "source": document["source"],
        "question_id": (planned or answer)["question_id"],
        "question": answer["question"],
        "answer": review.answer if review else answer["answer"],
        "found": found,
        "evidence": citations.cite(answer, review, document["doc_id"]),
        "gold": planned["gold"] if planned else None,
        "policy_id": answer["policy_id"],
        "reading_id": answer["reading_id"],
        "run_id": answer["run_id"],
        "answered_at": answer["answered_at"],
        "review": review.status if review else "",
        "reviewed_by": [name for name in review.reviewers if name] if review else [],
        "engine_answer": answer["answer"],
        "confidence": rounded(answer["confidence"]),
        "confidence_level": answer["confidence_level"],
        "warnings": [
            *reader_warnings(answer["warnings"], review.status if review else None),
            *(document["warnings"] or ()),
        ],
    }


_PLACE_CELLS = (
    *("quote", "quote_document", "verbatim", "segment", "char_start", "char_end", "quote_start", "quote_end", "page"),
)
_EVIDENCE_NAMES = {"segment": "segment_index", "quote_document": "document"}
_CELLS = (
    *("document", "question", "answer", "quote", "review", "found", "confidence_level", "confidence", "verbatim"),
    *("reviewed_by", "engine_answer", "title", "warnings", "answered_at", "comments", "link", "source"),
    *("quote_document", "page", "gold", "segment", "char_start", "char_end", "quote_start", "quote_end", "corpus"),
    *("question_id", "policy_id", "run_id", "reading_id"),
)
"""Columns of answers in CSV and workbooks, in this order wherever they are written: what people read, then the rest."""


def cells_of(names: Iterable[str]) -> list[str]:
    """Return columns in the order in which files of answers have them; `names` are those that there are."""
    return [name for name in _CELLS if name in set(names)]


def _cells(row: Row) -> Iterator[object]:
    first: Row = row["evidence"][0] if row["evidence"] else {}
    for name in _LAYOUT.header:
        if name in _PLACE_CELLS:
            place = first.get(_EVIDENCE_NAMES.get(name, name))
            yield "" if place in (-1, None) or (name == "verbatim" and not first["quote"]) else place  # -1: no quote
        else:
            yield flat(row.get(name))


_LAYOUT = TableLayout(COLUMNS, cells_of([*COLUMNS.names, *_PLACE_CELLS]), _cells)
"""Of CSV and workbooks: `char_start` to `char_end` is the segment, `quote_start` to `quote_end` the quote in it;
`verbatim` tells whether it says the answer word for word; `page` is of a PDF, from 1."""


_PLANNED = ["reading_id", "answered_by", "doc_id", "title", "content_hash", "question_id", "gold", "state", "scope"]
_ROWS = 500
"""Planned readings whose answers are looked up at once."""


def answered_before(corpus: Corpus, run_id: str) -> Iterator[GivenAnswer]:
    """Yield the answers that a run's plan takes from earlier runs, a part of the plan at a time."""
    for _, table in plan_parts(corpus, run_id):
        plan = table.select(_PLANNED).filter(pc.equal(table["state"], "answered"))
        for first in range(0, plan.num_rows, _ROWS):
            rows: list[PlannedReading] = plan.slice(first, _ROWS).to_pylist()
            answers = run_answers(corpus, rows)
            yield from _at_once(
                corpus, [(row, answers[row["reading_id"]]) for row in rows if row["reading_id"] in answers]
            )


def newly_answered(corpus: Corpus, run_id: str, files: Sequence[DataFile]) -> Iterator[GivenAnswer]:
    """Yield the answers of files that workers have written; they may not be committed yet.

    A text that several documents have is read once, and answered for each of them.
    """
    for file in files:
        answers: list[AnswerRow] = corpus.store.read_part("answers", file["path"]).to_pylist()
        names = pa.array([answer["reading_id"] for answer in answers], pa.string())
        planned: dict[str, list[PlannedReading]] = defaultdict(list)
        for row in read_plan(corpus, run_id, _PLANNED, filters=pc.field("reading_id").isin(names)).to_pylist():
            planned[row["reading_id"]].append(row)
        yield from _at_once(corpus, [(row, answer) for answer in answers for row in planned[answer["reading_id"]]])


@lru_cache(1)
def _reviews(corpus: Corpus, feedback: str) -> Reviews:
    """Read what people said once for all files of a run, until the table of verdicts has another fingerprint."""
    return Reviews(corpus)


def _at_once(corpus: Corpus, pairs: Sequence[tuple[PlannedReading, AnswerRow]]) -> Iterator[GivenAnswer]:
    """Yield answers of a run while it runs, as people see them, with the present sources of their documents."""
    hashes = {row["content_hash"] for row, _ in pairs if row["scope"] == "document"}
    whole = cache(partial(_concatenated, corpus))
    documents = {document["doc_id"]: document for document in documents_with(corpus, hashes)}
    citations = Citations(corpus, [answer for _, answer in pairs])
    reviews = _reviews(corpus, Table(corpus.store, "feedback").fingerprint(corpus.name))
    for row, answer in pairs:
        document = _planned_document(row, whole, documents.get(row["doc_id"]))
        yield _given(document, answer, citations, reviews.of(answer), row)
