"""Tables as files: CSV, Excel workbooks, JSON lines and Parquet out, workbooks in.

Rows are streamed: a file of a million rows needs no memory.
"""

import codecs
import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from memagent.errors import UsageError
from memagent.questions import FileRow, check_header

Row = Mapping[str, Any]


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to it at the end; nothing is left after an error.

    Missing folders are made.

    Raises UsageError: the file cannot be written.
    """
    target = path.expanduser()
    if not target.name or target.is_dir():
        raise UsageError(f"{str(path)!r} is a folder: name a file in it")
    aside = target.with_name(f".{target.name}.{token_hex(4)}.part")  # nobody can have put a link there
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        aside.replace(target)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # its folder may be missing, or a file
            aside.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a table as a file."""

    schema: pa.Schema
    """Of Parquet; rows have its names."""
    names: Sequence[str] = ()
    """Columns of CSV and workbooks, whose cells hold one value each; by default those of the schema."""
    cells: Callable[[Row], Iterable[object]] | None = None
    """Gives a row's cells for `names`; by default `flat` of each value."""
    group: int = 10_000
    """Rows of a Parquet row group, which are in memory at once."""

    @property
    def header(self) -> Sequence[str]:
        """The columns of CSV and workbooks."""
        return self.names or self.schema.names

    def flat_rows(self, rows: Iterable[Row]) -> Iterator[list[object]]:
        """Yield the cells of rows."""
        for row in rows:
            yield list(self.cells(row)) if self.cells else [flat(row[name]) for name in self.header]


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to an address. A workbook shows `text`; CSV has the address itself."""

    address: str
    text: str


def flat(value: object) -> object:
    """Return a value as one cell: texts of a list are joined by ``|``; None leaves a cell empty."""
    return "|".join(value) if isinstance(value, list | tuple) else value


def write_file(path: Path, rows: Iterable[Row], kind: str, layout: TableLayout) -> None:
    """Write rows to a file atomically, as a `kind` of `WRITERS`. CSV begins with the mark by which spreadsheets know
    UTF-8.

    Raises UsageError: the file cannot be written.
    """
    with output_file(path) as aside, aside.open("wb") as file:
        if kind == "csv":
            file.write(codecs.BOM_UTF8)
        WRITERS[kind](rows, layout, file)


def _csv_cell(cell: object) -> object:
    """Return a cell with a prefix if a spreadsheet would run it as a formula."""
    if isinstance(cell, Link):
        return cell.address
    return "'" + cell if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def without_prefix(cell: str) -> str:
    """Remove the prefix that CSV files have before formulas."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@") else cell


def _csv(rows: Iterable[Row], layout: TableLayout, file: IO[bytes]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(layout.header)
    writer.writerows(map(_csv_cell, cells) for cells in layout.flat_rows(rows))
    text.detach()  # the file stays open


def _json_lines(rows: Iterable[Row], layout: TableLayout, file: IO[bytes]) -> None:
    file.writelines((json.dumps(row, default=str, ensure_ascii=False) + "\n").encode() for row in rows)


def _parquet(rows: Iterable[Row], layout: TableLayout, file: IO[bytes]) -> None:
    waiting = iter(rows)
    with pq.ParquetWriter(file, layout.schema, compression="zstd") as writer:
        while group := list(islice(waiting, layout.group)):
            writer.write_table(pa.Table.from_pylist(group, schema=layout.schema))


WRITERS: Mapping[str, Callable[[Iterable[Row], TableLayout, IO[bytes]], None]] = {
    "csv": _csv,
    "xlsx": lambda rows, layout, file: write_xlsx(layout.header, layout.flat_rows(rows), file),
    "jsonl": _json_lines,
    "parquet": _parquet,
}
"""What writes rows to an open file, by format."""
_ROWS = 1_048_576
"""Of a sheet at most, its header among them."""
_CELL = 32_767
"""Characters of a cell at most."""
_LINKS = 65_530
"""Links of a sheet at most."""


def write_xlsx(names: Sequence[str], rows: Iterable[Sequence[object]], file: IO[bytes]) -> None:
    """Write as many sheets as the rows need, each with a header that stays in view.

    Texts are texts, also those that begin like a formula. Times are written in UTC, and a `Link` as one that can be
    clicked, as far as a sheet has room for links.
    """
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    waiting, full = iter(rows), True
    while full:
        sheet = book.create_sheet("answers")
        sheet.freeze_panes = "A2"
        try:
            full = _fill(sheet, names, waiting)
        except BaseException:
            sheet.close()  # ends its file, which would complain of it when it is collected
            raise
    book.save(file)


def _fill(sheet: Any, names: Sequence[str], rows: Iterator[Sequence[object]]) -> bool:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
    from openpyxl.styles import Font

    bold, links = Font(bold=True), 0

    def text_cell(text: str) -> Any:
        text = ILLEGAL_CHARACTERS_RE.sub("", text)
        shown = WriteOnlyCell(sheet, text if len(text) <= _CELL else text[: _CELL - 1] + "…")
        shown.data_type = "s"
        return shown

    def cell(value: object) -> Any:
        nonlocal links
        if isinstance(value, datetime):
            return value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, Link):
            links += 1
            shown = text_cell(value.text if links <= _LINKS else value.address)
            if links <= _LINKS:
                shown.hyperlink = value.address
            return shown
        return text_cell(value) if isinstance(value, str) else value

    head = [text_cell(name) for name in names]
    for shown in head:
        shown.font = bold
    sheet.append(head)
    count = 0
    for row in islice(rows, _ROWS - 1):
        sheet.append([cell(value) for value in row])
        count += 1
    return count == _ROWS - 1


_WORKBOOK = 2**28
"""Bytes of a workbook that is read, unpacked."""


def xlsx_rows(path: Path, needed: Sequence[str], advice: str = "") -> Iterator[FileRow]:
    """Yield the rows of a workbook by the names in each sheet's first row, as texts.

    Sheets after the first are read if they have the needed columns, too.

    Raises UsageError: it is no workbook, or its header lacks one of the `needed` columns (`advice` says what to do).
    """
    from openpyxl import load_workbook

    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > _WORKBOOK:
                raise UsageError(f"{path} is larger than {_WORKBOOK >> 20} MiB unpacked: save it as .csv")
        book = load_workbook(path, read_only=True, data_only=True)
        sheets = [(sheet.title, *_opened(sheet)) for sheet in book.worksheets]
        names = sheets[0][1]
    except FileNotFoundError as error:
        raise UsageError(f"no file {path}") from error
    except (ValueError, KeyError, IndexError, TypeError, OSError, SyntaxError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no Excel workbook, or a damaged one; save it again as .xlsx") from error
    try:
        check_header(path, names, needed, advice)
        for index, (title, head, rows) in enumerate(sheets):
            if set(needed) <= set(head):
                yield from _sheet_rows(f"{path}, {title}," if index else f"{path},", head, rows)
    finally:
        book.close()


def _opened(sheet: Any) -> tuple[list[str], Iterator[tuple[object, ...]]]:
    """Return a sheet's header, and its rows after it."""
    sheet.reset_dimensions()
    rows = sheet.iter_rows(values_only=True)
    return [str(name or "").strip() for name in next(rows, ())], rows


def _sheet_rows(where: str, names: Sequence[str], rows: Iterable[tuple[object, ...]]) -> Iterator[FileRow]:
    for number, row in enumerate(rows, 2):
        values = {name: "" if value is None else str(value) for name, value in zip(names, row, strict=False) if name}
        if any(values.values()):
            yield FileRow(f"{where} row {number}", dict.fromkeys(filter(None, names), "") | values)
