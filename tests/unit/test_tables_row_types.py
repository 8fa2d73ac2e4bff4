"""The tables' columns are made of the types of their rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, NotRequired, TypedDict

import pyarrow as pa

from infra.store.schemas import TABLES, schema_of


class Inner(TypedDict):
    name: str
    number: Annotated[int, "int32"]


class Outer(TypedDict):
    text: Annotated[str, "large_string"]
    state: Literal["a", "b"] | Literal["c"]
    at: datetime | None
    parts: list[Inner] | None
    starts: NotRequired[Sequence[int] | None]
    corpus: str
    shares: Annotated[list[Annotated[float, "float32"]], "large_list"] | None
    found: bool


def test_columns_are_of_the_kinds_of_a_rows_type():
    assert schema_of(Outer) == pa.schema(
        [
            ("corpus", pa.string()),
            ("text", pa.large_string()),
            ("state", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("parts", pa.list_(pa.struct([("name", pa.string()), ("number", pa.int32())]))),
            ("starts", pa.list_(pa.int64())),
            ("shares", pa.large_list(pa.float32())),
            ("found", pa.bool_()),
        ]
    )


def test_every_table_has_the_columns_of_its_key():
    for table in TABLES.values():
        assert {"corpus", *table.key} <= set(table.schema.names)
