"""The current documents of a corpus."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from infra.store import Corpus
from infra.tables.buckets import WHOLE, Bucket, buckets
from infra.tables.delta import Table
from infra.tables.distinct import are_first, first_of_each
from infra.tables.rows import DocumentRow, FailureRow, NewDocument, SourceRow
from infra.tables.schemas import DOCUMENTS, QUARANTINE

_ROWS = 10_000
"""Rows that are Python objects at once."""
_NEWEST = (("seen_at", "descending"), ("state", "ascending"))
"""Order of the rows of a document: of two at the same time, that of the present one is before a superseded one's."""


def current_documents(
    corpus: Corpus, columns: list[str] | None = None, bucket: Bucket = WHOLE, *, ordered: bool = True
) -> pa.Table:
    """Return the row of each document that is present.

    Args:
        corpus: whose documents.
        columns: columns of `infra.tables.schemas.DOCUMENTS`; by default all. Texts are read by `document_texts`.
        bucket: only the documents whose content hash is in it.
        ordered: by `first_seen`, then `doc_id`: an archive is read in this order, so that new documents come last.
            False: in any order, which is quicker.
    """
    names = columns or DOCUMENTS.names
    order = ["first_seen"] if ordered else []
    needed = list(dict.fromkeys([*names, "doc_id", "content_hash", "state", "seen_at", *order]))
    table = Table(corpus.store, "documents").read(corpus.name, needed, bucket.contains("content_hash"))
    # The versions of a document are in different buckets, so replaced ones have a row with state superseded.
    key = ("doc_id",) if bucket.count == 1 else ("doc_id", "content_hash")
    local, first = pc.equal(table["state"], "present"), are_first(table, key, _NEWEST)
    local = local if first is None else pc.and_(local, first)
    table = table.select(list(dict.fromkeys([*names, *order, *(["doc_id"] if ordered else [])])))
    if not pc.all(local, min_count=0).as_py():  # a filter copies every column
        table = table.filter(local)
    if ordered:
        table = table.sort_by([("first_seen", "ascending"), ("doc_id", "ascending")])
    return table.select(names)


def present(table: pa.Table, *key: str) -> pa.Table:
    """Return the newest row of each document (or value of the columns `key`), of those that are present."""
    table = newest(table, *(key or ("doc_id",)))
    return table.filter(pc.equal(table["state"], "present"))


def has_documents(corpus: Corpus) -> bool:
    """Whether the corpus has any document."""
    count = documents_count(corpus)
    return bool(count) and any(current_documents(corpus, ["doc_id"], bucket).num_rows for bucket in buckets(count))


def documents_count(corpus: Corpus) -> int:
    """Return an upper bound of the number of documents: the rows of all versions, from the table's log alone."""
    return Table(corpus.store, "documents").count(corpus.name)


def document_texts(
    corpus: Corpus, content_hashes: Collection[str], bucket: Bucket = WHOLE
) -> Iterator[tuple[str, str]]:
    """Yield (content_hash, text), each hash once, in no order; those that are not there are left out.

    One row group of the table is held at a time, and only those are read that can have a wanted text.

    Args:
        corpus: whose documents.
        content_hashes: of the texts.
        bucket: where all of them are.
    """
    wanted = set(content_hashes)
    inside = bucket.contains("content_hash")
    for fragment in Table(corpus.store, "texts").fragments(corpus.name, inside):
        if not wanted:
            return
        hashes = [
            name for batch in _batches(fragment, ["content_hash"], inside, 10_000) for name in batch[0].to_pylist()
        ]
        local = wanted.intersection(hashes)
        if not local:
            continue
        keep = ds.field("content_hash").isin(pa.array(sorted(local), pa.string()))
        for batch in _batches(fragment, ["content_hash", "text"], keep, 64):
            for content_hash, text in zip(batch.column("content_hash"), batch.column("text"), strict=True):
                # The row of a document that was deleted has none.
                if (name_here := content_hash.as_py()) in wanted and text.is_valid:
                    wanted.remove(name_here)
                    yield name_here, text.as_py()


