"""Streams: which documents an archive reading reads, and in which order. Parquet files.

    streams/<corpus>/<xx>/<content_hash>.parquet   the documents' content hashes; the file never changes
    runs/<run_id>/work/<content_hash>.parquet      where their segments are, for the run that reads them

`content_hash` is that of the list, so readings of the same documents share the file. Rows of plans and answers repeat
the hashes of a stream that is short enough to teach (`infra.tables.qa`); no row has those of a long one.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import overload

import pyarrow as pa

from infra.store import Corpus, Store
from infra.tables.rows import AnswerRow, PlannedReading, SegmentRange
from infra.tables.schemas import PLACES

INLINE = 1_000
"""Longest stream, in documents, whose hashes stand in the rows of plans and answers."""
_FOLDER = "streams"
_ROW_GROUP = 100_000


def inline(hashes: Sequence[str]) -> list[str]:
    """Return the hashes of a stream as rows have them: none of a longer one."""
    return list(hashes) if len(hashes) <= INLINE else []


def write_stream(corpus: Corpus, content_hash: str, hashes: Sequence[str]) -> None:
    """Write the list of a stream's documents, unless it is there."""
    parts = _parts(corpus, content_hash)
    if not corpus.store.exists(*parts):
        table = pa.table({"content_hash": pa.array(hashes, pa.string())})
        corpus.store.write_part(table, *parts, row_group_size=_ROW_GROUP)


def stream_of(corpus: Corpus, row: AnswerRow | PlannedReading) -> list[str]:
    """Return the content hashes of a reading's documents, in reading order.

    Raises:
        FileNotFoundError: it has very many, and their list is gone.
    """
    if row["stream"]:
        return row["stream"]
    hashes: list[str] = corpus.store.read_part(*_parts(corpus, row["content_hash"]))["content_hash"].to_pylist()
    return hashes


def write_places(store: Store, run_id: str, content_hash: str, places: pa.Table) -> str:
    """Write where the segments of a stream's documents are (`PLACES`); return the file's path in the store."""
    parts = ("runs", run_id, "work", f"{content_hash}.parquet")
    store.write_part(places.select(PLACES.names), *parts, row_group_size=_ROW_GROUP)
    return "/".join(parts)


@lru_cache(maxsize=4)
def read_places(url: str, path: str) -> "StreamPlaces":
    """Return what `write_places` has written to the store at `url`; questions on one stream share it."""
    return StreamPlaces(Store(url).read_part(path))


class StreamPlaces(Sequence[SegmentRange]):
    """Where the segments of a stream's documents are, held as Arrow columns: some 50 bytes a document."""

    def __init__(self, table: pa.Table) -> None:
        """Take a table with the columns of `PLACES`."""
        self._columns: dict[str, pa.Array] = {name: table[name].combine_chunks() for name in PLACES.names}
        self.starts: list[int] = list(accumulate(table["segments"].to_pylist(), initial=0))
        """The place of each document's first segment in the stream, and the end."""

    @property
    def hashes(self) -> list[str]:
        """The documents' content hashes, as rows have them (`inline`)."""
        return inline(self._columns["content_hash"].to_pylist()) if len(self) <= INLINE else []

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> SegmentRange: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentRange]: ...
    def __getitem__(self, index: int | slice) -> SegmentRange | list[SegmentRange]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        columns = self._columns
        return {
            "content_hash": columns["content_hash"][index].as_py(),
            "part": columns["part"][index].as_py(),
            "first_row": columns["first_row"][index].as_py(),
            "segments": columns["segments"][index].as_py(),
        }


def _parts(corpus: Corpus, content_hash: str) -> tuple[str, ...]:
    return _FOLDER, corpus.name, content_hash[:2], f"{content_hash}.parquet"
