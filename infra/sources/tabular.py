"""Rows as documents: CSV, JSON lines and Parquet, and what they have in common."""

import csv
import io
import itertools
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from infra.sources.base import Allowance, Parsed, ParseRequest, Refused, quoted, unread
from infra.sources.decoding import blank, clean, detect, guessed
from infra.sources.listing import seekable
from infra.sources.text import parse_text
from memagent.config import IngestConfig
from memagent.errors import SourceError

_LOOK_AHEAD = 100
ID_CHARS = 1000
_NO_COLUMN = ("no-column", "missing-id")
"""Reasons that, if all rows have them, mean that the options name another table's columns."""


class RowReader:
    """Turns the rows of one table into documents."""

    def __init__(self, options: IngestConfig, media_type: str, encoding: str = "utf-8") -> None:
        self._options = options
        self._media_type = media_type
        self._encoding = encoding
        self._seen: set[str] = set()
        self._allowance = Allowance(options)

    def read(self, number: int, values: Mapping[str, Any]) -> Parsed | Refused:
        """Return row `number` (from 1) as a document, or why it is none.

        Raises SourceError: ``too-large`` when the texts together pass ``ingest.max_bytes``.
        """
        options = self._options
        if options.text_column not in values:
            return Refused(str(number), "no-column", f"it has no {options.text_column!r}; see ingest.text_column")
        text = values[options.text_column]
        if text is not None and not isinstance(text, str):
            kind = type(text).__name__
            return Refused(str(number), "wrong-type", f"{options.text_column!r} is {kind}, and not text")
        if text is None or blank(text):
            return Refused(str(number), "empty", f"{options.text_column!r} is empty")
        row = str(number)
        if options.id_column is not None:
            value = values.get(options.id_column)
            if value is None or value == "" or isinstance(value, (list, dict)):
                detail = f"it has no id in {options.id_column!r}; see ingest.id_column"
                return Refused(row, "missing-id", detail)
            if len(str(value)) > ID_CHARS:
                return Refused(str(number), "long-id", f"its id has more than {ID_CHARS} characters")
            row = quoted(str(value), safe="#")
            if row in self._seen:
                return Refused(str(number), "duplicate-id", f"an earlier row has the id {row[:100]!r}")
            self._seen.add(row)
        self._allowance.take(len(text))
        title = values.get(options.title_column) if options.title_column else None
        title = clean(title) if isinstance(title, str) else ""
        warnings = guessed(text, self._encoding)
        return Parsed(clean(text), title, self._media_type, encoding=self._encoding, row=row, warnings=warnings)


def _with_column(records: Iterator[Parsed | Refused]) -> Iterator[Parsed | Refused]:
    """Yield the rows of a table. Raises SourceError, ``no-column``, where the first ones all lack the column."""
    first: list[Parsed | Refused] = []
    for record in records:
        first.append(record)
        if isinstance(record, Parsed) or len(first) == _LOOK_AHEAD:
            break
    lacking = [record for record in first if isinstance(record, Refused) and record.reason in _NO_COLUMN]
    if lacking and len(lacking) == len(first):
        raise SourceError("no-column", f"no row has the column; the first one: {lacking[0].detail}")
    yield from first
    yield from records


_HEAD = 2**20
_DELIMITERS = ",;\t|"
_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_LAST_CONTROL = 0x9F
_BAD_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not of the file's encoding, as ``surrogateescape`` decodes it."""


