"""Delta tables: atomic commits on a folder or on S3, no server (deltalake)."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from errno import ENOENT
from typing import Any, TypedDict
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from tenacity import retry, retry_if_exception, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from infra.store.buckets import EVERY, first_of_each
from infra.store.location import OS_ERROR, Store
from infra.store.schemas import TABLES
from memagent.errors import MemagentError, UsageError
from memagent.records import stable_hash

_WEEK_HOURS = 7 * 24


FULL = 32 * 2**20
"""Bytes of a file that is full."""
_ENOUGH_FILES = 3
"""So few files are not compacted."""
_SPILLS = (512 * 2**20, 2 * 2**30, 8 * 2**30)
"""Bytes that sorting holds in memory, the rest on disk. The larger the table, the more of it merging needs."""
_STATISTIC = 64
"""Longest text in the statistics of a file, which go into the log."""
_ROWS = 1_000
"""Rows of a row group of a file sorted by content hash, of which a part is read for a bucket."""
FILES = WriterProperties(compression="ZSTD", max_row_group_size=_ROWS, statistics_truncate_length=_STATISTIC)
"""How files are written that are looked up by content hash."""


CLUSTERED = "content_hash"
"""Files are sorted by this column and carry its range, so that a read of one bucket skips files and row groups."""
_log = logging.getLogger("memagent.tables")
_FIRST_BY = {"answers": "answered_at"}
"""Append-only tables and their time column: of several rows with the same key, the first is read."""
MANY = 64
"""Number of small files that triggers a compaction."""
_SHARED_FOLDERS = ("runs", "policies")
"""Tables whose folders hold other files, too: plans, logs, weights."""
_GROUP = 10_000
"""Rows of a row group: a text can be long, and a reader holds a group at once."""

_contended = retry(
    retry=retry_if_exception_type(CommitFailedError),
    wait=wait_random_exponential(multiplier=0.1, max=5),
    stop=stop_after_attempt(20),
    reraise=True,
)
"""Retry after a conflict with another writer, on the new version."""


_reopened = retry(
    retry=retry_if_exception(lambda error: isinstance(error, DeltaError) and "File not found" in str(error)),
    wait=wait_random_exponential(multiplier=0.1, max=2),
    stop=stop_after_attempt(6),
    reraise=True,
)
"""Open the table again where entries of its log, which a checkpoint replaces, were deleted in that moment."""


_CUT = re.compile(r"Requested range was invalid|Range Not Satisfiable|InvalidRange|Object at location .* not found")
"""What object stores say of a file that is shorter than its log says, or gone."""
_PASSING = (MemoryError, PermissionError, TimeoutError, ConnectionError, pa.ArrowCancelled)
"""Errors that pass, and say nothing of a file."""
_OTHERS = re.compile(r"Object Store error|os error|Resources exhausted")
"""Of errors that deltalake has while it reads or writes a file, and that are not the file's."""


def open_delta(address: str, options: dict[str, str]) -> DeltaTable:
    """Open the newest version of a Delta table.

    Raises:
        TableNotFoundError: there is none.
        DeltaError: it cannot be opened; also where deltalake (1.6) panics, as it does at some logs that are cut off.
    """
    try:
        return DeltaTable(address, storage_options=options)
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # no Exception, and no module has it to import
            raise DeltaError(f"Kernel error: {error}") from error
        raise


class DataFile(TypedDict):
    """A Parquet file that can be committed to a Delta table."""

    path: str
    """Relative to the table."""
    size: int
    """Bytes."""
    rows: int
    stats: str
    """JSON, as the Delta protocol has it: numRecords, minValues, maxValues."""


