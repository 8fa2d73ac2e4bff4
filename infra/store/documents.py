"""The current documents of a corpus, and where the pages of those begin that have any."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.sources.base import Refused
from infra.store.buckets import WHOLE, Bucket, are_first, buckets, first_of_each, one_of
from infra.store.data_files import FileCommits, write_data_file
from infra.store.delta import DataFile, Table
from infra.store.location import Corpus
from infra.store.schemas import DOCUMENTS, QUARANTINE, DocumentRow, FailureRow, NewDocument, SourceRow
from memagent.errors import SourceError, UsageError

_FLUSH_CHARS = 32 * 2**20
_FLUSH_ROWS = 10_000
_ORDER = ("texts", "documents", "quarantine", "sources")
"""In which files are committed: a source's row comes after all that belongs to it."""
DocumentFiles = dict[str, list[DataFile]]
"""Files by the name of their table."""


class DocumentWriter:
    """Writes documents, quarantine rows and sources as data files of their tables, of bounded size."""

    def __init__(self, corpus: Corpus, run_id: str, started_at: datetime) -> None:
        """Prepare to write rows of a run that began at `started_at`."""
        self._corpus, self._run_id = corpus, run_id
        self._rows: dict[str, list[Mapping[str, object]]] = {name: [] for name in _ORDER}
        self._files: DocumentFiles = {name: [] for name in _ORDER}
        self._common = {"corpus": corpus.name, "run_id": run_id}
        self._mine = {"corpus": corpus.name, "seen_at": started_at}
        self._at = started_at
        self._chars = 0

    def document(self, row: NewDocument, text: str) -> None:
        """Add a document and its text."""
        self._rows["texts"].append({**self._mine, "content_hash": row["content_hash"], "text": text})
        self._chars += len(text)
        self._add("documents", {**row, **self._mine})

    def supersede(self, row: DocumentRow) -> None:
        """Add the row of a version that another one, or the same under another source, takes the place of."""
        self._add("documents", {**row, **self._mine, "state": "superseded"})

    def delete(self, rows: Iterable[DocumentRow]) -> None:
        """Add the rows of deleted documents."""
        for row in rows:
            self._add("documents", {**row, **self._mine, "state": "deleted", "chars": 0})

    def move(self, rows: Iterable[DocumentRow], source: str) -> None:
        """Add the rows of documents that are kept as they are, but under another source."""
        for row in rows:
            self.supersede(row)
            self._add("documents", {**row, **self._mine, "source": source})

    def refuse(self, item: str, reason: str, detail: str) -> None:
        """Take a quarantine row."""
        row = {**self._common, "stage": "ingest", "item": item, "reason": reason, "detail": detail, "at": self._at}
        self._add("quarantine", row)

    def source(self, source: str, doc_id: str, stamp: str, state: str, documents: int) -> None:
        """Add the row of a source, after everything that belongs to it."""
        row = {"source": source, "doc_id": doc_id, "source_stamp": stamp, "state": state, "documents": documents}
        self._add("sources", {**self._common, **row, "seen_at": self._at})

    def take_files(self) -> DocumentFiles:
        """Write what is left, and return all files that are not taken yet, to be committed (`DocumentCommits`)."""
        self._flush()
        files, self._files = self._files, {name: [] for name in _ORDER}
        return files

    def commit(self) -> None:
        """Write and commit what was added and not taken."""
        commits = DocumentCommits(self._corpus, self._run_id)
        commits.add(self.take_files())
        commits.commit()

    def _add(self, name: str, row: Mapping[str, object]) -> None:
        self._rows[name].append(row)
        if self._chars >= _FLUSH_CHARS or len(self._rows[name]) >= _FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                self._files[name].append(write_data_file(self._corpus, name, rows))
                self._rows[name] = []
        self._chars = 0


class Refusals:
    """Rows of a source that became no document: the first ones are named, the others counted."""

    def __init__(self, writer: DocumentWriter, source: str, named: int) -> None:
        """Write at most `named` rows of `source`."""
        self._writer = writer
        self._source = source
        self._named = named
        self.empty = 0
        """Rows, or the source itself, with nothing to read: no failures."""
        self._all = Counter[str]()
        self._unnamed = Counter[str]()

    def row(self, record: Refused) -> None:
        """Take a row."""
        if record.reason == "empty":
            self.empty += record.rows
        elif self._all.total() < self._named:
            self._writer.refuse(f"{self._source}#{record.row}", record.reason, record.detail)
        else:
            self._unnamed[record.reason] += 1
        self._all[record.reason] += record.reason != "empty"

    def source(self, error: SourceError) -> None:
        """Take the source as a whole."""
        if error.reason == "empty":
            self.empty += 1
            return
        self._writer.refuse(self._source, error.reason, error.detail)
        self._all[error.reason] += 1

    def end(self) -> Counter[str]:
        """Write the row that counts the unnamed ones; return the number of all, by reason."""
        if self._unnamed:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in self._unnamed.most_common())
            detail = f"{self._unnamed.total():,} more rows became no document: {counts}; see ingest.max_refused"
            self._writer.refuse(f"{self._source}#", "more-rows", detail)
        return +self._all


