"""The parts of a turn log: Parquet files of a run, listed, opened and compacted.

Workers write small parts; after a run they are compacted, sorted by reading. A key is in two parts for the moment in
which a compacted part is there and those that it replaces are, too.
"""

import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from infra.store import Corpus, Store
from infra.tables.buckets import groups_of
from infra.tables.distinct import first_of_each
from infra.tables.integrity import raise_if_damaged, unreadable
from infra.tables.schemas import TURNS
from memagent.errors import MemagentError

_Read = TypeVar("_Read")
FOLDER = "turns"
KEY = ("reading_id", "span", "step")
_FILTERED = ("reading_id", "kind")
_LOOKED_AT: set[str] = set()
_AT_ONCE = 16  # parts that are looked at or deleted together: with S3 it is waiting
_COMPACT_BYTES = 8 * 2**20
"""Compressed bytes of parts that one task compacts."""
_PART_BYTES = 64 * 2**20
"""Bytes of a sorted part, before compression."""
_COMPACT_ROWS = 1_000
"""Turns that are read at once."""


def logged_runs(corpus: Corpus) -> list[str]:
    """Return the runs that have logged turns."""
    return corpus.store.folders(FOLDER, corpus.name)


def part_paths(corpus: Corpus, run_id: str) -> list[str]:
    """Return the paths of a run's parts."""
    return corpus.store.list(FOLDER, corpus.name, run_id)


def small_parts(corpus: Corpus, run_id: str) -> list[list[str]]:
    """Return the small parts of a run's log in groups of some megabytes, to be compacted."""
    parts = corpus.store.sizes(FOLDER, corpus.name, run_id)
    small = [(path, size) for path, size in parts.items() if "/sorted-" not in path]
    return list(groups_of(small, _COMPACT_BYTES)) if len(small) > 1 else []


def compact(paths: Sequence[str], corpus: Corpus, run_id: str) -> int:
    """Compact some parts of a run's log, sorted by reading; return the number of new parts.

    Memory is bounded, whatever the texts are. Safe to interrupt: the new parts are there before the old ones go, and
    readers count a key once.
    """
    count = size = 0
    batches: list[pa.RecordBatch] = []
    try:
        for batch in _dataset(list(paths), corpus.store).to_batches(batch_size=_COMPACT_ROWS):
            batches.append(batch)
            size += batch.nbytes
            if size >= _PART_BYTES:
                _write_sorted(corpus, run_id, batches)
                count, size, batches = count + 1, 0, []
    except OSError:
        if all(corpus.store.exists(path.removeprefix(corpus.store.path(""))) for path in paths):
            raise
        return count  # another process compacts them
    if batches:
        _write_sorted(corpus, run_id, batches)
        count += 1
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(corpus.store.delete, paths))
    return count


def _write_sorted(corpus: Corpus, run_id: str, batches: list[pa.RecordBatch]) -> None:
    parts = (FOLDER, corpus.name, run_id, f"sorted-{uuid.uuid4().hex}.parquet")
    corpus.store.write_part(dedupe(pa.Table.from_batches(batches)), *parts, row_group_size=2_000)


def _paths(corpus: Corpus, runs: Collection[str] | None = None) -> list[str]:
    """Return the parts of some runs, or of all."""
    if runs is None:
        return corpus.store.list(FOLDER, corpus.name)
    return [path for run_id in runs for path in corpus.store.list(FOLDER, corpus.name, run_id)]


def with_parts(corpus: Corpus, runs: Collection[str] | None, read: Callable[[list[str]], _Read]) -> _Read:
    """Call `read` with the paths of the parts of some runs, or of all.

    It is called again if some were compacted, and so replaced, meanwhile.

    Raises:
        MemagentError: a part is damaged.
    """
    while True:
        paths = _paths(corpus, runs)
        try:
            return read(paths)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and _paths(corpus, runs) != paths:
                continue
            damaged = next((path for path in paths if unreadable(corpus.store, path)), None)
            if damaged is None:
                raise
            raise MemagentError(
                f"the turn log in {corpus.store.url} has a damaged part: {damaged}: {error}. `memagent check "
                f"{corpus.name} --repair` sets it aside; what its readings lack is then read again"
            ) from error


def _dataset(paths: list[str], store: Store) -> ds.Dataset:
    return ds.dataset(paths, filesystem=store.arrow, schema=TURNS)


def filterable(paths: list[str], store: Store) -> ds.Dataset:
    """Return the dataset of some parts, which can be filtered by `_FILTERED`; raise if a part is damaged there.

    Parts never change, and a path names its store: a process looks at each part once.
    """
    if new := [path for path in paths if path not in _LOOKED_AT]:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(lambda path: raise_if_damaged(store, path, _FILTERED), new))
        _LOOKED_AT.update(new)
    return _dataset(paths, store)


def dedupe(table: pa.Table) -> pa.Table:
    """Sort by key, and keep the first written row of each."""
    return first_of_each(table, KEY, [("written_at", "ascending")], by_key=True)
