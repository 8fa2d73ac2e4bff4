"""Source formats: one small file per family. A new one is a parser and its line in `PARSERS`."""

import os
from collections.abc import Iterator
from dataclasses import replace

from infra.sources.base import Allowance, Parsed, Parser, Refused, Request
from infra.sources.decoding import blank
from infra.sources.docx import parse_docx
from infra.sources.opening import open_source, split_codec
from infra.sources.pdf import parse_pdf
from infra.sources.tabular import parse_csv, parse_json, parse_json_lines, parse_parquet
from infra.sources.text import parse_html, parse_markdown, parse_text
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.registry import Registry

__all__ = ["Parsed", "Refused", "is_table", "parse"]

PARSERS: Registry[Parser] = Registry(
    "memagent.sources",
    "source format",
    {
        ".md": parse_markdown,
        ".markdown": parse_markdown,
        ".html": parse_html,
        ".htm": parse_html,
        ".xhtml": parse_html,
        ".pdf": parse_pdf,
        ".docx": parse_docx,
        ".csv": parse_csv,
        ".tsv": parse_csv,
        ".jsonl": parse_json_lines,
        ".ndjson": parse_json_lines,
        ".json": parse_json,
        ".parquet": parse_parquet,
    },
)
"""By suffix; any other is text, if its content is."""
TITLE_CHARS = 300
"""Characters of a title at most."""
_TABLES = {".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"}


def is_table(name: str) -> bool:
    """Whether each row of a file of this name is a document."""
    return os.path.splitext(split_codec(name)[0])[1].lower() in _TABLES


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
    parser = PARSERS.get(os.path.splitext(stem)[1].lower(), parse_text)
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
