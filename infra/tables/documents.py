"""The documents of a corpus as they stand now, and the writer that adds to them."""

import time
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from infra.store import Corpus
from infra.tables.delta import Table
from infra.tables.rows import FailureRow
from infra.tables.schemas import DOCUMENTS, QUARANTINE

_FLUSH_CHARS = 32 * 2**20
_FLUSH_ROWS = 10_000


def current_documents(corpus: Corpus, columns: list[str] | None = None) -> pa.Table:
    """Return the newest row of each document that is present, ordered by `first_seen`, then `doc_id`.

    An archive is read in this order, so that new documents come last.

    Args:
        store: the store.
        corpus: its documents.
        columns: columns of `infra.tables.schemas.DOCUMENTS`; by default all but the text, which
            `document_texts` reads.
    """
    names = columns or [name for name in DOCUMENTS.names if name != "text"]
    if "text" in names:
        raise ValueError("texts are read by document_texts, by content_hash")
    needed = list(dict.fromkeys([*names, "doc_id", "state", "seen_at", "first_seen"]))
    table = newest(Table(corpus.store, "documents").read(corpus.name, needed), "doc_id")
    table = table.filter(pc.equal(table["state"], "present"))
    return table.sort_by([("first_seen", "ascending"), ("doc_id", "ascending")]).select(names)


def document_texts(corpus: Corpus, content_hashes: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (content_hash, text), each hash once, in no order; those that are not there are left out.

    One part of the table is held at a time, and only parts that have a wanted text are read.
    """
    wanted = set(content_hashes)
    for fragment in Table(corpus.store, "documents").fragments(corpus.name):
        if not wanted:
            return
        with_text = ds.field("state") == "present"  # the row of a deleted one has none
        names = fragment.to_table(columns=["content_hash"], filter=with_text)["content_hash"].to_pylist()
        held = wanted.intersection(names)
        if not held:
            continue
        keep = with_text & ds.field("content_hash").isin(pa.array(sorted(held), pa.string()))
        for batch in fragment.to_batches(columns=["content_hash", "text"], filter=keep, batch_size=64):
            for content_hash, text in zip(batch.column("content_hash"), batch.column("text"), strict=True):
                if (name := content_hash.as_py()) in wanted:
                    wanted.remove(name)
                    yield name, text.as_py()


def standing_texts(corpus: Corpus) -> set[str]:
    """Return the content hashes of all versions of the documents that are present now; deleted ones have none."""
    present = set(current_documents(corpus, ["doc_id"])["doc_id"].to_pylist())
    rows = Table(corpus.store, "documents").read(
        corpus.name, ["doc_id", "content_hash"], pc.field("state") == "present"
    )
    return {row["content_hash"] for row in rows.to_pylist() if row["doc_id"] in present}


def text_files(corpus: Corpus, content_hashes: Collection[str]) -> list[str]:
    """Return the paths of the Parquet files that hold any of the texts: a nightly run opens no others."""
    wanted = pa.array(sorted(content_hashes), pa.string())
    found = []
    for fragment in Table(corpus.store, "documents").fragments(corpus.name):
        names = fragment.to_table(columns=["content_hash"])["content_hash"].cast(pa.string())
        if pc.any(pc.is_in(names, value_set=wanted)).as_py():
            found.append(fragment)
    root = corpus.store.delta_uri("documents").removeprefix("s3://")
    return [path if path.startswith(root) else f"{root}/{path}" for path in (part.path for part in found)]


def current_sources(corpus: Corpus) -> pa.Table:
    """Return the newest row of each source that an ingest has seen (`infra.tables.schemas.SOURCES`)."""
    return newest(Table(corpus.store, "sources").read(corpus.name), "source")


def quarantined(corpus: Corpus) -> pa.Table:
    """Return what stands in quarantine now (`infra.tables.schemas.QUARANTINE`), ordered by stage and item.

    An ingest row counts while it is of the run that read its source last: what was read well since, or
    is gone, has left. Of other stages the newest row of each stage, item and reason counts.
    """
    table = Table(corpus.store, "quarantine").read(corpus.name)
    latest = {row["source"]: row for row in current_sources(corpus).to_pylist()}
    rows: dict[tuple[str, str, str], FailureRow] = {}
    for row in table.sort_by("at").to_pylist():
        if row["stage"] == "ingest":
            source = latest.get(row["item"].split("#", 1)[0])
            if source is None or source["run_id"] != row["run_id"] or source["state"] == "deleted":
                continue
        rows[row["stage"], row["item"], row["reason"]] = row
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema=QUARANTINE)


def newest(table: pa.Table, key: str) -> pa.Table:
    """Return the row of the latest `seen_at` for each value of `key`."""
    if table.num_rows < 2:
        return table
    table = table.take(pc.sort_indices(table, sort_keys=[(key, "ascending"), ("seen_at", "descending")]))
    names = table[key].combine_chunks()
    first = pc.not_equal(names.slice(1), names.slice(0, len(names) - 1))
    return table.filter(pa.concat_arrays([pa.array([True]), first]))


class DocumentWriter:
    """Commits documents as they come: first themselves, then what was refused, then their sources.

    So a source whose row is there has all its documents, whenever the writer was killed; one whose row
    is missing is read again, and gives the same rows.
    """

    def __init__(self, corpus: Corpus, run_id: str, at: datetime, seconds: float) -> None:
        """Prepare to write.

        Args:
            store: where to.
            corpus: the documents' corpus.
            run_id: what rows are marked with.
            at: time of the run; all its rows have it.
            seconds: a commit is due this long after the last one.
        """
        self._tables = {name: Table(corpus.store, name) for name in ("documents", "quarantine", "sources")}
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self._tables}
        self._common = {"corpus": corpus.name, "run_id": run_id}
        self._at = at
        self._seconds = seconds
        self._chars = 0
        self._flushed = time.monotonic()

    def document(self, row: dict[str, Any]) -> None:
        """Take a row of the documents table, less what this writer knows."""
        self._rows["documents"].append({"corpus": self._common["corpus"], "seen_at": self._at, **row})
        self._chars += len(row["text"] or "")
        if self._chars >= _FLUSH_CHARS or len(self._rows["documents"]) >= _FLUSH_ROWS:
            self.flush()

    def delete(self, rows: Iterable[dict[str, Any]]) -> None:
        """Take the rows, less their texts, of documents that are gone."""
        for row in rows:
            self.document({**row, "seen_at": self._at, "state": "deleted", "chars": 0, "text": None})

    def refuse(self, item: str, reason: str, detail: str) -> None:
        """Take a quarantine row."""
        row = {**self._common, "stage": "ingest", "item": item, "reason": reason, "detail": detail, "at": self._at}
        self._rows["quarantine"].append(row)
        if len(self._rows["quarantine"]) >= _FLUSH_ROWS:
            self.flush()

    def source(self, source: str, doc_id: str, stamp: str, state: str, documents: int) -> None:
        """Take the row that ends a source; what belongs to it was taken before."""
        row = {"source": source, "doc_id": doc_id, "source_stamp": stamp, "state": state, "documents": documents}
        self._rows["sources"].append({**self._common, **row, "seen_at": self._at})
        if time.monotonic() - self._flushed >= self._seconds:
            self.flush()

    def flush(self) -> None:
        """Commit what was taken."""
        for name, table in self._tables.items():
            table.append(self._rows[name])
            self._rows[name] = []
        self._chars = 0
        self._flushed = time.monotonic()