def parse_csv(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield the rows of a table whose first line names the columns.

    The delimiter is the one of comma, semicolon, tab and bar that gives the text column.

    Raises SourceError: ``empty``, ``no-column``, ``encoding``, ``binary``, ``too-large``.
    """
    options = request.options
    with _text_stream(stream) as (head, file, encoding), _field_limit(options.max_bytes):
        if not head.strip():
            raise SourceError("empty", "it has no header line")
        beginning = list(io.StringIO(head, newline=""))
        above = sum(1 for _ in itertools.takewhile(_is_above_header, beginning))
        delimiter, columns = _header(beginning[above:], options.text_column)
        for _ in range(above):
            next(file)
        _check_id_column(columns, options)
        reader = RowReader(options, "text/csv", encoding)
        records = itertools.islice(_records(file, delimiter, above + 1, len(columns)), 1, None)
        for number, (where, fields) in enumerate(records, 1):
            if isinstance(fields, csv.Error):
                yield Refused(str(number), "broken-row", f"{where}: a quote is not closed as it should be ({fields})")
            elif fields and len(fields) != len(columns):
                detail = f"{where}: {len(fields)} fields, and the header has {len(columns)}"
                yield Refused(str(number), "ragged", detail)
            elif any(_BAD_BYTE.search(field) for field in fields):
                yield Refused(str(number), "encoding", f"{where}: it has bytes that are not {encoding}")
            elif fields:  # else an empty line between rows
                yield reader.read(number, dict(zip(columns, fields, strict=True)))


def _records(file: Iterator[str], delimiter: str, line: int, width: int) -> Iterator[tuple[str, list[str] | csv.Error]]:
    """Yield where each record stands, counted from `line`, and its fields, or why it has none.

    A quote too many takes the rows after it for its text, so reading goes on at the next line with `width` fields: once
    for the same lines, so that the time stays in proportion to their number.
    """
    waiting, taken, until = deque[str](), list[str](), 0

    def lines() -> Iterator[str]:
        while text := waiting.popleft() if waiting else next(file, ""):
            taken.append(text)
            yield text

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        taken.clear()
        try:
            record: list[str] | csv.Error = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            record, reader = error, csv.reader(lines(), delimiter=delimiter, strict=True)
            if line >= until:
                until = line + len(taken) - 1
                counts = (sum(map(len, csv.reader([text], delimiter=delimiter))) for text in taken[1:])
                again = next((at for at, count in enumerate(counts, 1) if count == width), len(taken))
                waiting.extendleft(reversed(taken[again:]))
                del taken[again:]
        where = f"line {line:,}" if len(taken) == 1 else f"lines {line:,} to {line + len(taken) - 1:,}"
        line += len(taken)
        yield where, record


@contextmanager
def _field_limit(size: int) -> Iterator[None]:
    """Let a field be as long as a source may be; the limit belongs to the process, so it is put back."""
    before = csv.field_size_limit(size)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def parse_json_lines(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield the objects of a file with one JSON object per line.

    Raises SourceError: ``no-column``, ``encoding``, ``binary``, ``too-large``.
    """
    with _text_stream(stream) as (_, file, encoding):
        reader = RowReader(request.options, "application/x-ndjson", encoding)
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        yield from _with_column(_json_row(number, line, reader, encoding) for number, line in lines)


def parse_json(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield rows where the first line is an object with the text column, else the file as text.

    So is a single object that has other columns.
    """
    data = stream.read()
    line, _, rest = data.partition(b"\n")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        first = None
    names = request.options
    columns = {names.text_column, names.id_column, names.title_column, "id"}
    if isinstance(first, dict) and names.text_column in first and (rest.strip() or first.keys() <= columns):
        yield from parse_json_lines(io.BytesIO(data), request)
        return
    for parsed in parse_text(io.BytesIO(data), request):
        text = _unescaped(parsed.text)
        warnings = (*guessed(text, parsed.encoding), *unread({"unreadable letter": text.count("\ufffd")}))
        yield Parsed(text, "", "application/json", parsed.encoding, warnings=warnings)


def _unescaped(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        code = int(found.group(1), 16) if found.group(1) else 0
        return chr(code) if code > _LAST_CONTROL and chr(code) not in '"\\' else found.group()

    return clean(_JSON_ESCAPE.sub(letter, text)) if "\\u" in text else text


def _json_row(number: int, line: str, reader: RowReader, encoding: str) -> Parsed | Refused:
    if _BAD_BYTE.search(line):
        return Refused(str(number), "encoding", f"it has bytes that are not {encoding}")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Refused(str(number), "broken-row", f"no JSON: {str(error)[:200]}")
    if not isinstance(values, dict):
        return Refused(str(number), "broken-row", f"it is {type(values).__name__}, not an object")
    return reader.read(number, values)


@contextmanager
def _text_stream(stream: BinaryIO) -> Iterator[tuple[str, io.TextIOWrapper, str]]:
    """Yield the beginning as text, the whole as lines, and the encoding.

    Raises SourceError: ``encoding``, what follows is not in that of the beginning; and as `detect`.
    """
    buffered = io.BufferedReader(stream, _HEAD)  # type: ignore[type-var]
    head = buffered.peek(_HEAD)
    encoding = detect(head, complete=False)
    wide = encoding.startswith(("utf-16", "utf-32"))
    file = io.TextIOWrapper(buffered, encoding, errors="strict" if wide else "surrogateescape", newline="")
    try:
        with file:
            yield head.decode(encoding, "replace"), file, encoding.removesuffix("-sig")
    except UnicodeDecodeError as error:
        raise SourceError("encoding", f"it starts as {encoding} and does not go on so: {error.reason}") from error


def _check_id_column(columns: Sequence[str], options: IngestConfig) -> None:
    """Refuse a table without its id column whole, so that what it gave before stays."""
    if options.id_column is not None and options.id_column not in columns:
        among = _listed(columns)
        raise SourceError("no-column", f"no column {options.id_column!r} among {among}; set ingest.id_column")


def _listed(columns: Sequence[str]) -> str:
    """Return the names of columns on one line, whatever they have in them."""
    return " ".join(", ".join(columns).split())[:200]


def _is_above_header(line: str) -> bool:
    """Whether a first line is blank, or names the delimiter as Excel wants it (``sep=;``)."""
    return not line.strip() or (line.lower().startswith("sep=") and len(line.strip()) == len("sep=;"))


def _header(lines: Sequence[str], text_column: str) -> tuple[str, list[str]]:
    """Return the delimiter that gives the text column, and the columns; a name may go over several lines."""
    for delimiter in _DELIMITERS:
        with suppress(csv.Error):
            columns = [" ".join(name.split()) for name in next(csv.reader(lines, delimiter=delimiter), [])]
            if columns.count(text_column) > 1:
                raise SourceError("no-column", f"several columns are called {text_column!r}: rename all but one")
            if text_column in columns:
                return delimiter, columns
    line = "".join(lines[:1])[:200].strip()
    detail = f"no column {text_column!r} in the header {line!r}: give --set ingest.text_column=NAME"
    raise SourceError("no-column", detail)


_BATCH_BYTES, _BATCH_ROWS = 2**24, 2**14
_RATIO_FROM = 2**26
"""Inflated bytes below which no ratio counts as a bomb: columns compress well."""


def parse_parquet(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield the rows of a Parquet file.

    Raises SourceError: ``broken``, ``no-column``, ``wrong-type``, ``too-large``, ``bomb``.
    """
    options = request.options
    raw = seekable(stream)
    packed = raw.seek(0, 2)
    raw.seek(0)
    try:
        file = pq.ParquetFile(raw)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError("broken", "it is no Parquet file, or a truncated one; write it again") from error
    schema = file.schema_arrow
    _check(file, schema, packed, request)
    # A dictionary stays one: a long text that every row repeats would else be laid out in full.
    file = pq.ParquetFile(raw, metadata=file.metadata, read_dictionary=[options.text_column])
    wanted = [options.text_column, options.id_column, options.title_column]
    columns = [name for name in schema.names if name in wanted]
    inflated = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * max(1, file.metadata.num_rows) // max(1, inflated)))
    reader = RowReader(options, "application/vnd.apache.parquet")
    number = 0
    try:
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            filled = batch[options.text_column].is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
            if len(filled) < batch.num_rows:  # of millions of rows without text none is looked at
                yield Refused(str(number + 1), "empty", "no text", rows=batch.num_rows - len(filled))
            for index in filled.tolist():
                yield _parquet_row(batch, index, number + index + 1, reader)
            number += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError("broken", f"it cannot be read from row {number + 1} on; write it again") from error


def _parquet_row(batch: pa.RecordBatch, index: int, number: int, reader: RowReader) -> Parsed | Refused:
    try:
        return reader.read(number, {name: batch.column(name)[index].as_py() for name in batch.schema.names})
    except UnicodeDecodeError:
        return Refused(str(number), "encoding", f"row {number} is not valid UTF-8")


def _check(file: pq.ParquetFile, schema: pa.Schema, packed: int, request: ParseRequest) -> None:
    options = request.options
    if options.text_column not in schema.names:
        among = _listed(schema.names)
        raise SourceError("no-column", f"no column {options.text_column!r} among {among}; set ingest.text_column")
    _check_id_column(schema.names, options)
    kind = schema.field(options.text_column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise SourceError("wrong-type", f"column {options.text_column!r} is {kind}, not text; set ingest.text_column")
    inflated = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    if inflated > max(_RATIO_FROM, packed * options.max_ratio):
        raise SourceError("bomb", f"it inflates more than {options.max_ratio:g} times; see ingest.max_ratio")
    if inflated > options.max_bytes:
        raise SourceError("too-large", f"inflated it is more than ingest.max_bytes = {options.max_bytes:,}")
