"""PDF with a text layer (pdfium)."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, within
from infra.sources.decoding import blank, clean
from memagent.errors import SourceError

_SOFT_HYPHEN = re.compile("[\x02\ufffe]")
"""What pdfium writes for a hyphen at a line's end."""
_PASSWORD_ERROR = 4
_BETWEEN_PAGES = "\n\n"
_NOTICE_CHARS = 2_000
"""Characters below which the page of an XFA form is what viewers show that do not know the format."""


def parse_pdf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the pages' text, an empty line between pages; the title is the metadata's.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``no-text``, ``bomb``, ``too-large``.
    """
    import pypdfium2

    data = stream.read()
    if not data:
        raise SourceError("empty", "the file has no bytes")
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD_ERROR:
            raise SourceError("encrypted", "it asks for a password; save it without one") from error
        raise SourceError("broken", "it is no PDF, or a damaged one; export it again") from error
    try:
        pages = list(within(request.allowance, (page_text(document, i) for i in range(len(document)))))
        title = clean(document.get_metadata_dict().get("Title") or "")
        form = document.get_formtype()
    finally:
        document.close()
    text = _BETWEEN_PAGES.join(pages)
    if form == pypdfium2.raw.FORMTYPE_XFA_FULL and len(text) < _NOTICE_CHARS:
        raise SourceError("no-text", "it is an XFA form whose page holds only a notice; print it to a new PDF")
    if blank(text):
        raise SourceError("no-text", "its pages have no text, only images; run OCR on it first")
    yield Parsed(text, title, "application/pdf", page_starts=page_starts(pages))


def page_starts(pages: Sequence[str]) -> list[int]:
    """Return the offset of each page in the document's text."""
    lengths = (len(page) + len(_BETWEEN_PAGES) for page in pages[:-1])
    return list(accumulate(lengths, initial=0))


def page_text(document: Any, index: int) -> str:
    """Return the text of a page, as it stands in the document's text. Raises SourceError: ``broken``."""
    import pypdfium2

    try:
        page = document[index]
        # Else the values of forms and free-text notes are no text of the page.
        pypdfium2.raw.FPDFPage_Flatten(page, pypdfium2.raw.FLAT_NORMALDISPLAY)
        page.close()
        page = document[index]
        text: str = page.get_textpage().get_text_range()
        page.close()
    except pypdfium2.PdfiumError as error:
        raise SourceError("broken", f"page {index + 1} cannot be read; export the file again") from error
    return clean(_SOFT_HYPHEN.sub("-", text)).strip("\n")
