"""The quarantine: what could not be ingested, segmented, planned or read, and why."""

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.delta import now
from infra.store.location import Corpus
from infra.store.rows import FailureRow, PlannedReading

Stage = Literal["ingest", "segment", "plan", "read"]


def reading_item(row: PlannedReading) -> str:
    """Return how the quarantine names a reading."""
    return f"{row['doc_id'] or 'archive'} ? {row['question_id']}"


def reading_items(rows: pa.Table) -> pa.ChunkedArray:
    """Return how the quarantine names the readings of a plan's rows."""
    whose = pc.if_else(pc.equal(rows["doc_id"], ""), "archive", rows["doc_id"])
    return pc.binary_join_element_wise(whose, rows["question_id"], " ? ")


def failure_row(corpus: Corpus, stage: Stage, item: str, *, reason: str, detail: str, run_id: str) -> FailureRow:
    """Return a row of the quarantine, of now.

    Args:
        stage: that failed.
        item: a source, a document, a question, or document and question.
        reason: a short stable word.
        detail: what a person needs to know.
    """
    return {
        "corpus": corpus.name,
        "stage": stage,
        "item": item,
        "reason": reason,
        "detail": detail,
        "run_id": run_id,
        "at": now(),
    }
