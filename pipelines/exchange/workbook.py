"""Tables as Excel workbooks, in and out (openpyxl). Rows are streamed: a workbook of a million rows needs no memory."""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from memagent.errors import UsageError
from memagent.row_files import FileRow

_ROWS = 1_048_576
"""Of a sheet at most, its header among them."""
_CELL = 32_767
"""Characters of a cell at most."""


def write_xlsx(names: Sequence[str], rows: Iterable[Sequence[object]], file: IO[bytes]) -> None:
    """Write a sheet with a header that stays in view. Texts are texts, also those that begin like a formula.

    Raises:
        UsageError: a sheet cannot hold so many rows.
    """
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    sheet.freeze_panes = "A2"

    def cell(value: object) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).replace(tzinfo=None)
        if not isinstance(value, str):
            return value
        text = ILLEGAL_CHARACTERS_RE.sub("", value)
        shown = WriteOnlyCell(sheet, text if len(text) <= _CELL else text[: _CELL - 1] + "…")
        shown.data_type = "s"
        return shown

    try:
        sheet.append(list(names))
        for number, row in enumerate(rows, 2):
            if number > _ROWS:
                raise UsageError(f"an Excel sheet has {_ROWS:,} rows at most: use --where, --limit, or csv or parquet")
            sheet.append([cell(value) for value in row])
    except BaseException:
        sheet.close()  # ends its file, which would complain of it when it is collected
        raise
    book.save(file)


def xlsx_rows(path: Path, needed: Sequence[str], advice: str = "") -> Iterator[FileRow]:
    """Yield the rows of a workbook's first sheet by the names in its first row, as texts.

    Raises:
        UsageError: it is no workbook, or its header lacks one of the `needed` columns (`advice` says what to do).
    """
    from openpyxl import load_workbook

    try:
        book = load_workbook(path, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()
        rows = sheet.iter_rows(values_only=True)
        names = [str(name or "").strip() for name in next(rows, ())]
    except FileNotFoundError as error:
        raise UsageError(f"no file {path}") from error
    except (ValueError, KeyError, IndexError, TypeError, OSError, SyntaxError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no Excel workbook, or a damaged one; save it again as .xlsx") from error
    if missing := [name for name in needed if name not in names]:
        raise UsageError(f"{path}: the header has no column {missing[0]!r}{advice}")
    try:
        for number, row in enumerate(rows, 2):
            values = {
                name: "" if value is None else str(value) for name, value in zip(names, row, strict=False) if name
            }
            if any(values.values()):
                yield FileRow(f"{path}, row {number}", dict.fromkeys(filter(None, names), "") | values)
    finally:
        book.close()