def _batches(fragment: Any, columns: list[str], keep: pc.Expression | None, size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file that pass a filter, at most `size` at once; of one that a deletion rewrote, all rows.

    Such files have string views, and pyarrow 26 cannot filter by their statistics.
    """
    try:
        yield from fragment.to_batches(columns=columns, filter=keep, batch_size=size)
    except pa.ArrowNotImplementedError:  # before the first batch
        yield from fragment.to_batches(columns=columns, batch_size=size)


def default_texts(corpus: Corpus) -> set[str]:
    """Return the content hashes of all versions of the documents that are present now; deleted ones have none."""
    present = set(current_documents(corpus, ["doc_id"])["doc_id"].to_pylist())
    rows = Table(corpus.store, "documents").read(
        corpus.name, ["doc_id", "content_hash"], pc.field("state") == "present"
    )
    return {row["content_hash"] for row in rows.to_pylist() if row["doc_id"] in present}


def current_sources(corpus: Corpus, columns: list[str] | None = None) -> pa.Table:
    """Return the newest row of each source that an ingest has seen (columns of `infra.tables.schemas.SOURCES`)."""
    needed = list(dict.fromkeys([*columns, "source", "state", "seen_at"])) if columns else None
    return newest(Table(corpus.store, "sources").read(corpus.name, needed), "source")


def quarantined(corpus: Corpus) -> pa.Table:
    """Return the current quarantine (`infra.tables.schemas.QUARANTINE`), ordered by stage and item.

    An ingest row counts if it is of the run that read its source last: sources that were since read or deleted have
    none. Of other stages the newest row of each stage, item and reason counts.
    """
    table = Table(corpus.store, "quarantine").read(corpus.name)
    items = table.filter(pc.equal(table["stage"], "ingest"))["item"].to_pylist()
    latest = _sources_by_name(corpus, {item.split("#", 1)[0] for item in items})
    rows: dict[tuple[str, str, str], FailureRow] = {}
    for row in table.sort_by("at").to_pylist():
        if row["stage"] == "ingest":
            source = latest.get(row["item"].split("#", 1)[0])
            if source is None or source["run_id"] != row["run_id"] or source["state"] == "deleted":
                continue
        rows[row["stage"], row["item"], row["reason"]] = row
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema=QUARANTINE)


def _sources_by_name(corpus: Corpus, names: Collection[str]) -> dict[str, SourceRow]:
    if not names:
        return {}
    chosen = pc.field("source").isin(pa.array(sorted(names), pa.string()))
    table = newest(Table(corpus.store, "sources").read(corpus.name, filters=chosen), "source")
    return {row["source"]: row for row in table.to_pylist()}


def newest(table: pa.Table, *key: str) -> pa.Table:
    """Return the row with the latest `seen_at` for each value of the columns `key`.

    Of two at the same time, a present document's comes before its superseded version's.
    """
    return first_of_each(table, key, [one for one in _NEWEST if one[0] in table.column_names])


class PresentDocuments:
    """The documents of some sources that are present, without their texts, as Arrow: a source may have millions."""

    _SAME: tuple[Literal["content_hash", "title", "source"], ...] = ("content_hash", "title", "source")

    def __init__(self, corpus: Corpus, sources: Collection[str]) -> None:
        table = DOCUMENTS.empty_table()
        if sources:
            mine = ds.field("source").isin(pa.array(sorted(sources), pa.string()))
            table = present(Table(corpus.store, "documents").read(corpus.name, filters=mine))
        self._table = table.combine_chunks()
        self._columns = {name: self._table[name].combine_chunks() for name in self._SAME}
        self._rows: dict[str, dict[str, int]] = {}
        for row, (source, doc_id) in enumerate(column_rows(self._table, "source", "doc_id")):
            self._rows.setdefault(source, {})[doc_id] = row

    def rows_of(self, *sources: str) -> dict[str, int]:
        """Return the row numbers of some sources' documents by doc_id; for equal ids, the later source's."""
        return {doc_id: row for source in sources for doc_id, row in self._rows.get(source, {}).items()}

    def is_same(self, row: int, document: NewDocument) -> bool:
        """Whether a document is unchanged."""
        return all(self._columns[name][row].as_py() == document[name] for name in self._SAME)

    def documents(self, rows: Iterable[int]) -> Iterator[DocumentRow]:
        """Yield rows of the documents table."""
        waiting = iter(rows)
        while batch := list(islice(waiting, _ROWS)):
            yield from self._table.take(batch).to_pylist()


def column_rows(table: pa.Table | pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield chosen columns row by row, as Python objects of few rows at a time."""
    table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    for batch in table.select(list(names)).to_batches(max_chunksize=_ROWS):
        yield from zip(*(batch[name].to_pylist() for name in names), strict=True)
