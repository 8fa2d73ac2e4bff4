"""The answers of a run as they are found: those that earlier runs gave first, then each block as it is answered."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from infra.store import Corpus
from infra.tables.data_files import DataFile
from infra.tables.delta import Table
from infra.tables.documents import present
from infra.tables.pages import PageNumbers
from infra.tables.plans import plan_parts, read_plan
from infra.tables.rows import AnswerRow, PlannedReading
from pipelines.exchange.answers import GivenAnswer, rounded
from pipelines.runs import run_answers
from pipelines.views.visible_answers import CONCATENATED

_COLUMNS = ["reading_id", "answered_by", "doc_id", "title", "content_hash", "question_id", "gold", "state", "scope"]
_ROWS = 500
"""Planned readings whose answers are looked up at once."""


def answered_before(corpus: Corpus, run_id: str) -> Iterator[GivenAnswer]:
    """Yield the answers that a run's plan takes from earlier runs, a part of the plan at a time."""
    for _, table in plan_parts(corpus, run_id):
        plan = table.select(_COLUMNS).filter(pc.equal(table["state"], "answered"))
        for first in range(0, plan.num_rows, _ROWS):
            rows: list[PlannedReading] = plan.slice(first, _ROWS).to_pylist()
            answers = run_answers(corpus, rows)
            sources, pages = _sources(corpus, rows), PageNumbers.cited_by(corpus, answers.values())
            for row in rows:
                if (answer := answers.get(row["reading_id"])) is not None:
                    yield _given(row, answer, sources=sources, pages=pages)


def newly_answered(corpus: Corpus, run_id: str, files: Sequence[DataFile]) -> Iterator[GivenAnswer]:
    """Yield the answers of files that workers have written; they may not be committed yet.

    A text that several documents have is read once, and answered for each of them.
    """
    for file in files:
        answers: list[AnswerRow] = corpus.store.read_part("answers", file["path"]).to_pylist()
        names = pa.array([answer["reading_id"] for answer in answers], pa.string())
        plan: list[PlannedReading] = read_plan(
            corpus, run_id, _COLUMNS, filters=pc.field("reading_id").isin(names)
        ).to_pylist()
        planned: dict[str, list[PlannedReading]] = defaultdict(list)
        for row in plan:
            planned[row["reading_id"]].append(row)
        sources, pages = _sources(corpus, plan), PageNumbers.cited_by(corpus, answers)
        for answer in answers:
            for row in planned[answer["reading_id"]]:
                yield _given(row, answer, sources=sources, pages=pages)


def _sources(corpus: Corpus, rows: Sequence[PlannedReading]) -> dict[str, str]:
    """Return the source of each document, by its id."""
    hashes = pa.array({row["content_hash"] for row in rows if row["scope"] == "document"}, pa.string())
    columns = ["doc_id", "content_hash", "source", "state", "seen_at"]
    table = Table(corpus.store, "documents").read(corpus.name, columns, ds.field("content_hash").isin(hashes))
    return {row["doc_id"]: row["source"] for row in present(table, "doc_id").to_pylist()}


def _given(row: PlannedReading, answer: AnswerRow, *, sources: dict[str, str], pages: PageNumbers) -> GivenAnswer:
    whole = row["scope"] == "archive"
    return {
        "document": row["doc_id"],
        "title": CONCATENATED if whole else row["title"],
        "source": sources.get(row["doc_id"], ""),
        "question_id": row["question_id"],
        "question": answer["question"],
        "answer": answer["answer"],
        "found": answer["found"],
        "evidence": pages.cite(answer["evidence"], row["doc_id"]),
        "gold": row["gold"],
        "policy_id": answer["policy_id"],
        "reading_id": answer["reading_id"],
        "run_id": answer["run_id"],
        "answered_at": answer["answered_at"],
        "review": "",  # nobody has looked at it yet
        "reviewed_by": [],
        "engine_answer": answer["answer"],
        "confidence": rounded(answer["confidence"]),
    }
