"""csv and json lines, read row by row."""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from infra.formats.base import Parsed, Refused, Request
from infra.formats.decoding import detect
from infra.formats.plain import parse_text
from infra.formats.rows import ColumnWatch, RowReader
from memagent.errors import SourceError

_HEAD = 2**20
_DELIMITERS = ",;\t|"
_BAD_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not of the file's encoding, as ``surrogateescape`` decodes it."""


def parse_csv(stream: BinaryIO, request: Request) -> Iterator[Parsed | Refused]:
    """Yield the rows of a table whose first line names the columns.

    The delimiter is the one of comma, semicolon, tab and bar that gives the text column.

    Raises:
        SourceError: ``empty``, ``no-column``, ``encoding``, ``binary``, ``too-large``.
    """
    options = request.options
    head, file, encoding = _text_stream(stream)
    if not head.strip():
        raise SourceError("empty", "it has no header line")
    header = head.splitlines()[0]
    delimiter, columns = _header(header, options.text_column)
    reader = RowReader(options, "text/csv", encoding)
    with file, _field_limit(options.max_bytes):
        yield from _rows(csv.reader(file, delimiter=delimiter, strict=True), columns, reader, encoding)


def _rows(
    lines: Iterator[list[str]], columns: list[str], reader: RowReader, encoding: str
) -> Iterator[Parsed | Refused]:
    next(lines, None)
    for number in itertools.count(1):
        try:
            fields = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.refused(number, "broken-row", f"{error}")
            continue
        if not fields:
            continue  # an empty line between rows
        if len(fields) != len(columns):
            yield reader.refused(number, "ragged", f"it has {len(fields)} fields, the header {len(columns)}")
        elif any(_BAD_BYTE.search(field) for field in fields):
            yield reader.refused(number, "encoding", f"it has bytes that are not {encoding}")
        else:
            yield reader.read(number, dict(zip(columns, fields, strict=True)))


@contextmanager
def _field_limit(size: int) -> Iterator[None]:
    """Let a field be as long as a source may be; the limit belongs to the process, so it is put back."""
    before = csv.field_size_limit(size)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def parse_json_lines(stream: BinaryIO, request: Request) -> Iterator[Parsed | Refused]:
    """Yield the objects of a file with one JSON object per line.

    Raises:
        SourceError: ``no-column``, ``encoding``, ``binary``, ``too-large``.
    """
    _, file, encoding = _text_stream(stream)
    reader = RowReader(request.options, "application/x-ndjson", encoding)
    watch = ColumnWatch()
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield from watch.take(_json_row(number, line, reader, encoding))
    yield from watch.end()


def parse_json(stream: BinaryIO, request: Request) -> Iterator[Parsed | Refused]:
    """Yield rows where the first line is an object with the text column, else the file as text."""
    data = stream.read()
    try:
        first = json.loads(data.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and request.options.text_column in first:
        yield from parse_json_lines(io.BytesIO(data), request)
        return
    for parsed in parse_text(io.BytesIO(data), request):
        yield Parsed(parsed.text, "", "application/json", parsed.encoding)


def _json_row(number: int, line: str, reader: RowReader, encoding: str) -> Parsed | Refused:
    if _BAD_BYTE.search(line):
        return reader.refused(number, "encoding", f"it has bytes that are not {encoding}")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return reader.refused(number, "broken-row", f"no JSON: {str(error)[:200]}")
    if not isinstance(values, dict):
        return reader.refused(number, "broken-row", f"it is {type(values).__name__}, not an object")
    return reader.read(number, values)


def _text_stream(stream: BinaryIO) -> tuple[str, io.TextIOWrapper, str]:
    """Return the beginning as text, the whole as lines, and the encoding."""
    buffered = io.BufferedReader(stream, _HEAD)  # type: ignore[type-var]
    head = buffered.peek(_HEAD)
    encoding = detect(head, complete=False)
    wide = encoding.startswith(("utf-16", "utf-32"))
    file = io.TextIOWrapper(buffered, encoding, errors="strict" if wide else "surrogateescape", newline="")
    return head.decode(encoding, "replace"), file, encoding.removesuffix("-sig")


def _header(line: str, text_column: str) -> tuple[str, list[str]]:
    for delimiter in _DELIMITERS:
        columns = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
        if text_column in columns:
            return delimiter, columns
    raise SourceError("no-column", f"no column {text_column!r} in the header {line[:200]!r}; set ingest.text_column")
