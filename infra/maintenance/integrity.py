"""Damage: files of the store that are gone or cannot be read, and how they are set aside.

A file that cannot be read is never deleted: it goes to ``damaged/``, under the path that it had.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from infra.store.buckets import groups_of
from infra.store.delta import Table
from infra.store.location import Corpus, Store

Part = Literal["tables", "texts", "sources", "forgettings", "segments", "turn log", "answers", "policies"]
_FOLDER = "damaged"
_GROUP_BYTES = 64 * 2**20


class Damage(TypedDict):
    """Something in the store that is not as it was written."""

    part: Part
    item: str
    """A file of the store, a document's content hash, a source, a reading or a policy."""
    detail: str
    repair: str
    """What a repair does about it; empty: nothing can."""


def unreadable(store: Store, path: str) -> str:
    """Return why a Parquet file of the store cannot be read whole; empty: it can.

    Args:
        store: where it is.
        path: as `Store.path` gives it.
    """
    try:
        file = pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False, page_checksum_verification=True)
        rows = sum(batch.num_rows for batch in file.iter_batches(batch_size=1024, use_threads=False))
    except FileNotFoundError:
        return "it is gone"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"it cannot be read: {str(error)[:200]}"
    # A page that says it has no values ends a file early, and nothing complains.
    if rows != file.metadata.num_rows:
        return f"it has {rows} of its {file.metadata.num_rows} rows"
    return f"its column {column} is not stored as its schema says" if (column := _mistyped(file)) else ""


def raise_if_damaged(store: Store, path: str, columns: Sequence[str]) -> None:
    """Read a row of some columns of each row group of a Parquet file; raise where a column is not what the schema says.

    A dataset that filters by such a column ends the process: Arrow (26.0) reads the statistics of a filter's columns
    where nothing catches an error.

    Raises:
        OSError, pyarrow.ArrowException: as `pyarrow.parquet.ParquetFile` has it.
    """
    file = pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False)
    for group in range(file.num_row_groups):
        next(file.iter_batches(1, row_groups=[group], columns=list(columns), use_threads=False), None)
    if column := _mistyped(file, columns):
        raise pa.ArrowInvalid(f"column {column} is not stored as its schema says")


def _mistyped(file: pq.ParquetFile, columns: Collection[str] = ()) -> str:
    """Return a column of which a chunk has another type than the schema says: of some, or of all; empty: there is none.

    To be called after the columns have been read: before, a damaged footer may end the process.
    """
    named = [(place, file.schema.column(place)) for place in range(len(file.schema))]
    for group in range(file.num_row_groups):
        chunks = file.metadata.row_group(group)
        for place, column in named:
            if columns and column.name not in columns:
                continue
            if chunks.column(place).physical_type != column.physical_type:
                return str(column.path)
    return ""


def table_paths(corpus: Corpus, name: str) -> Iterator[list[str]]:
    """Yield the paths of a table's files that a corpus has, in groups of some megabytes."""
    files = Table(corpus.store, name).files(corpus.name)
    paths = (corpus.store.path(name, path) for path in files["path"].to_pylist())
    yield from groups_of(zip(paths, files["size_bytes"].to_pylist(), strict=True), _GROUP_BYTES)


def set_aside(store: Store, path: str) -> None:
    """Move a file to ``damaged/``, if it is there."""
    if store.fs.exists(path):
        relative = path.removeprefix(store.path(""))
        store.write_bytes(store.fs.cat_file(path), _FOLDER, relative)
        store.delete(path)


def drop_files(store: Store, name: str, paths: Collection[str]) -> None:
    """Set files of a Delta table aside, and commit that they are gone."""
    for path in paths:
        set_aside(store, path)
    DeltaTable(store.delta_uri(name), storage_options=store.delta_options).repair(dry_run=False)