class DocumentCommits:
    """Commits the files of document writers every few seconds, each table's under a transaction of its own."""

    def __init__(self, corpus: Corpus, run_id: str, seconds: float = 5.0) -> None:
        """Commit for `corpus`, at most once in `seconds`."""
        self._commits = {name: FileCommits(Table(corpus.store, name), corpus.name, run_id, seconds) for name in _ORDER}

    def add(self, files: DocumentFiles) -> None:
        """Add files that belong together; commit if it is time."""
        for name, commits in self._commits.items():
            commits.add(files.get(name, []))
        if all(commits.is_due for commits in self._commits.values()):
            self.commit()

    def commit(self) -> None:
        """Commit all files that were added, sources last."""
        for commits in self._commits.values():
            commits.commit()


_ROWS = 10_000
"""Rows that are Python objects at once."""
_NEWEST = (("seen_at", "descending"), ("state", "ascending"))
"""Order of the rows of a document: of two at the same time, that of the present one is before a superseded one's."""


def current_documents(
    corpus: Corpus, columns: list[str] | None = None, bucket: Bucket = WHOLE, *, ordered: bool = True
) -> pa.Table:
    """Return the row of each document that is present, of those whose content hash is in a bucket.

    Rows come by `first_seen`, then `doc_id`: an archive is read in this order, so that new documents come last. Where
    that does not matter (not `ordered`) they are found more quickly. Texts are read by `document_texts`.
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


class NoDocumentsError(UsageError):
    """A corpus has no documents, or no longer any."""


def check_documents(corpus: Corpus) -> None:
    """Raises NoDocumentsError: the corpus has none."""
    if has_documents(corpus):
        return
    name, states = corpus.name, Counter(current_sources(corpus, ["state"])["state"].to_pylist())
    said = {
        f"sources without text: {states['read']}": states["read"],
        f"documents deleted since their files are gone: {states['deleted']}": states["deleted"],
        f"sources that could not be read: {states['failed']} (memagent quarantine {name} says why)": states["failed"],
    }
    advice = "; ".join(text for text, count in said.items() if count) or f"memagent ingest {name} FOLDER"
    raise NoDocumentsError(f"corpus {name!r} has no documents in {corpus.store.url}: {advice}")


def documents_count(corpus: Corpus) -> int:
    """Return an upper bound of the number of documents: the rows of all versions, from the table's log alone."""
    return Table(corpus.store, "documents").count(corpus.name)


def document_texts(
    corpus: Corpus, content_hashes: Collection[str], bucket: Bucket = WHOLE
) -> Iterator[tuple[str, str]]:
    """Yield (content_hash, text) of texts in a bucket, each once, in no order; those that are not there are left out.

    One row group of the table is held at a time, and only those are read that can have a wanted text.
    """
    wanted = set(content_hashes)
    inside = bucket.contains("content_hash")
    table = Table(corpus.store, "texts")
    for fragment in table.fragments(corpus.name, inside):
        if not wanted:
            return
        with table.readable():
            hashes = [
                name for batch in _batches(fragment, ["content_hash"], inside, 10_000) for name in batch[0].to_pylist()
            ]
            local = wanted.intersection(hashes)
            if not local:
                continue
            keep = one_of("content_hash", local)
            for batch in _batches(fragment, ["content_hash", "text"], keep, 64):
                for content_hash, text in zip(batch.column("content_hash"), batch.column("text"), strict=True):
                    # The row of a document that was deleted has none.
                    if (name_here := content_hash.as_py()) in wanted and text.is_valid:
                        wanted.remove(name_here)
                        yield name_here, text.as_py()


def _batches(fragment: Any, columns: list[str], keep: pc.Expression, size: int) -> Iterator[pa.RecordBatch]:
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
    """Return the newest row of each source that an ingest has seen (columns of `infra.store.schemas.SOURCES`)."""
    needed = list(dict.fromkeys([*columns, "source", "state", "seen_at"])) if columns else None
    return newest(Table(corpus.store, "sources").read(corpus.name, needed), "source")


