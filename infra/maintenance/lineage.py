"""Traces of texts: everything that a corpus has made of them, also in runs that never came to their end."""

import io
import json
import logging
import lzma
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.store.delta import Table, is_damage
from infra.store.location import Corpus, Store
from infra.store.schemas import QaRow
from infra.store.turns import FOLDER, logged_runs
from memagent.errors import MemagentError

_log = logging.getLogger("memagent.forget")
_KEYS = 10_000
"""Values of a column by which a table's rows are deleted at once."""
_BATCH_ROWS = 1_000
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class Erased:
    """What is to be erased: a row that has any of it goes."""

    doc_ids: frozenset[str]
    content_hashes: frozenset[str]
    """Of all versions of the documents, and of the archives that they are part of."""
    reading_ids: frozenset[str]

    def among(self, table: pa.Table) -> pa.Array:
        """Return a mask of the rows that are about any of it."""
        mask = pa.array([False] * table.num_rows, pa.bool_())
        columns = {
            "doc_id": self.doc_ids,
            "content_hash": self.content_hashes,
            "reading_id": self.reading_ids,
            "answered_by": self.reading_ids,
            "carried_from": self.reading_ids,
        }
        for name, values in columns.items():
            if name in table.column_names and values:
                column = table[name].combine_chunks().cast(pa.string())
                mask = pc.or_(mask, pc.fill_null(pc.is_in(column, pa.array(sorted(values), pa.string())), False))
        return mask


def erase_rows(corpus: Corpus, name: str, column: str, values: Collection[str]) -> None:
    """Delete the rows of a table in which a column has any of the values."""
    table, ordered = Table(corpus.store, name), sorted(values)
    for first in range(0, len(ordered), _KEYS):
        table.delete(corpus.name, **{column: ordered[first : first + _KEYS]})


def erase_from_part(store: Store, path: str, erased: Erased, *, keep_damaged: bool) -> int:
    """Rewrite a Parquet part without the rows of what is erased; return how many went. Memory is that of a batch.

    A damaged part is deleted, or kept where `check` can save what hangs on it (`keep_damaged`).

    Raises MemagentError: a part that is to be kept is damaged.
    """
    gone = kept = 0
    sink = io.BytesIO()
    try:
        with (
            pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False) as file,
            pq.ParquetWriter(sink, file.schema_arrow, compression="zstd", write_page_checksum=True) as writer,
        ):
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                table = pa.Table.from_batches([batch])
                rest = table.filter(pc.invert(erased.among(table)))
                gone, kept = gone + table.num_rows - rest.num_rows, kept + rest.num_rows
                writer.write_table(rest)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if keep_damaged or not is_damage(error):  # a store that is away: nothing is deleted for that
            raise_damaged(store, path, error)
        _log.warning("%s is corrupt, contents unknown (%s); deleted", path, error)
        store.delete(path)
        return 0
    if gone and kept:
        store.write_bytes(sink.getvalue(), path.removeprefix(store.path("")))
    elif gone:
        store.delete(path)
    return gone


def raise_damaged(store: Store, path: str, error: Exception) -> NoReturn:
    """Say that nobody can say what is in a file, and what to do. Raises MemagentError."""
    raise MemagentError(
        f"{path.removeprefix(store.path(''))} cannot be read, contents unknown: memagent check CORPUS "
        f"--repair sets it aside; then forget again ({str(error)[:200]})"
    ) from error


def find_texts(store: Store, texts: Sequence[str], but: str = "") -> Iterator[tuple[str, str]]:
    """Search every file of the store but one; yield (path in the store, text) once for each text that is there.

    Parquet is decoded, and compressed files are inflated: a text is found where a reader would. It is also found as
    JSON has it, and as JSON within JSON.
    """
    forms = {text: _forms(text) for text in texts}
    for path in (path for path in store.sizes(suffix="", hidden=True) if path != but):
        left = set(texts)
        try:
            for piece in _pieces(store, path):
                local = {text for text in left if any(form in piece for form in forms[text])}
                left -= local
                for text in sorted(local):
                    yield path.removeprefix(store.path("")), text
                if not left:
                    break
        except FileNotFoundError:  # a heartbeat of a run that gave up waiting
            continue


def _forms(text: str) -> set[bytes]:
    """Return a text as files may have it."""
    forms = {text}
    for plain in (True, False):
        once = json.dumps(text, ensure_ascii=plain)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=plain)[1:-1]}
    return {form.encode() for form in forms}


def _pieces(store: Store, path: str) -> Iterator[bytes]:
    """Yield the content of a file; consecutive pieces of a plain one overlap."""
    try:
        if path.endswith(".parquet"):
            with pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                    for row in batch.to_pylist():
                        yield _strings(row)
            return
    except (pa.ArrowException, OSError):
        pass  # no Parquet: it is searched as it is
    try:
        yield from _overlapping(store, path, "infer")
    except FileNotFoundError:
        raise
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        _log.warning("%s cannot be inflated (%s): it is searched as it is", path, error)
        yield from _overlapping(store, path, None)


