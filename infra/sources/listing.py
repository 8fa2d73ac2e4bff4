"""A listing: the sources of an ingest as an Arrow table, each with a stable name."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

_BATCH = 10_000
"""Sources that are held as Python objects at a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be read."""

    path: str
    """Where to open it; bytes that are no UTF-8 are as `os.fsdecode` gives them."""
    source: str
    """`path`, fit for tables; names it between runs."""
    doc_id: str
    """Its path relative to the source that it was found under, fit for tables."""
    size: int
    """Bytes."""
    stamp: str
    """Size and time, or size and ETag: it changes when the content may have changed."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A path under a source that is not a readable file."""

    source: str
    reason: str
    detail: str


FOUND = pa.schema(
    [
        ("path", pa.large_binary()),  # null: as `source`; else its bytes, which need not be UTF-8
        ("source", pa.large_string()),
        ("doc_id", pa.large_string()),
        ("size", pa.int64()),
        ("stamp", pa.large_string()),
    ]
)
"""Columns of `Source`. A listing is a table of them: it may be of millions of files."""


@dataclass
class Listing:
    """What was found under all sources of one call."""

    found: pa.Table = field(default_factory=FOUND.empty_table)
    """A row a source (`FOUND`), each once, in listing order."""
    unusable: list[Unusable] = field(default_factory=list)
    hidden: int = 0
    """Files and folders whose name starts with a dot; they are passed over."""
    covers: list[Callable[[str], bool]] = field(default_factory=list)
    """One for each root: whether a source of this name would have been found under it."""
    count: int = 0
    """Sources added so far; at the end those in `found`."""
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[Source] = field(default_factory=list)

    def add(self, source: Source) -> None:
        """Add a source; `end` puts it into `found`."""
        self._rows.append(source)
        self.count += 1
        if len(self._rows) == _BATCH:
            self._pack()

    def end(self) -> None:
        """Build `found` from the sources that were added, each once."""
        self._pack()
        listed = pa.Table.from_batches(self._batches, FOUND)
        self._batches = []
        if pc.count_distinct(listed["source"]).as_py() < listed.num_rows:
            numbered = listed.append_column("row", pa.array(range(listed.num_rows)))
            first = numbered.group_by("source").aggregate([("row", "min")])["row_min"]
            listed = listed.take(first.combine_chunks().sort())
        self.found, self.count = listed, listed.num_rows
        self.unusable = list({bad.source: bad for bad in self.unusable}.values())

    def take_found(self) -> pa.Table:
        """Return `found` and drop the reference to it."""
        listed, self.found = self.found, FOUND.empty_table()
        return listed

    def sources(self) -> Iterator[Source]:
        """Yield `found` one by one."""
        yield from rows_to_sources(self.found)

    def _pack(self) -> None:
        rows = self._rows
        columns = [
            pa.array([None if row.path == row.source else os.fsencode(row.path) for row in rows], pa.large_binary()),
            *(pa.array([getattr(row, field.name) for row in rows], field.type) for field in list(FOUND)[1:]),
        ]
        self._batches.append(pa.record_batch(columns, FOUND))
        self._rows = []

    def covered(self, source: str) -> bool:
        """Whether a source would have been found if it still existed.

        Not so for one that lies in a folder that could not be listed.
        """
        if any(source.startswith(bad.source + "/") for bad in self.unusable if bad.reason == "unreadable"):
            return False
        return any(covers(source) for covers in self.covers)


def rows_to_sources(table: pa.Table) -> Iterator[Source]:
    """Yield the rows of a table that has the columns `FOUND`."""
    for batch in table.select(FOUND.names).to_batches():
        for row in batch.to_pylist():
            yield Source(**{**row, "path": path_of(row["source"], row["path"])})


def path_of(source: str, path: bytes | None) -> str:
    """Return where to open a source: columns `source` and `path` of `FOUND`."""
    return source if path is None else os.fsdecode(path)


def assign_ids(listed: list[Source], taken: dict[str, str], earlier: dict[str, str]) -> list[Source]:
    """Return `listed` with ids that no two of them share.

    An id is the path relative to the source's root. Where another source has it already, as many
    folders before it are added as it takes. A source that was there in an earlier run keeps its id.

    Args:
        listed: sources in listing order; the first one of a name gets it.
        taken: ids that are taken, and the source that has each.
        earlier: ids of sources in earlier runs.
    """
    owner = dict(taken)
    for source in listed:
        if source.source in earlier:
            owner[earlier[source.source]] = source.source
    named = []
    for source in listed:
        doc_id = earlier.get(source.source)
        if doc_id is None:
            doc_id = next(name for name in candidate_ids(source) if owner.get(name, source.source) == source.source)
            owner[doc_id] = source.source
        named.append(replace(source, doc_id=doc_id))
    return named


def candidate_ids(source: Source) -> Iterator[str]:
    """Yield ids for a source, each longer than the one before; the last is the full path."""
    yield source.doc_id
    full = source.source.removeprefix("s3://").lstrip("/")
    parts = full.split("/")
    for start in range(len(parts) - source.doc_id.count("/") - 2, -1, -1):
        yield "/".join(parts[start:])
    yield source.source
