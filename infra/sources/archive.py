"""Archives of documents (.zip): each file in one is a document, or a table of them."""

import posixpath
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO, cast

from infra.sources.base import Parsed, Parser, ParseRequest, Refused
from infra.sources.decoding import clean
from infra.sources.listing import is_passed_over, seekable
from infra.sources.office import check_archive
from memagent.errors import SourceError

_IS_ENCRYPTED = 0x1
_IS_UTF8 = 0x800
"""Flags of a member (APPNOTE 4.4.4)."""


def parse_zip(stream: BinaryIO, request: ParseRequest, parse: Parser) -> Iterator[Parsed | Refused]:
    """Yield the texts of an archive's files; the row of one is its path in the archive.

    Args:
        stream: the archive.
        request: the limits, which hold for all files together.
        parse: parses one of them.

    Raises:
        SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    file = seekable(stream)
    check_archive(file, request, "zip archive", ".zip")
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            path = posixpath.normpath(f"/{_path(entry)}").lstrip("/")
            if entry.is_dir() or any(map(is_passed_over, path.split("/"))):
                continue
            if entry.flag_bits & _IS_ENCRYPTED:
                yield Refused(path, "encrypted", "it asks for a password; pack it without one")
                continue
            try:
                with archive.open(entry) as member:
                    for record in parse(cast(BinaryIO, member), replace(request, name=posixpath.basename(path))):
                        yield replace(record, row=path if record.row is None else f"{path}#{record.row}")
            except SourceError as error:
                if error.reason in ("bomb", "too-large"):  # the limits of the archive
                    raise
                yield Refused(path, error.reason, error.detail)
            except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError) as error:
                yield Refused(path, "broken", f"it cannot be unpacked ({error}); pack it again")


def _path(entry: zipfile.ZipInfo) -> str:
    """Return a file's path; names of programs that do not say their encoding are mostly UTF-8 all the same."""
    name = entry.filename
    if not entry.flag_bits & _IS_UTF8 and not name.isascii():
        with suppress(ValueError):
            name = name.encode("cp437").decode("utf-8")
    return clean(name)
