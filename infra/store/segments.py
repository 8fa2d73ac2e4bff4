"""Segments in the store: immutable Parquet parts, read back some row groups at a time."""

import asyncio
import io
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import accumulate
from threading import Condition, Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cachetools import LRUCache, cached

from infra.store.buckets import WHOLE, Bucket, one_of
from infra.store.delta import Table, is_damage
from infra.store.location import Corpus, Store
from infra.store.schemas import (
    PLACES,
    SEGMENTS,
    AnswerRow,
    EvidenceRow,
    PlannedReading,
    SegmentedRow,
    SegmentRange,
    now,
)
from memagent.config import ReadingConfig
from memagent.errors import MemagentError
from memagent.reading.segmenting import CUTTING_VERSION, segment_key, segments
from memagent.reading.tokens import Tokenizer
from memagent.records import Segment, stable_hash

INLINE = 1_000
"""Longest stream, in documents, whose hashes stand in the rows of plans and answers."""
_ROW_GROUP = 100_000


def inline(hashes: Sequence[str]) -> list[str]:
    """Return the hashes of a stream as rows have them: none of a longer one."""
    return list(hashes) if len(hashes) <= INLINE else []


def write_stream(corpus: Corpus, content_hash: str, places: pa.Table) -> None:
    """Write the list of a stream's documents, which are at `places` (`PLACES`), unless it is there."""
    parts = _parts(corpus, content_hash)
    if not corpus.store.exists(*parts):
        hashes = places.select(["content_hash"]).cast(pa.schema([("content_hash", pa.string())]))
        corpus.store.write_part(hashes, *parts, row_group_size=_ROW_GROUP)


def stream_of(corpus: Corpus, row: AnswerRow | PlannedReading) -> list[str]:
    """Return the content hashes of a reading's documents, in order; none: of a long list that is damaged or gone."""
    return row["stream"] or _read_stream(corpus, row["content_hash"])


def checked_streams(corpus: Corpus, names: Collection[str]) -> dict[str, str]:
    """Return by path what is wrong with the lists that are there, and with those of some names; empty: nothing."""
    found = {corpus.store.path(*_parts(corpus, name)): "it is gone" for name in names}
    for path in corpus.store.list("streams", corpus.name):
        name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
        same = stable_hash(_read_stream(corpus, name)) == name
        found[path] = "" if same else "it cannot be read, or has other documents than its name says"
    return found


def _read_stream(corpus: Corpus, content_hash: str) -> list[str]:
    try:
        hashes: list[str] = corpus.store.read_part(*_parts(corpus, content_hash))["content_hash"].to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        if not is_damage(error):
            raise
        return []
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


class StreamPlaces:
    """Where the segments of a stream's documents are, held as Arrow columns: some 50 bytes a document."""

    def __init__(self, table: pa.Table) -> None:
        """Take a table with the columns of `PLACES`."""
        self._table = table.select(PLACES.names).combine_chunks()
        self.starts: list[int] = list(accumulate(table["segments"].to_pylist(), initial=0))
        """The place of each document's first segment in the stream, and the end."""

    @property
    def hashes(self) -> list[str]:
        """The documents' content hashes, as rows have them (`inline`)."""
        return inline(self._table["content_hash"].to_pylist()) if len(self) <= INLINE else []

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, document: int) -> SegmentRange:
        place: SegmentRange = self._table.slice(document, 1).to_pylist()[0]
        return place


def _parts(corpus: Corpus, content_hash: str) -> tuple[str, ...]:
    return "streams", corpus.name, content_hash[:2], f"{content_hash}.parquet"


_FOLDER = "segments"
_GROUP_TOKENS = 16_384
"""Tokens of a row group: what one reading holds in memory at a time."""
_SPAN_GROUPS = 4
"""Row groups that are fetched by one request: readings of short documents want one after the other."""
_CACHED_SPANS = 256
"""Some 130 MB: as many long documents are read at the same time without fetching anything twice."""
_PLACE = ["content_hash", "part", "first_row", "segments", "tokens"]
_SEGMENT_FIELDS = [field.name for field in fields(Segment)]