def quarantined(corpus: Corpus) -> pa.Table:
    """Return the current quarantine (`infra.store.schemas.QUARANTINE`), ordered by stage and item.

    An ingest row counts if it is of the run that read its source last: sources that were since read, dismissed or
    deleted have none. Of other stages the newest row of each stage, item and reason counts, if its document is there.
    """
    table = Table(corpus.store, "quarantine").read(corpus.name)
    readings = table.filter(pc.equal(table["stage"], "read"))["item"].to_pylist()
    gone = {item.partition(" ? ")[0] for item in readings} - {"archive"}
    if gone:
        documents = Table(corpus.store, "documents").read(corpus.name, filters=one_of("doc_id", gone))
        gone -= set(present(documents)["doc_id"].to_pylist())
    items = table.filter(pc.equal(table["stage"], "ingest"))["item"].to_pylist()
    mine = one_of("source", (item.split("#", 1)[0] for item in items))
    latest: dict[str, SourceRow] = {}
    if items:
        sources = newest(Table(corpus.store, "sources").read(corpus.name, filters=mine), "source")
        latest = {row["source"]: row for row in sources.to_pylist()}
    rows: dict[tuple[str, str, str], FailureRow] = {}
    for row in table.sort_by("at").to_pylist():
        if row["stage"] == "ingest":
            source = latest.get(row["item"].split("#", 1)[0])
            if source is None or source["run_id"] != row["run_id"] or source["state"] in ("deleted", "dismissed"):
                continue
        elif row["stage"] == "read" and row["item"].partition(" ? ")[0] in gone:
            continue
        rows[row["stage"], row["item"], row["reason"]] = row
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema=QUARANTINE)


def newest(table: pa.Table, *key: str) -> pa.Table:
    """Return the row with the latest `seen_at` for each value of the columns `key`.

    Of two at the same time, a present document's comes before its superseded version's.
    """
    return first_of_each(table, key, [one for one in _NEWEST if one[0] in table.column_names])


class PresentDocuments:
    """The documents of some sources that are present, without their texts, as Arrow: a source may have millions."""

    _SAME = ("content_hash", "title", "source", "warnings")

    def __init__(self, corpus: Corpus, sources: Collection[str]) -> None:
        table = DOCUMENTS.empty_table()
        if sources:
            table = Table(corpus.store, "documents").read(corpus.name, filters=one_of("source", sources))
        table = newest(table, "doc_id")
        gone = table.filter(pc.equal(table["state"], "deleted"))
        self._gone: dict[tuple[str, str], datetime] = {
            row[:2]: row[2] for row in column_rows(gone, "doc_id", "content_hash", "first_seen")
        }
        self._table = table.filter(pc.equal(table["state"], "present")).combine_chunks()
        self._columns = {name: self._table[name].combine_chunks() for name in self._SAME}
        self._rows: dict[str, dict[str, int]] = {}
        for row, (source, doc_id) in enumerate(column_rows(self._table, "source", "doc_id")):
            self._rows.setdefault(source, {})[doc_id] = row

    def rows_of(self, *sources: str) -> dict[str, int]:
        """Return the row numbers of some sources' documents by doc_id; for equal ids, the later source's."""
        return {doc_id: row for source in sources for doc_id, row in self._rows.get(source, {}).items()}

    def first_seen(self, document: NewDocument) -> datetime:
        """Return when a new document was first there. Taken in again after a repair, it keeps its place in archives."""
        return self._gone.get((document["doc_id"], document["content_hash"]), document["first_seen"])

    def is_same(self, row: int, document: NewDocument) -> bool:
        """Whether a document is unchanged."""
        return all(self._columns[name][row].as_py() == document[name] for name in self._SAME)  # type: ignore[literal-required]

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


class PageNumbers:
    """Page numbers in the PDFs of a corpus."""

    def __init__(self, corpus: Corpus, bucket: Bucket = WHOLE, texts: Iterable[str] | None = None) -> None:
        """Read where pages begin, also of earlier versions; of some texts or a bucket. As Arrow, 8 bytes a page."""
        chosen = pc.field("page_starts").is_valid() & bucket.contains("content_hash")
        if texts is not None:
            chosen &= one_of("content_hash", texts)
        table = Table(corpus.store, "documents").read(corpus.name, ["doc_id", "content_hash", "page_starts"], chosen)
        self._starts = table["page_starts"].combine_chunks()
        names = zip(table["content_hash"].to_pylist(), table["doc_id"].to_pylist(), strict=True)
        self._rows = {name: row for row, name in enumerate(names)}
        self._texts = {content_hash: row for (content_hash, _), row in self._rows.items()}

    def page(self, content_hash: str, char: int, document: str = "") -> int | None:
        """Return the page of a character, from 1; None: the document has no pages, or they are not known.

        Without the id of a document it is that of any document with this text.
        """
        row = self._rows.get((content_hash, document)) if document else self._texts.get(content_hash)
        return None if row is None else max(1, bisect_right(self._starts[row].values.to_numpy(), char))

    def bounds(self, content_hash: str, char: int) -> tuple[int, int, int | None] | None:
        """Return the page of a character, from 1, with its first character and the next page's; None: as `page`."""
        if (number := self.page(content_hash, char)) is None:
            return None
        starts = self._starts[self._texts[content_hash]].as_py()
        return number, starts[number - 1], starts[number] if number < len(starts) else None
