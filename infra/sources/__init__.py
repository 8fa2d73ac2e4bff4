"""Source formats: one small file per family. A new one is a parser and its line in `FORMATS`."""

import os
from collections.abc import Iterator
from dataclasses import replace

from infra.sources.base import Allowance, Parsed, Refused, Request, SourceFormat
from infra.sources.decoding import blank
from infra.sources.docx import parse_docx
from infra.sources.opening import open_source, split_codec
from infra.sources.pdf import parse_pdf
from infra.sources.tabular import parse_csv, parse_json, parse_json_lines, parse_parquet
from infra.sources.text import parse_html, parse_markdown, parse_text
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.registry import Registry

__all__ = ["Parsed", "Refused", "SourceFormat", "is_table", "parse", "parser_origin"]

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
    stem, codec = split_codec(name)
    parser = FORMATS.get(_suffix(name), _TEXT).parse
    count = 0
    stream, size = open_source(path, codec, options.max_bytes, options.max_ratio)
    allowance = Allowance(options, size, is_table(name))
    with stream:
        for record in parser(stream, Request(stem, options, allowance)):
            count += 1
            if isinstance(record, Parsed):
                if record.row is None and blank(record.text):
                    raise SourceError("empty", "there is nothing to read in it")
                allowance.take(len(record.text))
                record = replace(record, title=" ".join(record.title.split())[:TITLE_CHARS])
            yield record
    if not count:
        raise SourceError("empty", "there is nothing to read in it")


def _suffix(name: str) -> str:
    return os.path.splitext(split_codec(name)[0])[1].lower()
