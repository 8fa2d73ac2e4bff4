"""The turn log: the append-only record of every conversation.

It is the checkpoint, the provenance and the training data at once. Workers write parts of a few
seconds each, whole or not at all; after a run its parts are put together, sorted by reading. The key
is (reading_id, lane, step); where a key stands twice (a part and its compacted copy), one counts.
"""

import threading
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from infra.store import Corpus, Store
from infra.tables.delta import Table, now
from infra.tables.runs import ENDED
from infra.tables.schemas import TURNS
from memagent.records import Turn

_FOLDER = "turns"
_TURN_FIELDS = [f.name for f in fields(Turn)]
_KEY = ("reading_id", "lane", "step")
_COMPACT_BYTES = 64 * 2**20
"""Bytes that compaction holds at once, before compression."""


class TurnWriter:
    """Buffers the turns of one worker and writes them as parts. One thread may add while another flushes."""

    def __init__(self, corpus: Corpus, run_id: str, policy_id: str) -> None:
        self._store = corpus.store
        self._folder = (_FOLDER, corpus.name, run_id)
        self._extra = {"policy_id": policy_id, "run_id": run_id}
        self._worker = uuid.uuid4().hex[:12]
        self._parts = 0
        self._buffer: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @property
    def buffered(self) -> int:
        """Turns that are not written yet."""
        return len(self._buffer)

    def add(self, turn: Turn) -> None:
        """Take a turn; it is durable after the next `flush`."""
        row = {**asdict(turn), **self._extra, "written_at": now()}
        with self._lock:  # or it goes into a buffer that has just been written
            self._buffer.append(row)

    def flush(self) -> int:
        """Write what is buffered as one part; return how many turns."""
        with self._lock:
            rows, self._buffer = self._buffer, []
        if not rows:
            return 0
        try:
            table = pa.Table.from_pylist(rows, schema=TURNS)
            self._store.write_part(table, *self._folder, f"{self._worker}-{self._parts:06d}.parquet")
        except BaseException:
            with self._lock:
                self._buffer[:0] = rows
            raise
        self._parts += 1
        return len(rows)


def turns(corpus: Corpus, reading_ids: Iterable[str], run_id: str | None = None) -> list[Turn]:
    """Return all logged turns of some readings, in order, each key once."""
    table = _scan(corpus, list(reading_ids), _paths(corpus, [run_id] if run_id else None), _TURN_FIELDS)
    return _turns(table)


def turn_table(corpus: Corpus, reading_ids: Iterable[str], columns: list[str]) -> pa.Table:
    """Return chosen columns of all logged turns of some readings, in order, each key once.

    For those that need no token ids: they are most of a row. `columns` includes the key.
    """
    return _scan(corpus, list(reading_ids), _paths(corpus), columns)


def unfinished_runs(corpus: Corpus) -> list[str]:
    """Return the runs that have logged turns and did not come to their end: they may have half-read readings."""
    ended = Table(corpus.store, "runs").read(corpus.name, ["run_id"], ENDED)
    return sorted(set(corpus.store.folders(_FOLDER, corpus.name)).difference(ended["run_id"].to_pylist()))


def resume_points(
    corpus: Corpus, reading_ids: Iterable[str], runs: Collection[str] | None = None
) -> dict[str, list[Turn]]:
    """Return, by reading, the turns from which it continues: see `memagent.conversations.ReadingRequest`, `past`.

    The turns that changed the memory, the first and the last of every lane, and the answer, if it is logged. Only of
    these are texts and token ids held in memory: a log has millions of turns, and few are needed.

    Args:
        corpus: whose log.
        reading_ids: the readings.
        runs: search the turns of these runs only.
    """
    wanted = list(reading_ids)
    paths = _paths(corpus, runs)
    if not wanted or not paths:
        return {}
    keys = _scan(corpus, wanted, paths, [*_KEY, "kind", "changed"])
    telling = keys.filter(_telling(keys)).select([*_KEY, "written_at"])
    by_reading: dict[str, list[Turn]] = defaultdict(list)
    if not telling.num_rows:
        return {}
    found = [
        _among(batch, telling)
        for batch in _dataset(paths, corpus.store).to_batches(
            columns=[*_TURN_FIELDS, "written_at"], filter=_of(telling["reading_id"].unique().to_pylist())
        )
    ]
    for turn in _turns(_dedupe(pa.concat_tables(found))):
        by_reading[turn.reading_id].append(turn)
    return dict(by_reading)


