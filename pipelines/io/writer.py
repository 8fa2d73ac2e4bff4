"""Tables as files: CSV, Excel workbooks, JSON lines and Parquet out, workbooks in.

Rows are streamed: a file of a million rows needs no memory.
"""

import codecs
import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.sources.excel import Cell, Workbook
from infra.sources.office import OfficeArchive
from memagent.errors import UsageError
from memagent.questions import FileRow, check_header

Row = Mapping[str, Any]


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to it at the end; nothing is left after an error.

    Missing folders are made. A pipe or a device is yielded itself.

    Raises UsageError: the file cannot be written.
    """
    if path.parts[:1] and path.parts[0].endswith(":"):  # s3://, as a Path has it
        raise UsageError(f"{path} is no file on this machine: write one here, and copy it there")
    target = path.expanduser()
    if not target.name or target.is_dir():
        raise UsageError(f"{str(path)!r} is a folder: name a file in it")
    aside = target.with_name(f".{target.name}.{token_hex(4)}.part")  # nobody can have put a link there
    try:
        if target.exists() and not target.is_file():
            yield target
            return
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


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _csv_cell(cell: object) -> object:
    """Return a cell with a prefix if a spreadsheet would run it as a formula."""
    if isinstance(cell, Link):
        return cell.address
    return "'" + cell if isinstance(cell, str) and cell[:1] in _FORMULA else cell


def without_prefix(cell: str) -> str:
    """Remove the prefix that CSV files have before formulas."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in _FORMULA else cell


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
_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")
"""Begins what Excel takes for the number of a character."""
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that no workbook can hold."""
_LINKS = 65_530
"""Links of a sheet at most."""


def write_xlsx(names: Sequence[str], rows: Iterable[Sequence[object]], file: IO[bytes]) -> None:
    """Write as many sheets as the rows need, each with a header that stays in view.

    Texts are texts, also those that begin like a formula; what is typed over one in Excel stays text, too. Times are
    written in UTC, and a `Link` as one that can be clicked, as far as a sheet has room for links.
    """
    from lxml.etree import SerialisationError  # type: ignore[import-untyped]
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    waiting, full = iter(rows), True
    try:
        while full:
            sheet = book.create_sheet("answers")
            sheet.freeze_panes = "A2"
            try:
                full = _fill(sheet, names, waiting)
            except BaseException:
                sheet.close()  # ends its file, which would complain of it when it is collected
                raise
        book.save(file)
    except SerialisationError as error:
        raise OSError(f"openpyxl writes it in {gettempdir()} first, which fails: {error}") from error


def _fill(sheet: Any, names: Sequence[str], rows: Iterator[Sequence[object]]) -> bool:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font

    bold, links = Font(bold=True), 0

    def text_cell(text: str) -> Any:
        text = _ESCAPE.sub("_x005F_", _NOT_XML.sub("", text))
        shown = WriteOnlyCell(sheet, text if len(text) <= _CELL else text[: _CELL - 1] + "…")
        shown.data_type, shown.number_format = "s", "@"
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
_DAMAGED = (
    *(LookupError, ValueError, TypeError, OSError, EOFError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""What reading a damaged workbook raises."""


def xlsx_rows(path: Path, needed: Sequence[str], advice: str = "", optional: Collection[str] = ()) -> Iterator[FileRow]:
    """Yield the rows of a workbook by the names in each sheet's first row, as the texts that its cells show.

    Sheets after the first are read if they have the needed columns, too.

    Raises UsageError: it is no workbook, its header lacks one of the `needed` columns (`advice` says what to do), or a
    cell of one of these or the `optional` columns has an error, or a formula that was never computed.
    """
    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > _WORKBOOK:
                raise UsageError(f"{path} is larger than {_WORKBOOK >> 20} MiB unpacked: save it as .csv")
            book = Workbook(OfficeArchive(parts))
            first = book.sheets[0]  # none in an Office file of another kind: an IndexError
            if book.not_read["missing sheet"]:
                raise LookupError
            for sheet in book.sheets:
                rows = book.rows(sheet[1])
                head = next((cells for _, cells in rows if any(cell.text for cell in cells)), ())
                names = {cell.column: cell.text.strip() for cell in head}
                if sheet is first:
                    check_header(path, list(names.values()), needed, advice)
                if set(needed) <= set(names.values()):
                    where = f"{path}," if sheet is first else f"{path}, {sheet[0]},"
                    yield from _sheet_rows(where, names, rows, {*needed, *optional})
    except FileNotFoundError as error:
        raise UsageError(f"no file {path}") from error
    except _DAMAGED as error:
        raise UsageError(f"{path} is no Excel workbook, or a damaged one; save it again as .xlsx") from error


def _sheet_rows(
    where: str, names: Mapping[int, str], rows: Iterable[tuple[int, list[Cell]]], used: Collection[str]
) -> Iterator[FileRow]:
    for number, cells in rows:
        row = FileRow(f"{where} row {number}", dict.fromkeys(filter(None, names.values()), ""))
        for cell in cells:
            if name := names.get(cell.column):
                if cell.fault and name in used:
                    what = f"no value, but an {cell.fault}. Type the value in Excel, and save the file again."
                    raise row.wrong(name, what)
                row.values[name] = cell.text
        if any(row.values.values()):
            yield row
