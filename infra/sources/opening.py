"""Opening a source: a regular file or an S3 object, decompressed, never beyond its limits."""

import gzip
import io
import os
import shutil
import stat
import tempfile
import zlib
from functools import cache
from typing import Any, BinaryIO, cast

import pyarrow as pa

from infra.store import file_system
from memagent.errors import SourceError

_CODECS = {".gz": "gzip", ".zst": "zstd"}
_RATIO_FROM = 2**20
"""Bytes below which no ratio counts as a bomb: a page of blanks compresses well."""

_S3_BLOCK = 8 * 2**20
"""Bytes that are fetched at once."""


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

    Raises:
        SourceError: ``vanished``, ``unreadable``, ``not-a-file``, ``too-large``.
    """
    raw, size = _open_s3(path) if path.startswith("s3://") else _open_local(path)
    if size > max_bytes:
        raw.close()
        raise SourceError("too-large", f"{size:,} bytes are more than ingest.max_bytes = {max_bytes:,}")
    return _copied(raw) if path.startswith("s3://") else raw


def decompressed(raw: BinaryIO, codec: str | None, max_bytes: int, max_ratio: float) -> BinaryIO:
    """Return the content of a source. That of a compressed one cannot seek.

    Args:
        raw: the file as it is stored, at its start.
        codec: gzip, zstd or None.
        max_bytes: most bytes after decompression.
        max_ratio: most bytes after decompression for each one before.

    Raises:
        SourceError: when the stream is read: ``bomb``, ``truncated``, ``broken``.
    """
    if codec is None:
        return raw
    size = os.fstat(raw.fileno()).st_size
    ratio_limit = max(_RATIO_FROM, int(size * max_ratio))
    if ratio_limit < max_bytes:
        over = SourceError("bomb", f"it inflates more than {max_ratio:g} times; see ingest.max_ratio")
    else:
        over = SourceError("too-large", f"inflated it is more than ingest.max_bytes = {max_bytes:,}")
    inner = (
        cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        if codec == "gzip"
        else cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"))
    )
    bounded = _Bounded(inner, min(ratio_limit, max_bytes), over)
    return cast(BinaryIO, io.BufferedReader(bounded, 2**20))


def seekable(stream: BinaryIO) -> BinaryIO:
    """Return `stream`, or its content where it cannot seek."""
    return stream if stream.seekable() else io.BytesIO(stream.read())


class _Bounded(io.RawIOBase):
    """A decompressing stream that raises once it has given more than its limits."""

    def __init__(self, inner: BinaryIO, limit: int, over: SourceError) -> None:
        self._inner = inner
        self._left = limit
        self._over = over

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        try:
            data = self._inner.read(len(buffer))
        except EOFError as error:
            raise SourceError("truncated", "the compressed data ends too early; copy the file again") from error
        except (OSError, zlib.error) as error:
            if "Truncated" in str(error):
                raise SourceError("truncated", "the compressed data ends too early; copy the file again") from error
            raise SourceError("broken", "the compressed data is damaged, or the suffix is wrong") from error
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
    except OSError as error:
        copy.close()
        raise SourceError("unreadable", f"it cannot be copied: {error.strerror or type(error).__name__}") from error
    except Exception as error:  # s3fs lets several libraries' errors through
        copy.close()
        raise SourceError("unreadable", f"it cannot be copied: {type(error).__name__}") from error
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
