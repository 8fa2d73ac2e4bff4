"""The turn log: the append-only record of every conversation.

It is the checkpoint, the provenance and the training data at once. Workers write parts of a few seconds each,
atomically (`infra.store.turns`). The key is (reading_id, span, step); of duplicate
keys (a part and its compacted copy), one counts.
"""

import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from infra.maintenance.integrity import raise_if_damaged, unreadable
from infra.store.buckets import first_of_each, groups_of, one_of
from infra.store.location import Corpus, Store
from infra.store.runs import closed_runs
from infra.store.schemas import TURNS, now
from memagent.errors import MemagentError
from memagent.records import Turn

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
    count = 0
    try:
        batches = _dataset(list(paths), corpus.store).to_batches(batch_size=_COMPACT_ROWS)
        for group in groups_of(((batch, batch.nbytes) for batch in batches), _PART_BYTES):
            parts = (FOLDER, corpus.name, run_id, f"sorted-{uuid.uuid4().hex}.parquet")
            corpus.store.write_part(dedupe(pa.Table.from_batches(group)), *parts, row_group_size=2_000)
            count += 1
    except OSError:
        if all(corpus.store.exists(path.removeprefix(corpus.store.path(""))) for path in paths):
            raise
        return count  # another process compacts them
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(corpus.store.delete, paths))
    return count


def _paths(corpus: Corpus, runs: Collection[str] | None = None) -> list[str]:
    if runs is None:
        return corpus.store.list(FOLDER, corpus.name)
    return [path for run_id in runs for path in corpus.store.list(FOLDER, corpus.name, run_id)]


