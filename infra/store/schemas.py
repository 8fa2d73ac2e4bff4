"""The tables' columns, made of the types of their rows. `corpus` partitions every Delta table."""

import typing
from collections.abc import Sequence
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Union

import pyarrow as pa

from infra.store import rows

_KINDS = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


def schema_of(row: type) -> pa.Schema:
    """Return the columns of a row's type (a `TypedDict`), `corpus` first; ``Annotated`` names another kind."""
    hints = typing.get_type_hints(row, include_extras=True)
    return pa.schema([(name, _kind(hints[name])) for name in sorted(hints, key=lambda name: name != "corpus")])


def _kind(hint: Any) -> pa.DataType:
    if typing.is_typeddict(hint):
        return pa.struct(list(schema_of(hint)))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        name = inner[1]
        return pa.large_list(_kind(inner[0]).value_type) if name == "large_list" else pa.type_for_alias(name)
    if origin in (list, Sequence):
        return pa.list_(_kind(inner[0]))
    if origin in (Union, UnionType, NotRequired):  # of a kind and None, or of texts
        return _kind(inner[0])
    return pa.string() if origin is Literal else _KINDS[hint]


class TableSpec(NamedTuple):
    """A Delta table."""

    row: type
    key: tuple[str, ...]
    """What a row is known by, beside its corpus."""
    schema: pa.Schema


def _table(row: type, *key: str) -> TableSpec:
    return TableSpec(row, key, schema_of(row))


TABLES = {
    "documents": _table(rows.DocumentRow, "doc_id", "content_hash", "seen_at"),
    "texts": _table(rows.TextRow, "content_hash"),
    "sources": _table(rows.SourceRow, "source", "seen_at"),
    "segmented": _table(rows.SegmentedRow, "segment_key"),
    "answers": _table(rows.AnswerRow, "reading_id"),
    "quarantine": _table(rows.FailureRow, "stage", "item", "reason"),
    "runs": _table(rows.RunRow, "run_id"),
    "scores": _table(rows.ScoreRow, "score_id"),
    "qa": _table(rows.QaRow, "qa_id"),
    "feedback": _table(rows.FeedbackRow, "reading_id", "given_at"),
    "policies": _table(rows.PolicyRow, "policy_id"),
}
"""By name."""
DOCUMENTS, TEXTS, SOURCES = (TABLES[name].schema for name in ("documents", "texts", "sources"))
ANSWERS, QUARANTINE = (TABLES[name].schema for name in ("answers", "quarantine"))
QA, FEEDBACK = (TABLES[name].schema for name in ("qa", "feedback"))
EVIDENCE = pa.struct(list(schema_of(rows.EvidenceRow)))
SEGMENTS = schema_of(rows.SegmentRow)
TURNS = schema_of(rows.TurnRow)
PLAN = schema_of(rows.PlannedReading)
PLACES = schema_of(rows.SegmentRange)
RESULTS = schema_of(rows.ResultRow)
POLICIES_OF = "*"
"""In the place of a corpus."""
