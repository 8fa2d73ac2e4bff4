"""Word documents: paragraphs and tables of the body, in order (python-docx)."""

import warnings
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, BinaryIO

from infra.sources.base import Allowance, Parsed, ParseRequest, within
from infra.sources.decoding import clean
from infra.sources.listing import seekable
from memagent.errors import SourceError

_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_OLE = b"\xd0\xcf\x11\xe0"
_RATIO_FROM = 2**24
"""Inflated bytes below which no ratio counts as a bomb: XML compresses well."""


def parse_docx(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the body's text; the title is the one of the core properties.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    import docx

    file = seekable(stream)
    check_archive(file, request, "Word document", ".docx")
    try:
        document = docx.Document(file)  # resolves no entities
        text = "\n".join(_lines(document, request.allowance))
        title = document.core_properties.title or ""
    except (ValueError, KeyError, SyntaxError, zipfile.BadZipFile) as error:  # lxml's errors are SyntaxErrors
        raise SourceError("broken", "it is no Word document, or a damaged one; save it again as .docx") from error
    yield Parsed(clean(text), clean(title), _DOCX)


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


def _lines(document: Any, allowance: Allowance) -> Iterator[str]:
    return within(allowance, _blocks(document.element.body, document, allowance))


def _blocks(element: Any, document: Any, allowance: Allowance) -> Iterator[str]:
    """Yield the paragraphs and table rows of a body or a cell, as python-docx's `iter_inner_content` gives them."""
    from docx.oxml.ns import qn
    from docx.text.paragraph import Paragraph

    table = qn("w:tbl")
    for block in element.iterchildren(qn("w:p"), table):
        if block.tag == table:
            yield from _table_lines(block, document, allowance)
        else:
            yield Paragraph(block, document).text


def _table_lines(table: Any, document: Any, allowance: Allowance) -> Iterator[str]:
    """Yield a table's rows; a cell that is merged over several rows stands in each of them.

    python-docx's own `row.cells` has an object for each column that a cell claims to cover, and looks for the cell
    above through all rows before.
    """
    above: dict[int, str] = {}
    for row in table.tr_lst:
        column = row.grid_before
        local: dict[int, str] = {}
        texts = []
        for cell in row.tc_lst:
            if cell.vMerge == "continue" and column in above:
                texts.append(above[column])
            else:
                lines = within(allowance, _blocks(cell, document, allowance))
                texts.append(" ".join(line for line in lines if line.strip()))
            local[column] = texts[-1]
            column += cell.grid_span
        yield "\t".join(texts)
        above = local


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
