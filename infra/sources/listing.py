"""A listing: the sources of an ingest as an Arrow table, each with a stable name."""

import gzip
import io
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.location import file_system
from memagent.errors import SourceError

_BESIDE = re.compile(
    r"~\$.+"  # lock files of office programs
    r"|Thumbs\.db|desktop\.ini|__MACOSX"  # of Windows, and in archives of macOS
    r"|_SUCCESS|_(?:started|committed)_\w+|_(?:common_)?metadata",  # of Spark and Hadoop, beside a table's files
    re.IGNORECASE,
)
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_RATIO_FROM = 2**20
"""Bytes below which no ratio counts as a bomb: a page of blanks compresses well."""

_S3_BLOCK = 8 * 2**20
"""Bytes that are fetched at once."""


def is_passed_over(name: str) -> bool:
    """Whether a file or folder is hidden, or one that a system or a program keeps beside the documents."""
    return name.startswith(".") or _BESIDE.fullmatch(name) is not None


def split_codec(name: str) -> tuple[str, str | None]:
    """Return a file name without its compression suffix, and the codec that the suffix names."""
    stem, suffix = os.path.splitext(name)
    codec = _CODECS.get(suffix.lower())
    return (stem, codec) if codec and stem else (name, None)


def open_source(path: str, max_bytes: int) -> BinaryIO:
    """Open a source for reading, as a file of this machine: an S3 object is copied to a temporary file without a name.

    Args:
        path: a local path (bytes that are no UTF-8 as `os.fsdecode` gives them) or an S3 URL.
        max_bytes: most bytes of the source as it is stored.

    Raises SourceError: ``vanished``, ``unreadable``, ``not-a-file``, ``too-large``.
    """
    raw, size = _open_s3(path) if path.startswith("s3://") else _open_local(path)
    if size > max_bytes:
        raw.close()
        raise SourceError("too-large", f"{size:,} bytes are more than ingest.max_bytes = {max_bytes:,}")
    return _copied(raw) if path.startswith("s3://") else raw


def decompressed(raw: BinaryIO, codec: str | None, max_bytes: int, max_ratio: float) -> BinaryIO:
    """Return the content of a source, which is open at its start. That of a compressed one cannot seek.

    Raises:
        SourceError: when the stream is read: ``bomb`` (it inflates more than `max_ratio` times), ``too-large``,
            ``truncated``, ``broken``.
    """
    if codec is None:
        return raw
    size = os.fstat(raw.fileno()).st_size
    ratio_limit = max(_RATIO_FROM, int(size * max_ratio))
    if ratio_limit < max_bytes:
        over = SourceError("bomb", f"it inflates more than {max_ratio:g} times; see ingest.max_ratio")
    else:
        over = SourceError("too-large", f"inflated it is more than ingest.max_bytes = {max_bytes:,}")
    packed: Any = raw if codec == "gzip" else pa.PythonFile(raw, "r")
    inner: Any = gzip.GzipFile(fileobj=packed) if codec == "gzip" else pa.CompressedInputStream(packed, "zstd")
    bounded = _Bounded(inner, min(ratio_limit, max_bytes), over)
    return cast(BinaryIO, io.BufferedReader(bounded, 2**20))


def seekable(stream: BinaryIO) -> BinaryIO:
    """Return `stream`, or its content where it cannot seek."""
    return stream if stream.seekable() else io.BytesIO(stream.read())


_LINE_ENDS_AFTER = {f"Not a gzipped file ({end!r})" for end in (b"\r\n", b"\n", b"\n\n")}
"""What the library says of a line end after the last member, which programs that send files as text put there."""


class _Bounded(io.RawIOBase):
    """A decompressing stream that raises once it has given more than its limits."""

    def __init__(self, inner: io.BufferedIOBase, limit: int, over: SourceError) -> None:
        self._inner = inner
        self._left = limit
        self._over = over
        self._given = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        try:
            data = self._inner.read1(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            if self._given and str(error) in _LINE_ENDS_AFTER:
                return 0
            if isinstance(error, EOFError) or "Truncated" in str(error):
                raise SourceError("truncated", "the compressed data ends too early; copy the file again") from error
            raise SourceError("broken", "the compressed data is damaged, or the suffix is wrong") from error
        self._given = self._given or bool(data)
        self._left -= len(data)
        if self._left < 0:
            raise self._over
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _open_local(path: str) -> tuple[BinaryIO, int]:
    try:
        # Without O_NONBLOCK, opening would block on a pipe that has replaced the file since it was listed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceError("vanished", "it is gone since it was listed, or this worker cannot see it") from error
    except OSError as error:
        raise SourceError("unreadable", f"it cannot be opened: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SourceError("not-a-file", "it is no regular file any more")
    return os.fdopen(descriptor, "rb"), status.st_size


def _copied(raw: BinaryIO) -> BinaryIO:
    """Return a copy on this machine's disk, which goes when it is closed."""
    copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the caller's
    try:
        with raw:
            shutil.copyfileobj(raw, copy, _S3_BLOCK)
    except Exception as error:  # s3fs lets several libraries' errors through
        copy.close()
        why = getattr(error, "strerror", None) or type(error).__name__
        raise SourceError("unreadable", f"it cannot be copied: {why}") from error
    copy.seek(0)
    return copy


@cache
def _s3() -> Any:
    """The S3 client of this process: making one for each object takes longer than reading it."""
    return file_system("s3://")


def _open_s3(path: str) -> tuple[BinaryIO, int]:
    try:
        file = _s3().open(path, "rb", block_size=_S3_BLOCK)
    except FileNotFoundError as error:
        raise SourceError("vanished", "it is gone since it was listed") from error
    except Exception as error:  # s3fs lets several libraries' errors through
        raise SourceError("unreadable", f"it cannot be opened: {type(error).__name__}") from error
    return cast(BinaryIO, file), int(file.size)


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
    """Files and folders that are hidden or no documents (`is_passed_over`)."""
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


def assign_ids(listed: Iterable[Source], taken: Collection[str]) -> list[Source]:
    """Return `listed` with ids that no two of them share, none of those that are taken.

    An id is the path relative to the source's root. Where another source has it already, as many folders before it are
    added as it takes; the first one of a name gets it.
    """
    used, named = set(taken), []
    for source in listed:
        doc_id = next(name for name in candidate_ids(source) if name not in used)
        used.add(doc_id)
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
