"""Excel workbooks: the values of all sheets, a line a row (openpyxl)."""

import warnings
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, within
from infra.sources.decoding import clean
from infra.sources.docx import check_archive
from infra.sources.opening import seekable
from memagent.errors import SourceError

MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def parse_xlsx(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the workbook's text: each sheet's name, then its rows with tabs between the cells; empty rows are left out.

    Of a formula it has the value that was last computed.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    import openpyxl

    file = seekable(stream)
    check_archive(file, request, "Excel workbook", ".xlsx")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a reader of values does not need: styles, validation
            workbook = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
            text = "\n".join(within(request.allowance, _lines(workbook)))
            title = workbook.properties.title or ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, SyntaxError, zipfile.BadZipFile) as error:
        # openpyxl raises what it stumbles over
        raise SourceError("broken", "it is no Excel workbook, or a damaged one; save it again as .xlsx") from error
    yield Parsed(clean(text), clean(title), MEDIA_TYPE)


def _lines(workbook: Any) -> Iterator[str]:
    several = len(workbook.worksheets) > 1
    for sheet in workbook.worksheets:
        sheet.reset_dimensions()  # a file may claim to have a billion cells
        if several:
            yield f"{sheet.title}\n"
        for row in sheet.iter_rows(values_only=True):
            cells = [_cell(value) for value in row]
            if line := "\t".join(cells).rstrip("\t"):
                yield line
        if several:
            yield ""


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime) and not (value.hour or value.minute or value.second):
        value = value.date()
    if isinstance(value, date):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    return " ".join(str(value).split())
