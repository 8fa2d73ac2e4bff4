"""Data files of Delta tables: workers write them, and the driver commits them without seeing a row.

A file is part of the table once it is committed. Files that were never committed, after a kill, are deleted by
`vacuum`.
"""

import json
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.delta import CLUSTERED, DataFile, Table
from infra.store.location import Corpus, Store
from infra.store.schemas import TABLES

_ROW_GROUP = 2_000
_PAUSE = 5
_BOUND_CHARS = 64
"""Of a text in the statistics."""


def write_data_file(corpus: Corpus, name: str, rows: pa.Table | Sequence[object]) -> DataFile:
    """Write rows of a corpus, with the columns of a table, as a data file of that table, sorted by content hash."""
    schema = TABLES[name].schema
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
    table = table.select([column for column in schema.names if column != "corpus"])
    if CLUSTERED in table.column_names:
        table = table.sort_by(CLUSTERED)
    file = uuid.uuid4().hex
    # The partition is in the log, and in the path for readers that look for it there (Polars). Spread prefixes: S3
    # limits requests by prefix.
    path = f"corpus={corpus.name}/{file[:2]}/{file}.parquet"
    full = corpus.store.write_part(table, name, path, row_group_size=_ROW_GROUP)
    return {"path": path, "size": corpus.store.size(full), "rows": table.num_rows, "stats": _stats(table)}


def stored_file(store: Store, name: str, path: str) -> DataFile:
    """Return what the log of a table must say of a data file, by the file alone; `path` is as the log has it.

    Raises OSError, pyarrow.ArrowException: it cannot be read.
    """
    table, schema = store.read_part(name, unquote(path)), TABLES[name].schema
    fields = pa.schema([schema.field(column) for column in table.column_names if column in schema.names])
    stats, size = _stats(table.select(fields.names).cast(fields)), store.size(store.path(name, unquote(path)))
    return {"path": path, "size": size, "rows": table.num_rows, "stats": stats}


def _stats(table: pa.Table) -> str:
    """Return the statistics of a file, as the Delta protocol has them.

    For all columns that can have any: deltalake's own dataset takes a column without statistics for an empty one. Not
    in ASCII: deltalake (1.6) reads escapes of half the characters beyond U+FFFF as others.
    """
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for field in table.schema:
        kind = field.type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)):
            continue
        column = table[field.name]
        nulls[field.name] = column.null_count
        if column.null_count < len(column):
            bounds = pc.min_max(column).as_py()
            lows[field.name], highs[field.name] = (_bound(bounds["min"]), _bound(bounds["max"], upper=True))
    stats = {"numRecords": table.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(stats, ensure_ascii=False)


def _bound(value: object, *, upper: bool = False) -> object:
    """Return a bound as JSON; a long text's is shortened, an upper one so that it stays above the text."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, str) and len(value) > _BOUND_CHARS:
        return value[:_BOUND_CHARS] + ("\U0010ffff" if upper else "")
    return value


class FileCommits:
    """Commits data files every few seconds, each commit under a number of its own (Delta application transactions)."""

    def __init__(self, table: Table, corpus: str, run_id: str, seconds: float = 5.0) -> None:
        """Commit to `table`, which is made, for `corpus`, at most once in `seconds`."""
        if table.version() is None:
            table.create()
        self._table, self._corpus, self._seconds = table, corpus, seconds
        # A run that is started again under the same id must not be taken for a repeated commit.
        self._writer = f"{run_id}-{uuid.uuid4().hex[:8]}"
        self.number = 0
        """Commits so far."""
        self._known: set[str] = set()
        self._files: list[DataFile] = []
        self._due = time.monotonic() + seconds

    def add(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Add files to the next commit, ignoring repeated ones. Return those that are new."""
        new = {file["path"]: file for file in files if file["path"] not in self._known}
        self._known.update(new)
        self._files += new.values()
        return list(new.values())

    @property
    def is_due(self) -> bool:
        """Whether it is time to commit."""
        return time.monotonic() > self._due

    def commit(self) -> None:
        """Commit all files that were added."""
        began = time.monotonic()
        if self._files:
            self._table.commit_files(self._corpus, self._files, writer=self._writer, number=self.number)
            self.number += 1
            self._files = []
        # Commits get slower with the number of files, so the pause grows with their duration.
        ended = time.monotonic()
        self._due = ended + max(self._seconds, _PAUSE * (ended - began))