class Table:
    """One Delta table of the store."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name
        self.schema, self.key = TABLES[name].schema, TABLES[name].key
        self._on = ("corpus", *self.key)
        self._first_by = _FIRST_BY.get(name)

    def append(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> int:
        """Add rows; return how many."""
        table = self._table(rows)
        if table.num_rows:
            self._write(table)
        return int(table.num_rows)

    @_contended
    def commit_files(self, corpus: str, files: Sequence[DataFile], *, writer: str, number: int) -> bool:
        """Add data files to the table in one commit.

        Args:
            files: of `infra.store.data_files.write_data_file`.
            writer: names a sequence of commits.
            number: of this commit in the sequence, rising.

        Returns:
            Whether it was committed now. Repeating a commit whose outcome is unknown changes nothing.
        """
        delta = self._open() or self._create()
        done = delta.transaction_version(writer)
        if not files or (done is not None and done >= number):
            return False
        if {field.name for field in delta.schema().fields} != set(self.schema.names):
            delta = self._create()
        delta.create_write_transaction(
            [_add(file, corpus) for file in files],
            "append",
            delta.schema(),
            ["corpus"],
            commit_properties=CommitProperties(app_transactions=[Transaction(writer, number)]),
        )
        return True

    @_contended
    def commit_again(self, files: Sequence[DataFile]) -> None:
        """Correct what the log says of files that the table has: of several entries for a path, the last one counts."""
        delta = self._open()
        if delta is not None:
            adds = [_add(file, path_corpus(file["path"]), new=False) for file in files]
            delta.create_write_transaction(adds, "append", delta.schema(), ["corpus"])

    def insert_new(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> int:
        """Insert the rows with new keys, safe beside other writers; return their number."""
        return self._merge(self._unique(rows, keep_last=False), update=False)

    def upsert(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> int:
        """Insert or replace rows by key; return the number of rows inserted or changed."""
        return self._merge(self._unique(rows, keep_last=True), update=True)

    @_contended
    def revise(self, corpus: str, decide: Callable[[pa.Table], Iterable[Mapping[str, Any]]]) -> None:
        """Replace rows by key, as `decide` says of all rows of a corpus, which it is given.

        If another commit came after the rows were read, this one fails, and `decide` is asked again.
        """
        delta = self._open()
        mine = ds.field("corpus") == corpus
        with self.readable():
            rows = self.schema.empty_table() if delta is None else self._dataset(delta).to_table(filter=mine)
        changed = self._table(decide(rows))
        if delta is not None:
            self._merge_into(delta, changed, update=True)

    @_contended
    def delete(self, corpus: str, **where: Iterable[str]) -> None:
        """Delete the rows of a corpus in which every named column has one of some values. Raises as `read`."""
        delta = self._open()
        chosen = {name: sorted(set(values)) for name, values in where.items()}
        if delta is None or not all(chosen.values()):
            return
        terms = [f"corpus = {_literal(corpus)}"]
        terms += [f"{name} IN ({', '.join(map(_literal, values))})" for name, values in chosen.items()]
        with self.readable():
            delta.delete(" AND ".join(terms))

    def compact(self, corpus: str) -> int:
        """Compact the small files of a corpus if there are many; return the number of replaced files.

        Every commit adds a file and every merge opens all of them, so merges get slower. Versions older than a week
        lose their files, so only for tables without time travel. If it fails, the rows are unchanged and the next call
        tries again.
        """
        try:
            return self._compact(corpus)
        except (DeltaError, OSError) as error:
            _log.warning("the files of %s are not put together now: %s: %s", self.name, type(error).__name__, error)
            return 0

    @_contended
    def cluster(self, corpus: str, retention: timedelta) -> int:
        """Rewrite a corpus's files as few large ones, sorted by content hash; return the number of replaced files.

        Nothing is rewritten where the files are few for their size. Older versions are dropped (`drop_versions`).
        """
        delta = self._open()
        if delta is None:
            return 0
        sizes = self.files(corpus)["size_bytes"]
        replaced = 0
        if len(sizes) > _ENOUGH_FILES + 2 * (pc.sum(sizes).as_py() or 0) // FULL:
            options = {"partition_filters": [("corpus", "=", corpus)], "target_size": FULL, "writer_properties": FILES}
            sort = CLUSTERED in self.schema.names and "text" not in self.schema.names
            with self.readable():
                done = _sorted(delta, options) if sort else delta.optimize.compact(**options)
            replaced = int(done["numFilesRemoved"])
        self.drop_versions(retention)
        return replaced

    @_contended
    def drop_versions(self, retention: timedelta) -> None:
        """Delete the files that only earlier versions of the table have, and the entries of its log before those.

        Files of memagent's that no version has are deleted as well, once they are as old: those of a job that was
        killed before its commit. Others in the table's folder stay, since somebody may have documents there.

        Args:
            retention: versions younger than that are kept; whole hours, rounded up. Zero deletes at once: nothing else
                may use the table then.
        """
        delta = self._open()
        if delta is None:
            return
        hours = math.ceil(retention / timedelta(hours=1))
        enforced = hours >= _WEEK_HOURS
        delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=enforced)
        if self.name not in _SHARED_FOLDERS:
            for file in delta.vacuum(retention_hours=hours, enforce_retention_duration=enforced, full=True):
                if self._store.is_own(path := self._store.path(self.name, file)):
                    self._store.delete(path)
        _keep_log(delta, hours)
        delta.create_checkpoint()
        delta.cleanup_metadata()  # deletes what the checkpoint replaces
        # Later checkpoints, which writers make themselves, clean the log by this setting: not under another's feet.
        _keep_log(delta, max(hours, _WEEK_HOURS))

    def small_files(self, corpus: str) -> int:
        """Return how many small files a corpus has."""
        return int(pc.sum(pc.less(self.files(corpus)["size_bytes"], FULL // 2)).as_py() or 0)

    def files(self, corpus: str) -> pa.Table:
        """Return path, size_bytes and num_records of the files of a corpus, from the log."""
        files = self.entries()
        return files.filter(pc.equal(files["partition.corpus"], corpus)).select(["path", "size_bytes", "num_records"])

    def entries(self) -> pa.Table:
        """Return what the log says of all files: path, size_bytes, num_records, partition.corpus, min and max."""
        delta = self._open()
        if delta is not None:
            return pa.table(delta.get_add_actions(flatten=True))
        text, number = pa.array([], pa.string()), pa.array([], pa.int64())
        return pa.table({"path": text, "size_bytes": number, "num_records": number, "partition.corpus": text})

    @_contended
    def _compact(self, corpus: str) -> int:
        delta = self._open()
        if delta is None or self.small_files(corpus) < MANY:
            return 0
        # Needs deltalake below 1.6.4: 1.6.6 commits two concurrent compactions of the same files, which duplicates
        # their rows.
        done = delta.optimize.compact(
            [("corpus", "=", corpus)],
            target_size=FULL,
            writer_properties=WriterProperties(compression="ZSTD", max_row_group_size=_GROUP),
        )
        delta.vacuum(dry_run=False)
        return int(done["numFilesRemoved"])

    def read(self, corpus: str | None = None, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
        """Return the current rows, one that was written twice once; a missing table is empty.

        `filters` is an expression of pyarrow.compute; by default rows of all corpora with all columns are returned.

        Raises MemagentError: the log or a file is damaged, or a file is gone.
        """
        names = columns or self.schema.names
        delta = self._open()
        if delta is None:
            return pa.schema([self.schema.field(name) for name in names]).empty_table()
        key = self._on if corpus is None else self.key
        first_by = self._first_by
        needed = list(dict.fromkeys([*names, *key, first_by])) if first_by else names
        dataset = self._dataset(delta)
        mine = EVERY if corpus is None else ds.field("corpus") == corpus
        with self.readable():
            try:
                table = dataset.to_table(columns=needed, filter=mine if filters is None else mine & filters)
            except pa.ArrowNotImplementedError:
                table = self._filtered(dataset, needed, mine, filters)
        if first_by:
            table = first_of_each(table, key, [(first_by, "ascending")])
        return table.select(names).cast(pa.schema([self.schema.field(name) for name in names]))

    def _filtered(self, dataset: Any, names: list[str], mine: Any, filters: Any) -> pa.Table:
        """Filter batch by batch, after reading.

        Files written by a merge have string views, and pyarrow 26 cannot filter by their statistics (no kernel for
        string and string_view).
        """
        text = str(filters)  # a name too many costs time, not rows
        needed = names + [name for name in self.schema.names if name not in names and name in text]
        batches = dataset.to_batches(columns=needed, filter=mine)
        kept = (pa.Table.from_batches([batch]).filter(filters).select(names) for batch in batches)
        empty = pa.schema([dataset.schema.field(name) for name in names]).empty_table()
        return pa.concat_tables([empty, *kept], promote_options="permissive")

    def corpora(self) -> list[str]:
        """Return the corpora that have rows, from the log."""
        return sorted(self.entries()["partition.corpus"].unique().to_pylist())

    def fragments(self, corpus: str, filters: Any = EVERY) -> Iterator[Any]:
        """Yield the Parquet files of a corpus that may have rows that pass a filter, in any order.

        They are to be read within `readable`.
        """
        delta = self._open()
        if delta is not None:
            yield from self._dataset(delta).get_fragments(filter=(ds.field("corpus") == corpus) & filters)

    def fingerprint(self, corpus: str) -> str:
        """Return a hash of the corpus's files: it changes whenever the rows do."""
        return stable_hash(sorted(self.files(corpus)["path"].to_pylist()))

    def latest(self, corpus: str, column: str) -> datetime | None:
        """Return the latest time in a column of a corpus, from the log alone; None: no file tells."""
        files = self.entries()
        if f"max.{column}" not in files.column_names:
            return None
        times = files.filter(pc.equal(files["partition.corpus"], corpus))[f"max.{column}"]
        found: datetime | None = pc.max(times).as_py()
        return found and found.replace(tzinfo=UTC)

    def count(self, corpus: str) -> int:
        """Return how many rows the files of a corpus have, from the log alone."""
        return int(pc.sum(self.files(corpus)["num_records"]).as_py() or 0)

    def _dataset(self, delta: DeltaTable) -> ds.FileSystemDataset:
        """Return the table's files as a dataset, with corpus and range of content hashes as partition expressions.
        deltalake's own dataset takes a column without statistics for an empty one.
        """
        files = pa.table(delta.get_add_actions(flatten=True))
        paths, names = files["path"].to_pylist(), files["partition.corpus"].to_pylist()
        lows, highs = (
            files[name].to_pylist() if name in files.column_names else [None] * len(paths)
            for name in (f"min.{CLUSTERED}", f"max.{CLUSTERED}")
        )
        folder = pa_fs.SubTreeFileSystem(self._store.path(self.name), self._store.arrow)
        format = ds.ParquetFileFormat()
        fragments = []
        for path, name, low, high in zip(paths, names, lows, highs, strict=True):
            known = ds.field("corpus") == name
            if low is not None and high is not None:
                known &= (ds.field(CLUSTERED) >= low) & (ds.field(CLUSTERED) <= high)
            fragments.append(format.make_fragment(unquote(path), folder, known))
        return ds.FileSystemDataset(fragments, self.schema, format, folder)

    def committed(self, writer: str) -> int:
        """Return the number of a writer's last commit (`commit_files`); 0: there is none."""
        delta = self._open()
        return (delta and delta.transaction_version(writer)) or 0

    def version(self) -> int | None:
        """Return the table's version, or None before its first commit."""
        delta = self._open()
        return None if delta is None else delta.version()

    def _table(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> pa.Table:
        if isinstance(rows, pa.Table):
            return rows.select(self.schema.names).cast(self.schema)
        return pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)

    def _unique(self, rows: pa.Table | Iterable[Mapping[str, Any]], *, keep_last: bool) -> pa.Table:
        """Return one row for each key: a merge would insert or refuse duplicates."""
        table = self._table(rows)
        numbered = table.append_column("place", pa.array(range(table.num_rows), pa.int64()))
        order = [("place", "descending" if keep_last else "ascending")]
        return first_of_each(numbered, self._on, order).drop_columns("place")

    @_reopened
    def _open(self) -> DeltaTable | None:
        try:
            return open_delta(self._store.delta_uri(self.name), self._store.delta_options)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            said = str(error).partition("\n")[0]  # a backtrace may follow
            if "Forked process" in said:
                raise UsageError("a forked process cannot use the store: start it with method 'spawn'") from error
            if not said.startswith("Kernel error") or "object store" in said or "File not found" in said:
                raise
            raise _damaged("the log", f"table {self.name}", self._store, said) from error

    def readable(self) -> AbstractContextManager[None]:
        """Raise MemagentError where a Parquet file is damaged or gone; errors of a server and of a disk propagate."""
        return readable(self._store, f"table {self.name}")

    @_contended
    def _write(self, table: pa.Table) -> None:
        write_deltalake(
            self._store.delta_uri(self.name),
            table,
            mode="append",
            schema_mode="merge",  # a table of an earlier version gains the columns that it lacks
            partition_by=["corpus"],
            storage_options=self._store.delta_options,
            writer_properties=FILES,
        )

    def create(self) -> None:
        """Make the table, without rows, or give an earlier one the columns that it lacks."""
        self._write(self.schema.empty_table())

    def _create(self) -> DeltaTable:
        self.create()
        delta = self._open()
        if delta is None:
            raise RuntimeError(f"table {self.name} was made and is not there")
        return delta

    @_contended
    def _merge(self, source: pa.Table, *, update: bool) -> int:
        return self._merge_into(self._open() or self._create(), source, update=update) if source.num_rows else 0

    def _merge_into(self, delta: DeltaTable, source: pa.Table, *, update: bool) -> int:
        if not source.num_rows:
            return 0
        corpora = ", ".join(_literal(str(c)) for c in source["corpus"].unique().to_pylist())
        # The literal list lets Delta skip the files of other corpora.
        predicate = f"t.corpus IN ({corpora}) AND " + " AND ".join(f"t.{k} = s.{k}" for k in self._on)
        merger = delta.merge(source, predicate=predicate, source_alias="s", target_alias="t", merge_schema=True)
        if update:
            merger = merger.when_matched_update_all()
        with self.readable():
            done = merger.when_not_matched_insert_all().execute()
        return int(done["num_target_rows_inserted"]) + int(done["num_target_rows_updated"])


