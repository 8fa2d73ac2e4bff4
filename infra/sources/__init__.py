"""Source formats: one small file per family. A new one is a parser and its line in `FORMATS`."""

import os
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import BinaryIO, cast

from infra.sources.base import Allowance, Parsed, ParseRequest, Refused, SourceFormat, quoted
from infra.sources.decoding import blank, clean
from infra.sources.excel import parse_xlsx
from infra.sources.html import parse_epub, parse_html
from infra.sources.listing import decompressed, is_passed_over, open_source, seekable, split_codec
from infra.sources.mail import parse_eml, parse_mbox, parse_msg
from infra.sources.odt import parse_odt
from infra.sources.office import check_archive
from infra.sources.pdf import parse_pdf
from infra.sources.pptx import parse_pptx
from infra.sources.tabular import ID_CHARS, parse_csv, parse_json, parse_json_lines, parse_parquet
from infra.sources.text import parse_markdown, parse_rtf, parse_text
from infra.sources.word import parse_docx
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.registry import Registry

__all__ = ["Parsed", "Refused", "SourceFormat", "is_table", "parse", "parse_file", "parser_origin"]

_IS_ENCRYPTED = 0x1
_IS_UTF8 = 0x800
"""Flags of a file in a zip archive (APPNOTE 4.4.4)."""


def _parse_zip(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield the texts of an archive's files, each a document or a table of them; the row of one is its path in it.

    The limits hold for all files together.

    Raises SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    file = seekable(stream)
    check_archive(file, request, "zip archive", ".zip")
    with zipfile.ZipFile(file) as archive:
        seen: set[str] = set()
        for entry in archive.infolist():
            path = quoted(posixpath.normpath(f"/{_path_in_archive(entry)}").lstrip("/"))
            if entry.is_dir() or any(map(is_passed_over, path.split("/"))):
                continue
            if path in seen or len(path) > ID_CHARS:
                why = "an earlier file has this path" if path in seen else f"it has more than {ID_CHARS} characters"
                yield Refused(path[:ID_CHARS], "duplicate-id" if path in seen else "long-id", why)
                continue
            seen.add(path)
            if entry.flag_bits & _IS_ENCRYPTED:
                yield Refused(path, "encrypted", "it asks for a password; pack it without one")
                continue
            try:
                with archive.open(entry) as member:
                    for record in _member(cast(BinaryIO, member), replace(request, name=posixpath.basename(path))):
                        yield replace(record, row=path if record.row is None else f"{path}#{record.row}")
            except SourceError as error:
                if error.reason in ("bomb", "too-large"):  # the limits of the archive
                    raise
                yield Refused(path, error.reason, error.detail)
            except RecursionError:
                yield Refused(path, "too-deep", "its parts nest too deeply to be read in full; flatten it")
            except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError) as error:
                yield Refused(path, "broken", f"it cannot be unpacked ({error}); pack it again")


def _path_in_archive(entry: zipfile.ZipInfo) -> str:
    """Return a file's path; names of programs that do not say their encoding are mostly UTF-8 all the same."""
    name = entry.filename
    if not entry.flag_bits & _IS_UTF8 and not name.isascii():
        with suppress(ValueError):
            name = name.encode("cp437").decode("utf-8")
    return clean(name)


FORMATS: Registry[SourceFormat] = Registry(
    "memagent.sources",
    "source format",
    {
        ".md": SourceFormat(parse_markdown),
        ".markdown": SourceFormat(parse_markdown),
        ".html": SourceFormat(parse_html),
        ".htm": SourceFormat(parse_html),
        ".xhtml": SourceFormat(parse_html),
        ".shtml": SourceFormat(parse_html),
        ".pdf": SourceFormat(parse_pdf),
        ".docx": SourceFormat(parse_docx),
        ".docm": SourceFormat(parse_docx),
        ".xlsx": SourceFormat(parse_xlsx),
        ".odt": SourceFormat(parse_odt),
        ".pptx": SourceFormat(parse_pptx),
        ".epub": SourceFormat(parse_epub),
        ".eml": SourceFormat(parse_eml),
        ".mht": SourceFormat(parse_eml),
        ".mhtml": SourceFormat(parse_eml),
        ".msg": SourceFormat(parse_msg),
        ".mbox": SourceFormat(parse_mbox, table=True),
        ".rtf": SourceFormat(parse_rtf),
        ".csv": SourceFormat(parse_csv, table=True),
        ".tsv": SourceFormat(parse_csv, table=True),
        ".jsonl": SourceFormat(parse_json_lines, table=True),
        ".ndjson": SourceFormat(parse_json_lines, table=True),
        ".json": SourceFormat(parse_json, table=True),
        ".parquet": SourceFormat(parse_parquet, table=True),
        ".zip": SourceFormat(_parse_zip, table=True),
    },
    fits=lambda member: isinstance(member, SourceFormat),
)
"""By suffix; any other is text, or what its beginning says it is."""
TITLE_CHARS = 300
"""Characters of a title at most."""
_ROWS = rb"<(?:tr|thead|tbody|col|colgroup|caption|style)"
_BY_CONTENT: tuple[tuple[re.Pattern[bytes], Callable[[BinaryIO, ParseRequest], Iterator[Parsed]]], ...] = (
    (re.compile(rb"\s*\{\\rtf\d"), parse_rtf),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!doctype html|<html|<table\b[^<>]*>\s*%b)[\s>]" % _ROWS, re.I), parse_html),
    (re.compile(rb"(?:[A-Za-z][A-Za-z0-9-]{0,60}:.*\n(?:[ \t].*\n)*)*MIME-Version: *1\.0", re.I), parse_eml),
)
"""Markup that is no text, whatever a file of it is called."""
_BEGINNING = 2**16
_MARKUP = re.compile(rb"From \S+ (?>.*?\d\d:\d\d.*\n)[A-Za-z-]+: |\s*<\?xml[^>]*>\s*<\?mso-application")


