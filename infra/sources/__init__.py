"""Source formats: one small file per family. A new one is a parser and its line in `FORMATS`."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from infra.sources.base import Allowance, Parsed, Parser, ParseRequest, Refused, SourceFormat
from infra.sources.decoding import blank
from infra.sources.excel import parse_xlsx
from infra.sources.html import parse_html
from infra.sources.listing import decompressed, open_source, split_codec
from infra.sources.pdf import parse_pdf
from infra.sources.rtf import parse_rtf
from infra.sources.tabular import parse_csv, parse_json, parse_json_lines, parse_parquet
from infra.sources.text import parse_eml, parse_markdown, parse_text
from infra.sources.word import parse_docx
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.registry import Registry

__all__ = ["Parsed", "Refused", "SourceFormat", "is_table", "parse", "parse_file", "parser_origin"]

FORMATS: Registry[SourceFormat] = Registry(
    "memagent.sources",
    "source format",
    {
        ".md": SourceFormat(parse_markdown),
        ".markdown": SourceFormat(parse_markdown),
        ".html": SourceFormat(parse_html),
        ".htm": SourceFormat(parse_html),
        ".xhtml": SourceFormat(parse_html),
        ".pdf": SourceFormat(parse_pdf),
        ".docx": SourceFormat(parse_docx),
        ".docm": SourceFormat(parse_docx),
        ".xlsx": SourceFormat(parse_xlsx),
        ".eml": SourceFormat(parse_eml),
        ".rtf": SourceFormat(parse_rtf),
        ".csv": SourceFormat(parse_csv, table=True),
        ".tsv": SourceFormat(parse_csv, table=True),
        ".jsonl": SourceFormat(parse_json_lines, table=True),
        ".ndjson": SourceFormat(parse_json_lines, table=True),
        ".json": SourceFormat(parse_json, table=True),
        ".parquet": SourceFormat(parse_parquet, table=True),
    },
    fits=lambda member: isinstance(member, SourceFormat),
)
"""By suffix; any other is text, if its content is."""
TITLE_CHARS = 300
"""Characters of a title at most."""
_TEXT = SourceFormat(parse_text)
_ADVICE = {
    **dict.fromkeys((".doc", ".odt", ".pages", ".wps"), "save it as .docx"),
    **dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "save it as .xlsx or .csv"),
    **dict.fromkeys((".ppt", ".pptx", ".odp", ".key", ".epub", ".mobi", ".djvu"), "save it as .pdf"),
    **dict.fromkeys((".msg", ".pst", ".mbox"), "save each mail as .eml"),
    **dict.fromkeys((".zip", ".tar", ".7z", ".rar", ".tgz"), "unpack it"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".heic"), "it is a picture: run OCR on it"),
}
"""What to do with files that are not read, by suffix."""


def is_table(name: str) -> bool:
    """Whether each row of a file of this name is a document.

    Raises:
        ConfigError: another package brings the format, and it cannot be imported or used.
    """
    return FORMATS.get(_suffix(name), _TEXT).table


def parser_origin(name: str) -> str:
    """Return which other package parses a file of this name, with its version; empty: none."""
    return FORMATS.origin(_suffix(name))


def parse(path: str, name: str, options: IngestConfig) -> Iterator[Parsed | Refused]:
    """Yield the texts of a source.

    Args:
        path: where to open it, a local path or an S3 URL.
        name: its file name, fit to be shown.
        options: columns and limits.

    Raises:
        SourceError: the source, or what is left of it, cannot be read. Texts yielded before stand.
    """
    with open_source(path, options.max_bytes) as raw:
        yield from parse_file(raw, name, options)


def parse_file(raw: BinaryIO, name: str, options: IngestConfig) -> Iterator[Parsed | Refused]:
    """Yield the texts of a source that is open, as `parse` does.

    Args:
        raw: the file as it is stored, at its start.
        name: its file name, fit to be shown.
        options: columns and limits.

    Raises:
        SourceError: as `parse`.
    """
    stem, codec = split_codec(name)
    parser = FORMATS.get(_suffix(name), _TEXT).parse
    count = 0
    allowance = Allowance(options, os.fstat(raw.fileno()).st_size, is_table(name))
    with decompressed(raw, codec, options.max_bytes, options.max_ratio) as stream:
        for record in _parsed(parser, stream, ParseRequest(stem, options, allowance)):
            count += 1
            if isinstance(record, Parsed):
                if record.row is None and blank(record.text):
                    raise SourceError("empty", "there is nothing to read in it")
                allowance.take(len(record.text))
                record = replace(record, title=" ".join(record.title.split())[:TITLE_CHARS])
            yield record
    if not count:
        raise SourceError("empty", "there is nothing to read in it")


def _parsed(parser: Parser, stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Parse; say what to do with a file whose kind is known and not read."""
    try:
        yield from parser(stream, request)
    except SourceError as error:
        if error.reason != "binary":
            raise
        suffix = _suffix(request.name)
        advice = _ADVICE.get(suffix, f"give it the suffix of its kind; read are {', '.join(FORMATS.built_in)} and text")
        raise SourceError("binary", f"{error.detail.partition(';')[0]}; {advice}") from error


def _suffix(name: str) -> str:
    return os.path.splitext(split_codec(name)[0])[1].lower()