def _keep_log(delta: DeltaTable, hours: int) -> None:
    wanted = {"delta.logRetentionDuration": f"interval {hours} hours"}
    if not wanted.items() <= delta.metadata().configuration.items():
        delta.alter.set_table_properties(wanted)


def _sorted(delta: DeltaTable, options: dict[str, Any]) -> dict[str, Any]:
    """Sort a table's files by content hash, with more memory where less does not suffice."""
    for spill in _SPILLS:
        try:
            done: dict[str, Any] = delta.optimize.z_order([CLUSTERED], max_spill_size=spill, **options)
            return done
        except DeltaError as error:
            if "Resources exhausted" not in str(error) or spill == _SPILLS[-1]:
                raise
            delta.update_incremental()
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def readable(store: Store, what: str) -> Iterator[None]:
    """Raise MemagentError where a Parquet file of `what` is damaged or gone; see `is_damage`."""
    try:
        yield
    except (pa.ArrowInvalid, OSError, DeltaError) as error:
        if not is_damage(error):
            raise
        raise _damaged("a file", what, store, str(error).partition("\n")[0]) from error


def is_damage(error: Exception) -> bool:
    """Whether an error says that a Parquet file is damaged or gone; those of a server, a disk or memory do not."""
    if isinstance(error, _PASSING):
        return False
    said = str(error)
    if isinstance(error, DeltaError):
        return "Parquet" in said and bool(_CUT.search(said) or not _OTHERS.search(said))
    # An OSError of Arrow's decoders has no number; deltalake writes it into the text.
    number = int(found[1]) if (found := OS_ERROR.search(said)) else getattr(error, "errno", None)
    return number in (None, ENOENT) and "AWS Error" not in said


def _damaged(part: str, what: str, store: Store, said: str) -> MemagentError:
    return MemagentError(
        f"{part} of {what} in {store.url} is damaged ({said}): memagent check CORPUS names the files, and --repair "
        "mends what it can"
    )


def path_corpus(path: str) -> str:
    """Return the corpus of a data file by its path in the log, ``corpus=NAME/...``, quoted as folder and as path."""
    return unquote(unquote(path.partition("/")[0])).removeprefix("corpus=")


def _add(file: DataFile, corpus: str, *, new: bool = True) -> AddAction:
    """Return the entry of a file for a table's log; `new`: its rows are."""
    return AddAction(file["path"], file["size"], {"corpus": corpus}, int(time.time() * 1000), new, file["stats"])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
