"""Damage: files of the store that are gone or cannot be read, and how they are set aside.

A file that cannot be read is never deleted: it goes to ``damaged/``, under the path that it had.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
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
    """Return why a Parquet file, at a path of the store, cannot be read whole; empty: it can."""
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

    Raises OSError, pyarrow.ArrowException: as `pyarrow.parquet.ParquetFile` has it.
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


_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_EMPTY = b'{"commitInfo":{"operation":"memagent check --repair"}}'
"""A commit that changes nothing."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """What is wrong with the log of a Delta table."""

    table: str
    commits: dict[int, str]
    """Versions whose commit is damaged or gone, and why: a repair replaces it by one that changes nothing."""
    checkpoints: dict[str, str]
    """Files of checkpoints, and why they are of no use: the log has all without them."""
    lost: str
    """What the log can no longer say, which nothing mends; empty: all of it is there, or is mended."""


def log_damage(store: Store, name: str) -> LogDamage:
    """Compare a table's log with what the Delta protocol asks of it; nothing opens the table for it.

    An opened table does not tell: deltalake takes an empty commit for one without changes, and a folder without a log
    for no table.
    """
    files = {path.rsplit("/", 1)[-1]: path for path in store.list(name, _LOG, suffix="")}
    commits = {int(found[1]): path for file, path in files.items() if (found := _COMMIT.fullmatch(file))}
    checkpoints = {int(found[1]): path for file, path in files.items() if (found := _CHECKPOINT.fullmatch(file))}
    bad = {path: reason for path in checkpoints.values() if (reason := unreadable(store, path))}
    good = [version for version, path in checkpoints.items() if path not in bad]
    hint = files.get("_last_checkpoint")
    if hint and (of := _version_of(store.fs.cat_file(hint))) is not None and of not in good:
        bad[hint] = f"it names checkpoint {of}, which is gone or damaged"
    first = max(good, default=-1) + 1
    if not good and not commits:
        data = any(path.startswith(store.path(name, "corpus=")) for path in store.list(name))
        return LogDamage(name, {}, bad, "it is gone, and files of the table are there" if data or bad else "")
    if not good and (begins := min(commits)) > 0:
        return LogDamage(name, {}, bad, f"the checkpoint with what was committed before version {begins} is gone")
    newest = max([first - 1, *commits])
    if good and bad and any(version not in commits for version in range(first, newest + 1)):
        return LogDamage(name, {}, bad, f"a checkpoint is damaged, and commits after checkpoint {first - 1} are gone")
    broken = {
        version: reason
        for version in range(first, newest + 1)
        if (reason := _broken(store.fs.cat_file(commits[version])) if version in commits else "it is gone")
    }
    return LogDamage(name, broken, bad, "")


def commit_path(store: Store, name: str, version: int) -> str:
    """Return the path of a commit in a table's log."""
    return store.path(name, _LOG, f"{version:020}.json")


def mend_log(store: Store, damage: LogDamage) -> None:
    """Set damaged files of a log aside, and put commits that change nothing in the places of damaged ones.

    The data files that a damaged commit has added are no longer of the table; they stay until `optimize` deletes them.
    """
    for path in damage.checkpoints:
        set_aside(store, path)
    for version in damage.commits:
        path = commit_path(store, damage.table, version)
        set_aside(store, path)
        store.write_bytes(_EMPTY if version else _first_commit(damage.table), path.removeprefix(store.path("")))


def _first_commit(name: str) -> bytes:
    """Return the commit that makes a table, without rows."""
    with TemporaryDirectory() as folder:
        Table(Store(folder), name).create()
        return Store(folder).read_bytes(name, _LOG, f"{0:020}.json")


def _version_of(hint: bytes) -> int | None:
    try:
        version = json.loads(hint)["version"]
    except (ValueError, KeyError, TypeError):  # deltalake looks for the newest checkpoint itself
        return None
    return version if isinstance(version, int) else None


def _broken(commit: bytes) -> str:
    """Return why a commit is none; empty: it is one."""
    try:
        actions = [json.loads(line) for line in commit.decode().splitlines()]
    except ValueError:
        return "it is cut off or overwritten"
    return "" if actions and all(isinstance(action, dict) for action in actions) else "it is empty"


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