def _among(batch: pa.RecordBatch, keys: pa.Table) -> pa.Table:
    """Return the rows of a batch whose key and time stand among `keys`."""
    table = pa.table(batch)
    numbered = table.select([*_KEY, "written_at"]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    kept = numbered.join(keys, keys=[*_KEY, "written_at"], join_type="left semi")["row"]
    return table.take(kept)


def _telling(table: pa.Table) -> pa.Array:
    """Tell which turns of a sorted log say what the ones beside them do not say.

    Most turns leave the memory as it was. Of a run of these the last one stays where it ends its lane or
    stands before the answer. Column by column: a log has millions of turns, and few are telling.
    """
    if not table.num_rows:
        return pa.array([], pa.bool_())
    kind, step = table["kind"].combine_chunks(), table["step"].combine_chunks()
    unchanged = pc.invert(table["changed"].combine_chunks())
    passing = pc.and_(pc.and_(unchanged, pc.equal(kind, "update")), pc.greater(step, 0))
    last = pc.equal(kind.slice(1), "answer")
    for name in ("reading_id", "lane"):
        column = table[name].combine_chunks()
        last = pc.or_(last, pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return pc.or_(pc.invert(passing), pa.concat_arrays([last, pa.array([True])]))


def carry(past: list[Turn], to: str, keep: int) -> list[Turn]:
    """Turn the log of an earlier reading into the beginning of another, for its first `keep` segments.

    The memory after segment k depends on the segments up to k alone, so a document whose first `keep`
    segments are unchanged is read on from there. Only readings of one lane have such a memory.
    Returns turns of kind ``carried``, empty when the earlier log does not reach so far.
    """
    read = [turn for turn in past if turn.lane == 0 and turn.kind in ("update", "carried")]
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


def compact(corpus: Corpus, run_id: str) -> int:
    """Put the small parts of a finished run together; return how many parts are left.

    Each new part is made of as many old ones as come to some megabytes, sorted by reading. Safe to interrupt: a new
    part is there before its old ones go, and readers count a key once.
    """
    parts = corpus.store.list(_FOLDER, corpus.name, run_id)
    small = [path for path in parts if "/sorted-" not in path]
    if len(small) < 2:
        return len(parts)
    stamp = uuid.uuid4().hex[:8]
    count = len(parts) - len(small)
    for paths in _chunks(corpus.store, small):
        table = _dedupe(_dataset(paths, corpus.store).to_table())
        name = f"sorted-{stamp}-{count:05d}.parquet"
        corpus.store.write_part(table, _FOLDER, corpus.name, run_id, name, row_group_size=2_000)
        count += 1
        for path in paths:
            corpus.store.delete(path)
    return count


def _chunks(store: Store, paths: list[str]) -> Iterator[list[str]]:
    """Yield parts that are put together: up to `_COMPACT_BYTES` before compression."""
    chunk: list[str] = []
    size = 0
    for path in paths:
        with pq.ParquetFile(path, filesystem=store.arrow) as file:
            groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        chunk.append(path)
        size += sum(group.total_byte_size for group in groups)
        if size >= _COMPACT_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _paths(corpus: Corpus, runs: Collection[str] | None = None) -> list[str]:
    """Return the parts of some runs, or of all."""
    if runs is None:
        return corpus.store.list(_FOLDER, corpus.name)
    return [path for run_id in runs for path in corpus.store.list(_FOLDER, corpus.name, run_id)]


def _scan(corpus: Corpus, reading_ids: list[str], paths: list[str], columns: list[str]) -> pa.Table:
    if not paths or not reading_ids:
        return TURNS.empty_table()
    return _dedupe(_dataset(paths, corpus.store).to_table(columns=[*columns, "written_at"], filter=_of(reading_ids)))


def _dataset(paths: list[str], store: Store) -> ds.Dataset:
    return ds.dataset(paths, filesystem=store.arrow, schema=TURNS)


def _of(reading_ids: list[str]) -> Any:
    return ds.field("reading_id").isin(pa.array(reading_ids, pa.string()))


def _dedupe(table: pa.Table) -> pa.Table:
    """Sort by key, and keep the first written row of each."""
    order = [("reading_id", "ascending"), ("lane", "ascending"), ("step", "ascending"), ("written_at", "ascending")]
    table = table.take(pc.sort_indices(table, sort_keys=order))
    if table.num_rows < 2:
        return table
    repeated = None
    for name in _KEY:
        column = table[name].combine_chunks()
        equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
        repeated = equal if repeated is None else pc.and_(repeated, equal)
    keep = pa.concat_arrays([pa.array([True]), pc.invert(repeated)])
    return table.filter(keep)


def _turns(table: pa.Table) -> list[Turn]:
    return [Turn(**row) for row in table.select(_TURN_FIELDS).to_pylist()]
