"""The writer of documents: it makes data files of their tables, which one process commits in order.

A source that has a row has all its documents even after a kill; one without is parsed again, and gives the same rows.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from infra.sources.base import Refused
from infra.store import Corpus
from infra.tables.data_files import DataFile, FileCommits, write_data_file
from infra.tables.delta import Table
from infra.tables.rows import DocumentRow, NewDocument
from memagent.errors import SourceError

_FLUSH_CHARS = 32 * 2**20
_FLUSH_ROWS = 10_000
_ORDER = ("texts", "documents", "quarantine", "sources")
"""In which files are committed: a source's row comes after all that belongs to it."""
DocumentFiles = dict[str, list[DataFile]]
"""Files by the name of their table."""


class DocumentWriter:
    """Writes documents, quarantine rows and sources as data files of their tables, of bounded size."""

    def __init__(self, corpus: Corpus, run_id: str, started_at: datetime) -> None:
        """Prepare to write.

        Args:
            corpus: the documents' corpus.
            run_id: what rows are marked with.
            started_at: when the run began; all its rows have it.
        """
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
        """Add the row of a superseded version."""
        self._add("documents", {**row, **self._mine, "state": "superseded"})

    def delete(self, rows: Iterable[DocumentRow]) -> None:
        """Add the rows of deleted documents."""
        for row in rows:
            self._add("documents", {**row, **self._mine, "state": "deleted", "chars": 0})

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
        self._all = Counter[str]()
        self._unnamed = Counter[str]()

    def row(self, record: Refused) -> None:
        """Take a row."""
        if self._all.total() < self._named:
            self._writer.refuse(f"{self._source}#{record.row}", record.reason, record.detail)
        else:
            self._unnamed[record.reason] += 1
        self._all[record.reason] += 1

    def source(self, error: SourceError) -> None:
        """Take the source as a whole."""
        self._writer.refuse(self._source, error.reason, error.detail)
        self._all[error.reason] += 1

    def end(self) -> Counter[str]:
        """Write the row that counts the unnamed ones; return the number of all, by reason."""
        if self._unnamed:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in self._unnamed.most_common())
            detail = f"{self._unnamed.total():,} more rows became no document: {counts}; see ingest.max_refused"
            self._writer.refuse(f"{self._source}#", "more-rows", detail)
        return self._all


class DocumentCommits:
    """Commits the files of document writers every few seconds, each table's under a transaction of its own."""

    def __init__(self, corpus: Corpus, run_id: str, seconds: float = 5.0) -> None:
        """Commit for `corpus`, at most once in `seconds`."""
        # Each table's own clock would commit a source before its documents.
        self._commits = {
            name: FileCommits(Table(corpus.store, name), corpus.name, run_id, seconds=math.inf) for name in _ORDER
        }
        self._seconds = seconds
        self._due = time.monotonic() + seconds

    def add(self, files: DocumentFiles) -> None:
        """Add files that belong together; commit if it is time."""
        for name, commits in self._commits.items():
            commits.add(files.get(name, []))
        if time.monotonic() > self._due:
            self.commit()

    def commit(self) -> None:
        """Commit all files that were added, sources last."""
        for commits in self._commits.values():
            commits.commit()
        self._due = time.monotonic() + self._seconds