def write_segments(
    corpus: Corpus, texts: Iterable[tuple[str, str]], tokenizer: Tokenizer, reading: ReadingConfig
) -> tuple[list[SegmentedRow], dict[str, str]]:
    """Segment documents, given as (content_hash, text), into one part, by a policy's tokenizer.

    Returns:
        The rows for table ``segmented``, which make the part known once they are committed, and the message of each
        document that cannot be segmented, by content hash.
    """
    rows: list[SegmentedRow] = []
    failures: dict[str, str] = {}
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SEGMENTS, compression="zstd", write_page_checksum=True) as writer:
        groups = _Groups(writer, max(1, _GROUP_TOKENS // reading.segment_tokens))
        for content_hash, text in texts:
            first, tokens = groups.rows, 0
            try:
                for cut in segments(
                    content_hash, text, tokenizer, segment_tokens=reading.segment_tokens, boundary=reading.boundary
                ):
                    groups.add(cut)
                    tokens += len(cut.token_ids)
            except MemagentError as error:  # its first segments stay in the part, and no row points at them
                failures[content_hash] = str(error)
                continue
            rows.append(
                {
                    "corpus": corpus.name,
                    "segment_key": segment_key(content_hash, tokenizer, reading.segment_tokens, reading.boundary),
                    "content_hash": content_hash,
                    "tokenizer": tokenizer.fingerprint,
                    "segment_tokens": reading.segment_tokens,
                    "boundary": reading.boundary,
                    "cutting_version": CUTTING_VERSION,
                    "part": "",  # named by all of its documents
                    "first_row": first,
                    "segments": groups.rows - first,
                    "tokens": tokens,
                    "written_at": now(),
                }
            )
        groups.end()
    if rows:
        name = stable_hash(*[row["segment_key"] for row in rows])
        part = f"{_FOLDER}/{corpus.name}/{name[:2]}/{name}.parquet"  # spread prefixes: S3 limits requests by prefix
        corpus.store.write_bytes(sink.getvalue(), part)
        for row in rows:
            row["part"] = part
    return rows, failures


class _Groups:
    """Puts segments into row groups of the part; short documents share one."""

    def __init__(self, writer: pq.ParquetWriter, size: int) -> None:
        self._writer = writer
        self._size = size
        self._group: list[Segment] = []
        self.rows = 0

    def add(self, segment: Segment) -> None:
        self._group.append(segment)
        self.rows += 1
        if len(self._group) == self._size:
            self.end()

    def end(self) -> None:
        if self._group:
            self._writer.write_table(_table(self._group))
            self._group = []


def segmented_table(
    corpus: Corpus,
    tokenizer: Tokenizer,
    reading: ReadingConfig,
    bucket: Bucket = WHOLE,
    *,
    hashes: Collection[str] | None = None,
    columns: list[str] | None = None,
) -> pa.Table:
    """Return the rows of ``segmented`` for documents that have segments of one kind, in a bucket, among some hashes."""
    chosen = (
        (pc.field("tokenizer") == tokenizer.fingerprint)
        & (pc.field("segment_tokens") == reading.segment_tokens)
        & (pc.field("boundary") == reading.boundary)
        & (pc.field("cutting_version") == CUTTING_VERSION)
        & bucket.contains("content_hash")
    )
    if hashes is not None:
        chosen &= one_of("content_hash", hashes)
    return Table(corpus.store, "segmented").read(corpus.name, columns, chosen)


def segmented(
    corpus: Corpus,
    tokenizer: Tokenizer,
    reading: ReadingConfig,
    bucket: Bucket = WHOLE,
    *,
    hashes: Collection[str] | None = None,
) -> dict[str, SegmentedRow]:
    """Return where the segments of documents are (`_PLACE`), by content hash; arguments as in `segmented_table`."""
    table = segmented_table(corpus, tokenizer, reading, bucket, hashes=hashes, columns=_PLACE)
    rows: list[SegmentedRow] = table.to_pylist()
    return {row["content_hash"]: row for row in rows}


def segment_range(row: SegmentRange) -> SegmentRange:
    """Return where the segments stand that a row of ``segmented`` is about."""
    return {
        "content_hash": row["content_hash"],
        "part": row["part"],
        "first_row": row["first_row"],
        "segments": row["segments"],
    }


def segment_hashes(store: Store, span: SegmentRange) -> list[str]:
    """Return the hashes of a document's segments, in order."""
    first = span["first_row"]
    return _part(store.url, span["part"]).hashes(first, first + span["segments"])


def damaged_segments(store: Store, rows: Iterable[SegmentedRow]) -> dict[str, str]:
    """Return why the segments of documents are not as they were cut, by `segment_key`; those that are, are left out.

    A row group is held at a time.
    """
    by_part: dict[str, list[SegmentedRow]] = {}
    for row in rows:
        by_part.setdefault(row["part"], []).append(row)
    bad: dict[str, str] = {}
    for part, mine in by_part.items():
        try:
            hashes, indices, wrong = _contents(store, part)
        except (pa.ArrowException, OSError) as error:
            bad |= {row["segment_key"]: f"{part} cannot be read: {str(error)[:200]}" for row in mine}
            continue
        for row in mine:
            places = range(row["first_row"], row["first_row"] + row["segments"])
            same = hashes[places.start : places.stop] == [row["content_hash"]] * len(places)
            if not same or indices[places.start : places.stop] != list(range(len(places))):
                bad[row["segment_key"]] = f"{part} does not have them from row {row['first_row']} on"
            elif wrong.intersection(places):
                bad[row["segment_key"]] = f"{part} has another text than its hash says"
    return bad


def _contents(store: Store, part: str) -> tuple[list[str], list[int], set[int]]:
    """Return content hash and index of a part's segments, and the rows whose text is another than its hash says."""
    file = pq.ParquetFile(store.path(part), filesystem=store.arrow, pre_buffer=True)
    hashes: list[str] = []
    indices: list[int] = []
    wrong: set[int] = set()
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)  # whole: a damaged column is one that cannot be read
        texts = zip(table["segment_hash"].to_pylist(), table["text"].to_pylist(), strict=True)
        wrong |= {len(hashes) + row for row, (name, text) in enumerate(texts) if stable_hash(text) != name}
        hashes += table["content_hash"].to_pylist()
        indices += table["index"].to_pylist()
    return hashes, indices, wrong


Bounds = list[tuple[int, int]]
"""First and last character (exclusive) of each segment of a document."""


def segment_bounds(corpus: Corpus, hashes: Collection[str]) -> dict[str, list[Bounds]]:
    """Return the segmentations of documents by content hash, newest first."""
    columns = ["content_hash", "part", "first_row", "segments", "written_at"]
    table = Table(corpus.store, "segmented").read(corpus.name, columns, one_of("content_hash", hashes))
    by_part: dict[str, list[SegmentRange]] = defaultdict(list)
    for document in table.sort_by([("written_at", "descending")]).to_pylist():
        by_part[document["part"]].append(document)
    result: dict[str, list[Bounds]] = defaultdict(list)
    for part, documents in by_part.items():
        segments = corpus.store.read_part(part, columns=["char_start", "char_end"])
        for document in documents:
            rows = segments.slice(document["first_row"], document["segments"])
            pairs = zip(rows["char_start"].to_pylist(), rows["char_end"].to_pylist(), strict=True)
            result[document["content_hash"]].append(list(pairs))
    return result


def fitting(segmentations: Iterable[Bounds], segments: int | None, evidence: Sequence[EvidenceRow]) -> Bounds | None:
    """Return the first segmentation of a document that fits a reading's evidence and, where known, its `segments`."""
    for bounds in segmentations:
        if segments in (None, len(bounds)) and all(
            spot["segment_index"] < len(bounds)
            and bounds[spot["segment_index"]] == (spot["char_start"], spot["char_end"])
            for spot in evidence
        ):
            return bounds
    return None


class StoredStream:
    """The segments of some documents, concatenated, loaded a row group at a time."""

    def __init__(self, store: Store, places: StreamPlaces | Sequence[SegmentRange]) -> None:
        """Read the documents at `places`, in that order, from the parts in `store`."""
        self._store = store
        self._places = places
        if isinstance(places, StreamPlaces):
            self._starts = places.starts
        else:
            self._starts = list(accumulate((span["segments"] for span in places), initial=0))
        self._last: tuple[int, Segment] | None = None
        """The last segment that was read, and its place: the evidence is most often in it."""

    def __len__(self) -> int:
        return self._starts[-1]

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        """Yield segments `start` to `stop` (exclusive) of the stream."""
        if self._last is not None and start == self._last[0] < stop:
            yield self._last[1]
            start += 1
        document = bisect_right(self._starts, start) - 1
        while start < min(stop, len(self)):
            span, first = self._places[document], self._starts[document]
            row = span["first_row"] + start - first
            end = span["first_row"] + min(stop, self._starts[document + 1]) - first
            offset = start - row
            start, document = self._starts[document + 1], document + 1
            while row < end:
                rows, first_row = await asyncio.to_thread(_rows_at, self._store.url, span["part"], row)
                taken = min(end, first_row + rows.num_rows)
                for i in range(row - first_row, taken - first_row):
                    segment = Segment(**{name: rows[name][i].as_py() for name in _SEGMENT_FIELDS})
                    self._last = offset + first_row + i, segment
                    yield segment
                row = taken


def _table(group: list[Segment]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in group] for name in _SEGMENT_FIELDS}
    columns["segment_hash"] = [stable_hash(text) for text in columns["text"]]
    return pa.table(columns, schema=SEGMENTS)