def with_parts(corpus: Corpus, runs: Collection[str] | None, read: Callable[[list[str]], _Read]) -> _Read:
    """Call `read` with the paths of the parts of some runs, or of all.

    It is called again if some were compacted, and so replaced, meanwhile.

    Raises MemagentError: a part is damaged.
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


_TURN_FIELDS = [f.name for f in fields(Turn)]
_ROW_BYTES = 300
"""Of a turn without its response."""


class TurnWriter:
    """Buffers the turns of one worker and writes them as parts. One thread may add while another flushes."""

    def __init__(self, corpus: Corpus, run_id: str, policy_id: str) -> None:
        self._store = corpus.store
        self._folder = (FOLDER, corpus.name, run_id)
        self._extra = {"policy_id": policy_id, "run_id": run_id}
        self._worker = uuid.uuid4().hex[:12]
        self._parts = 0
        self._buffer: list[Mapping[str, object]] = []
        self._lock = threading.Lock()
        self.buffered_bytes = 0
        """About how many bytes are not written yet, before compression."""

    def add(self, turn: Turn) -> None:
        """Add a turn; it is durable after the next `flush`."""
        values = {name: getattr(turn, name) for name in _TURN_FIELDS}  # its lists are never changed: none is copied
        row = {**values, **self._extra, "written_at": now()}
        with self._lock:  # else it could go into a buffer that has just been written
            self._buffer.append(row)
            self.buffered_bytes += _size(turn)

    def flush(self) -> int:
        """Write what is buffered as one part; return how many turns."""
        with self._lock:
            rows, self._buffer = self._buffer, []
            size, self.buffered_bytes = self.buffered_bytes, 0
        if not rows:
            return 0
        try:
            table = pa.Table.from_pylist(rows, schema=TURNS)
            self._store.write_part(table, *self._folder, f"{self._worker}-{self._parts:06d}.parquet")
        except BaseException:
            with self._lock:
                self._buffer[:0] = rows
                self.buffered_bytes += size
            raise
        self._parts += 1
        return len(rows)


def _size(turn: Turn) -> int:
    return _ROW_BYTES + len(turn.response) + 4 * len(turn.response_ids) + 4 * len(turn.logprobs or ())


def turns(corpus: Corpus, reading_ids: Iterable[str], run_id: str | None = None) -> list[Turn]:
    """Return all logged turns of some readings, in order, each key once."""
    wanted = list(reading_ids)
    runs = [run_id] if run_id else None
    return _turns(with_parts(corpus, runs, lambda paths: _scan(corpus, wanted, paths, _TURN_FIELDS)))


def turn_table(
    corpus: Corpus, reading_ids: Iterable[str], columns: list[str], runs: Collection[str] | None = None
) -> pa.Table:
    """Return chosen columns of all logged turns of some readings, in order, each key once.

    Without token ids, most of a row is not read. `columns` includes the key; `runs`: search the log of these alone.
    """
    wanted = list(reading_ids)
    return with_parts(corpus, runs, lambda paths: _scan(corpus, wanted, paths, columns))


def unfinished_runs(corpus: Corpus) -> list[str]:
    """Return the runs that have logged turns and are not closed: they may have interrupted readings."""
    return sorted(set(logged_runs(corpus)) - closed_runs(corpus))


def logged_conversations(corpus: Corpus, reading_ids: Collection[str]) -> Counter[str]:
    """Count the conversations of some readings that are logged, the final answers among them."""

    def read(paths: list[str]) -> Counter[str]:
        keys = _scan(corpus, list(reading_ids), paths, [*KEY, "kind"])
        return Counter(keys.filter(pc.not_equal(keys["kind"], "carried"))["reading_id"].to_pylist())

    return with_parts(corpus, None, read)


def resume_points(
    corpus: Corpus, reading_ids: Iterable[str], runs: Collection[str] | None = None
) -> dict[str, list[Turn]]:
    """Return, by reading, the turns from which it continues (`ReadingRequest.past`), logged by some runs, or by any.

    The turns that changed the memory, the first and the last of every span, and the answer, if it is logged. Only of
    these are texts and token ids held in memory: a log has millions of turns, and few are needed.
    """
    wanted = list(reading_ids)
    return with_parts(corpus, runs, lambda paths: _resume_points(corpus, wanted, paths)) if wanted else {}


def _resume_points(corpus: Corpus, wanted: list[str], paths: list[str]) -> dict[str, list[Turn]]:
    if not paths:
        return {}
    keys = _scan(corpus, wanted, paths, [*KEY, "kind", "changed", "finish_reason"])
    telling = keys.filter(_telling(keys)).select([*KEY, "written_at"])
    by_reading: dict[str, list[Turn]] = defaultdict(list)
    if not telling.num_rows:
        return {}
    tables = [
        _among(batch, telling)
        for batch in filterable(paths, corpus.store).to_batches(
            columns=[*_TURN_FIELDS, "written_at"], filter=_of(telling["reading_id"].unique().to_pylist())
        )
    ]
    for turn in _turns(dedupe(pa.concat_tables(tables))):
        by_reading[turn.reading_id].append(turn)
    return dict(by_reading)


def _among(batch: pa.RecordBatch, keys: pa.Table) -> pa.Table:
    """Return the rows of a batch whose key and time stand among `keys`."""
    table = pa.table(batch)
    numbered = table.select([*KEY, "written_at"]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    kept = numbered.join(keys, keys=[*KEY, "written_at"], join_type="left semi")["row"]
    return table.take(kept)


def _telling(table: pa.Table) -> pa.Array:
    """Return a mask of the turns needed to resume.

    Most turns leave the memory unchanged. Of a sequence of these, the last one is needed if it ends its span or
    precedes the answer, and so are those whose response was empty. Computed column by column: a log has millions of
    turns, and few are needed.
    """
    if not table.num_rows:
        return pa.array([], pa.bool_())
    kind, step = table["kind"].combine_chunks(), table["step"].combine_chunks()
    empty = pc.is_in(table["finish_reason"].combine_chunks(), value_set=pa.array(["empty"]))
    unchanged = pc.invert(pc.or_(table["changed"].combine_chunks(), empty))
    passing = pc.and_(pc.and_(unchanged, pc.equal(kind, "update")), pc.greater(step, 0))
    last = pc.equal(kind.slice(1), "answer")
    for name in ("reading_id", "span"):
        column = table[name].combine_chunks()
        last = pc.or_(last, pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return pc.or_(pc.invert(passing), pa.concat_arrays([last, pa.array([True])]))


def carry(past: list[Turn], to: str, keep: int) -> list[Turn]:
    """Turn the log of an earlier reading into the beginning of another, for its first `keep` segments.

    The memory after segment k depends on the segments up to k alone, so a document whose first `keep` segments are
    unchanged is resumed there. Only for readings with one span. Returns turns of kind ``carried``, empty when the
    earlier log does not reach so far.
    """
    read = [turn for turn in past if turn.span == 0 and turn.kind in ("update", "carried")]
    keep = min(keep, read[-1].step + 1) if read else 0
    before = [turn for turn in read if turn.step < keep]
    if not before:
        return []
    latest = before[-1]
    last = replace(latest, step=keep - 1, changed=latest.changed and latest.step == keep - 1)
    chosen = [turn for turn in before if turn.changed and turn.step < keep - 1] + [last]
    return [
        replace(
            turn,
            reading_id=to,
            kind="carried",
            carried_from=turn.carried_from or turn.reading_id,
            response_ids=[],
            response="",
            prompt_tokens=0,
            cached_tokens=0,
            seconds=0.0,
            logprobs=None,
        )
        for turn in chosen
    ]


def _scan(corpus: Corpus, reading_ids: list[str], paths: list[str], columns: list[str]) -> pa.Table:
    if not paths or not reading_ids:
        return TURNS.empty_table()
    dataset = filterable(paths, corpus.store)
    return dedupe(dataset.to_table(columns=[*columns, "written_at"], filter=_of(reading_ids)))


def _of(reading_ids: list[str]) -> Any:
    return one_of("reading_id", reading_ids)


def _turns(table: pa.Table) -> list[Turn]:
    return [Turn(**row) for row in table.select(_TURN_FIELDS).to_pylist()]