def _overlapping(store: Store, path: str, compression: str | None) -> Iterator[bytes]:
    with store.fs.open(path, "rb", compression=compression) as stream:
        before = b""
        while data := stream.read(_PIECE):
            yield before + data
            before = data[-4096:]


def _strings(value: object) -> bytes:
    """Return all strings within a value, one after another, as they are."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace") + b"\0"
    if isinstance(value, dict):
        return b"".join(map(_strings, value.values()))
    if isinstance(value, list | tuple):
        return b"".join(map(_strings, value))
    return b""


_ROWS = 10_000


def erased_with(corpus: Corpus, doc_ids: Collection[str], hashes: Collection[str]) -> Erased:
    """Return what goes with some texts: the archives that any of them is part of, and all readings of either.

    Readings are looked for in answers, in the plans of all runs, and in their turn logs: one that was killed has no
    answer, and its memory may hold what it had read.
    """
    wanted = pa.array(sorted(hashes), pa.string())
    streams = _archives(corpus, wanted) if len(wanted) else set()
    everything = pa.array(sorted({*hashes, *streams}), pa.string())
    readings: set[str] = set()
    answers = Table(corpus.store, "answers").read(corpus.name, ["reading_id", "content_hash"])
    for table in (answers, *_rows_of_plans(corpus, ["reading_id", "content_hash"])):
        readings.update(table.filter(pc.is_in(table["content_hash"], everything))["reading_id"].to_pylist())
    for path in corpus.store.list(FOLDER, corpus.name):
        for table in _batches(corpus, path, ["reading_id", "content_hash"]):
            readings.update(table.filter(pc.is_in(table["content_hash"], wanted))["reading_id"].to_pylist())
    return Erased(frozenset(doc_ids), frozenset([*hashes, *streams]), frozenset(readings))


def training_rows(corpus: Corpus, erased: Erased) -> list[QaRow]:
    """Return qa_id, stream, documents and harvested_at of the training rows that are of any of it."""
    columns = ["qa_id", "stream", "documents", "harvested_at"]
    rows: list[QaRow] = Table(corpus.store, "qa").read(corpus.name, columns).to_pylist()
    return [
        row
        for row in rows
        if not erased.content_hashes.isdisjoint(row["stream"] or [])
        or not erased.doc_ids.isdisjoint(row["documents"] or [])
    ]


def segment_parts(corpus: Corpus, erased: Erased) -> list[str]:
    """Return the parts of segments that have any of it."""
    segmented = Table(corpus.store, "segmented").read(corpus.name, ["content_hash", "part"])
    return sorted(set(segmented.filter(erased.among(segmented))["part"].to_pylist()))


def unknown_parts(corpus: Corpus) -> list[str]:
    """Return the paths of the parts of segments that no row names: their writer was killed."""
    known = set(Table(corpus.store, "segmented").read(corpus.name, ["part"])["part"].to_pylist())
    root = corpus.store.path("")
    return [path for path in corpus.store.list("segments", corpus.name) if path.removeprefix(root) not in known]


def _archives(corpus: Corpus, wanted: pa.Array) -> set[str]:
    """Return the hashes of the archives that have any of some texts, or of which nobody can say what they have."""
    found, known = set(), set()
    for path in corpus.store.list("streams", corpus.name):
        name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
        known.add(name)
        try:
            has = any(pc.any(pc.is_in(table["content_hash"], wanted)).as_py() for table in _batches(corpus, path, None))
        except MemagentError:  # damaged
            has = True
        if has:
            found.add(name)
    columns = ["content_hash", "scope", "stream"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns)
    for table in (answers, *_rows_of_plans(corpus, columns)):
        for row in table.filter(pc.equal(table["scope"], "archive")).to_pylist():
            if row["content_hash"] not in known:
                known.add(row["content_hash"])
                if not row["stream"] or pc.any(pc.is_in(pa.array(row["stream"], pa.string()), wanted)).as_py():
                    found.add(row["content_hash"])
    return found


def runs_of(corpus: Corpus) -> list[str]:
    """Return all runs of a corpus, those with nothing but a turn log as well."""
    known = Table(corpus.store, "runs").read(corpus.name, ["run_id"])["run_id"].to_pylist()
    return sorted({*known, *logged_runs(corpus)})


def _rows_of_plans(corpus: Corpus, columns: list[str]) -> Iterator[pa.Table]:
    for run_id in runs_of(corpus):
        for path in corpus.store.list("runs", run_id, "plan"):
            with suppress(MemagentError):  # a damaged one says nothing to anybody, and goes (`erase_from_part`)
                yield from _batches(corpus, path, columns)


def _batches(corpus: Corpus, path: str, columns: list[str] | None) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(path, filesystem=corpus.store.arrow, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if not is_damage(error):
            raise
        raise_damaged(corpus.store, path, error)