class _Part:
    """An open part. Its file handle is one, and readers come from several threads."""

    def __init__(self, url: str, part: str) -> None:
        store = Store(url)
        # The columns of neighbouring row groups come by one request.
        self._file = pq.ParquetFile(store.path(part), filesystem=store.arrow, pre_buffer=True)
        self._lock = Lock()
        self.starts = [0]
        for i in range(self._file.num_row_groups):
            self.starts.append(self.starts[-1] + self._file.metadata.row_group(i).num_rows)

    def span(self, number: int) -> pa.Table:
        first = number * _SPAN_GROUPS
        groups = range(first, min(first + _SPAN_GROUPS, len(self.starts) - 1))
        with self._lock:
            return self._file.read_row_groups(list(groups), columns=_SEGMENT_FIELDS, use_threads=False)

    def hashes(self, first: int, stop: int) -> list[str]:
        """Return the hashes of rows `first` to `stop`, from the row groups that hold them."""
        groups = range(bisect_right(self.starts, first) - 1, bisect_left(self.starts, stop))
        with self._lock:
            column = self._file.read_row_groups(list(groups), columns=["segment_hash"], use_threads=False)
        hashes: list[str] = column["segment_hash"].slice(first - self.starts[groups[0]], stop - first).to_pylist()
        return hashes


# Readings on neighbouring documents begin together: with a condition only the first of them fetches, the others wait.
@cached(LRUCache(64), condition=Condition())
def _part(url: str, part: str) -> _Part:
    return _Part(url, part)


def _rows_at(url: str, part: str, row: int) -> tuple[pa.Table, int]:
    """Return rows among which `row` is, and the number of the first one."""
    starts = _part(url, part).starts
    number = (bisect_right(starts, row) - 1) // _SPAN_GROUPS
    return _span(url, part, number), starts[number * _SPAN_GROUPS]


@cached(LRUCache(_CACHED_SPANS), condition=Condition())
def _span(url: str, part: str, number: int) -> pa.Table:
    # Arrow, not Python lists: ids take 4 bytes each, and questions on one document share it.
    return _part(url, part).span(number).combine_chunks()
