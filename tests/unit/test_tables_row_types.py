"""Rows as types, and the tables' schemas: the same columns."""

import typing

import pytest

from infra.store import rows, schemas
from infra.store import schemas as training_schemas


@pytest.mark.parametrize(
    ("row", "schema"),
    [
        (rows.DocumentRow, schemas.DOCUMENTS),
        (rows.SourceRow, schemas.SOURCES),
        (rows.SegmentedRow, schemas.SEGMENTED),
        (rows.AnswerRow, schemas.ANSWERS),
        (rows.FailureRow, schemas.QUARANTINE),
        (rows.RunRow, schemas.RUNS),
        (rows.PlannedReading, schemas.PLAN),
        (rows.ScoreRow, schemas.SCORES),
        (rows.QaRow, training_schemas.QA),
        (rows.FeedbackRow, training_schemas.FEEDBACK),
        (rows.ResultRow, schemas.RESULTS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_row_has_its_tables_columns(row, schema):
    assert set(typing.get_type_hints(row)) == set(schema.names)


def test_evidence_is_the_same_in_both():
    assert set(typing.get_type_hints(rows.EvidenceRow)) == {field.name for field in schemas.EVIDENCE}