def _by_content(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the text of a file whose suffix is of no format."""
    data = stream.read()
    head = data[:_BEGINNING]
    if _MARKUP.match(head):
        raise SourceError("binary", "not a text file: it is a mailbox, or old XML of Office")
    yield from next((parse for start, parse in _BY_CONTENT if start.match(head)), parse_text)(BytesIO(data), request)


_TEXT = SourceFormat(_by_content)
_ADVICE = {
    **dict.fromkeys((".doc", ".pages", ".wps"), "save it as .docx"),
    **dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "save it as .xlsx or .csv"),
    **dict.fromkeys((".ppt", ".odp", ".key"), "save it as .pptx or .pdf"),
    **dict.fromkeys((".mobi", ".djvu"), "save it as .epub or .pdf"),
    ".pst": "save its mails as .mbox or .msg",
    **dict.fromkeys((".tar", ".7z", ".rar", ".tgz"), "unpack it, or make it a .zip"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".heic"), "it is a picture: run OCR on it"),
}
"""What to do with files that are not read, by suffix."""


def is_table(name: str) -> bool:
    """Whether each row of a file of this name is a document.

    Raises ConfigError: another package brings the format, and it cannot be imported or used.
    """
    return FORMATS.get(_suffix(name), _TEXT).table


def parser_origin(name: str) -> str:
    """Return which other package parses a file of this name, with its version; empty: none."""
    return FORMATS.origin(_suffix(name))


def parse(path: str, name: str, options: IngestConfig) -> Iterator[Parsed | Refused]:
    """Yield the texts of a source at a local path or S3 URL; its file name is fit to be shown.

    Raises SourceError: the source, or what is left of it, cannot be read. Texts yielded before stand.
    """
    with open_source(path, options.max_bytes) as raw:
        yield from parse_file(raw, name, options)


def parse_file(
    raw: BinaryIO, name: str, options: IngestConfig, gets_on: Callable[[], object] = lambda: None
) -> Iterator[Parsed | Refused]:
    """Yield the texts of a source that is open at its start, as it is stored. Raises SourceError, as `parse`.

    Args:
        gets_on: is called at the parts of a text, such as pages.
    """
    stem, codec = split_codec(name)
    size = os.fstat(raw.fileno()).st_size
    if not size:
        raise SourceError("empty", "the file has no bytes")
    allowance = Allowance(options, size, is_table(name))
    allowance.gets_on = gets_on
    with decompressed(raw, codec, options.max_bytes, options.max_ratio) as stream:
        for record in _parsed(stream, ParseRequest(stem, options, allowance)):
            if isinstance(record, Parsed):
                allowance.take(len(record.text))
                record = replace(record, title=" ".join(record.title.split())[:TITLE_CHARS])
            yield record


def _member(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Parse a file of an archive, which may be no archive and not compressed itself."""
    suffix = _suffix(request.name)
    if suffix == ".zip" or split_codec(request.name)[1]:
        raise SourceError("binary", "an archive in an archive is not read: unpack it")
    yield from _parsed(stream, request)


def _parsed(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Parse by the suffix; say what to do with a file of a known kind that is not read, or that holds nothing."""
    count = 0
    try:
        for record in FORMATS.get(_suffix(request.name), _TEXT).parse(stream, request):
            if isinstance(record, Parsed) and record.row is None and blank(record.text):
                if record.warnings:
                    said = "; ".join(record.warnings)
                    raise SourceError("no-text", f"it has no text ({said}); print it to a PDF, whose pictures are read")
                break
            count += 1
            yield record
    except SourceError as error:
        if error.reason != "binary":
            raise
        suffix = _suffix(request.name)
        advice = _ADVICE.get(suffix, f"give it the suffix of its kind; read are {', '.join(FORMATS.built_in)} and text")
        raise SourceError("binary", f"{error.detail.partition(';')[0]}; {advice}") from error
    if not count:
        raise SourceError("empty", "there is nothing to read in it")


def _suffix(name: str) -> str:
    return os.path.splitext(split_codec(name)[0])[1].lower()
