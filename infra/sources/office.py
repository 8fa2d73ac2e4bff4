"""Rich text and workbooks of office programs, and the check of their archives."""

import warnings
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, within
from infra.sources.decoding import clean
from infra.sources.listing import seekable
from memagent.errors import SourceError

_OLE = b"\xd0\xcf\x11\xe0"
_RATIO_FROM = 2**24
"""Inflated bytes below which no ratio counts as a bomb: XML compresses well."""


def check_archive(file: BinaryIO, request: ParseRequest, kind: str, suffix: str) -> None:
    """Refuse an Office file that is none, or would inflate out of all proportion.

    Args:
        file: at its start, where it is left.
        request: the limits.
        kind: of file, for the message.
        suffix: of such files.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    head = file.read(4)
    file.seek(0)
    if head == _OLE:
        old = suffix[:-1]
        raise SourceError("encrypted", f"it is encrypted or in the old {old} format; save it as a plain {suffix}")
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise SourceError("broken", f"it is no {kind}, or a damaged one; save it again as {suffix}") from error
    # An entry that inflates to more than it declares is cut off and refused by zipfile itself.
    inflated = sum(entry.file_size for entry in entries)
    packed = max(1, sum(entry.compress_size for entry in entries))
    options = request.options
    if inflated > _RATIO_FROM and inflated > packed * options.max_ratio:
        raise SourceError("bomb", f"it inflates more than {options.max_ratio:g} times; see ingest.max_ratio")
    if inflated > options.max_bytes:
        raise SourceError("too-large", f"inflated it is more than ingest.max_bytes = {options.max_bytes:,}")
    file.seek(0)


def parse_rtf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text.

    Raises:
        SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    from striprtf.striprtf import rtf_to_text

    source = stream.read().decode("latin-1")  # letters beyond ASCII are written as escapes
    if not source.lstrip().startswith("{\\rtf"):
        raise SourceError("broken", "it is no rich text; save it again as .rtf")
    try:
        text = rtf_to_text(source, errors="replace")
    except (ValueError, LookupError, IndexError, TypeError) as error:
        raise SourceError("broken", "its marks cannot be read; save it again as .rtf, or as .docx") from error
    request.allowance.check(len(text))
    yield Parsed(clean(text), "", "text/rtf")


_XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


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
            text = "\n".join(within(request.allowance, _sheet_lines(workbook)))
            title = workbook.properties.title or ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, SyntaxError, zipfile.BadZipFile) as error:
        # openpyxl raises what it stumbles over
        raise SourceError("broken", "it is no Excel workbook, or a damaged one; save it again as .xlsx") from error
    yield Parsed(clean(text), clean(title), _XLSX)


def _sheet_lines(workbook: Any) -> Iterator[str]:
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
