"""Erasing: rows of documents are taken out of every kind of file, and the store is searched for what must be gone."""

import io
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.store import Corpus, Store
from infra.tables.delta import Table
from memagent.errors import MemagentError

_log = logging.getLogger("memagent.forget")
_KEYS = 10_000
"""Values of a column by which a table's rows are deleted at once."""
_ROWS = 1_000
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

    Args:
        store: where it is.
        path: of the part.
        erased: what is erased.
        keep_damaged: a damaged part is an error, since `check` can save what hangs on it; else it is deleted.

    Raises:
        MemagentError: the part is damaged.
    """
    gone = kept = 0
    sink = io.BytesIO()
    try:
        with (
            pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False) as file,
            pq.ParquetWriter(sink, file.schema_arrow, compression="zstd", write_page_checksum=True) as writer,
        ):
            for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
                table = pa.Table.from_batches([batch])
                rest = table.filter(pc.invert(erased.among(table)))
                gone, kept = gone + table.num_rows - rest.num_rows, kept + rest.num_rows
                writer.write_table(rest)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        if keep_damaged:
            raise_damaged(store, path, error)
        _log.warning("%s is corrupt, contents unknown (%s); deleted", path, error)
        store.delete(path)
        return 0
    except OSError as error:  # a damaged footer, or a store that is away: nothing is deleted for that
        raise_damaged(store, path, error)
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
    """Search every file of the store, whatever its format; yield (path in the store, text) once for each that is there.

    Parquet is decoded, and compressed files are inflated: a text is found where a reader would. It is also found as
    JSON has it, and as JSON within JSON.

    Args:
        store: that is searched.
        texts: that are searched for.
        but: the path of a file that is passed over.
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
                for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
                    for row in batch.to_pylist():
                        yield _strings(row)
            return
    except (pa.ArrowException, OSError):
        pass  # no Parquet: it is searched as it is
    with store.fs.open(path, "rb", compression="infer") as stream:
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
