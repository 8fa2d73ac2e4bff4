"""PDF (pdfium). A page that is a picture is read by OCR, if the extra `ocr` is installed."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, joined_pages, unread, within
from infra.sources.decoding import blank, clean
from infra.sources.pdf_page import read_page
from memagent.errors import SourceError

_PASSWORD_ERROR = 4
_NOTICE_CHARS = 2_000
"""Characters below which the page of an XFA form is what viewers show that do not know the format."""
_FEW_CHARS = 100
"""Characters that a scanner or a stamp may have put on a page that is a picture."""
_OCR_PIXELS = 2_000
"""Of the longer side of a page that is read by OCR: 170 to the inch of A4."""
_KNOWN, _UPRIGHT = 0.5, 0.75
"""Score from which on OCR has read a line, and their mean above which a page is upright (measured: 0.85; else 0.6)."""
_TELLING = 3
"""Letters from which on a line is long or tall."""
_LARGE = 0.1
"""Share of a page from which on a picture beside its text may have words."""
_UNREADABLE = re.compile("[\x01-\x08\x0e-\x1f\x7f\ue000-\uf8ff\ufffd]")
"""What stands for a letter of a font that does not say which one it is."""
_SAME_LINE = 0.5
"""Share of a line's height by which the middles of two words on it may differ."""


def parse_pdf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the pages' text, an empty line between pages; the title is the metadata's.

    Raises SourceError: ``encrypted``, ``broken``, ``no-text``, ``bomb``, ``too-large``.
    """
    import pypdfium2

    data = stream.read()
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD_ERROR:
            raise SourceError("encrypted", "it asks for a password; save it without one") from error
        raise SourceError("broken", "it is no PDF, or a damaged one; export it again") from error
    document.init_forms()  # values of which the file has no picture
    read = _Read(document)
    try:
        text, starts = joined_pages(list(within(request.allowance, read.pages())))
        title = clean(document.get_metadata_dict().get("Title") or "")
        read.beside["attachment"] += document.count_attachments()
        form = document.get_formtype()
    finally:
        document.close()
    if form == pypdfium2.raw.FORMTYPE_XFA_FULL and len(text) < _NOTICE_CHARS:
        raise SourceError("no-text", "it is an XFA form whose page holds only a notice; print it to a new PDF")
    if blank(text):
        how = "OCR found none either" if _ocr_is_there() else "pip install 'memagent[ocr]', or run OCR on it first"
        raise SourceError("no-text", f"its pages have no text, only images; {how}")
    yield Parsed(text, title, "application/pdf", page_starts=starts, warnings=(*read.warnings(), *unread(read.beside)))


class _Read:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._by_ocr: list[int] = []
        self._not_read: list[int] = []
        self.beside = Counter[str]()
        """What is not in the text of the pages so far."""

    def pages(self) -> Iterator[str]:
        for index in range(len(self._document)):
            text, beside = read_page(self._document, index)
            self.beside.update(beside)
            page = self._document[index]
            scanned = is_picture(page, text)
            if scanned or (blank(text) and next(page.get_objects(max_depth=1), None)):  # its words may be curves
                found, unknown = _by_ocr(page) if _ocr_is_there() else ("", 0)
                self.beside["unreadable line"] += unknown
                if len(found) > len(text):
                    text = f"{text}\n{found}".strip()  # of the same words those of the layer are exact
                    self._by_ocr.append(index + 1)
                elif (blank(text) and scanned) or not _ocr_is_there():
                    self._not_read.append(index + 1)
            else:
                self.beside["large picture"] += _large_pictures(page)
            self.beside["unreadable letter"] += len(_UNREADABLE.findall(text))
            yield text

    def warnings(self) -> tuple[str, ...]:
        """Return what a reader should know of the pages so far."""
        said = {"read by OCR (no accents, no €): {}": self._by_ocr, "part not read: {} (a picture)": self._not_read}
        return tuple(words.format(_ranges(numbers)) for words, numbers in said.items() if numbers)


def _ranges(numbers: list[int]) -> str:
    """Return page numbers in order as people write them: ``pages 1, 3-5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    written = ", ".join("-".join(map(str, run)) for run in runs)
    return f"page{'s' if len(numbers) > 1 else ''} {written}"


def _large_pictures(page: Any) -> int:
    """Count the pictures on which no text of the page stands, as it does on a scan with a text layer."""
    import pypdfium2

    width, height = page.get_size()
    found = (one.get_bounds() for one in page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE]))
    large = [box for box in found if (box[2] - box[0]) * (box[3] - box[1]) >= _LARGE * width * height]
    if not large:
        return 0
    text = page.get_textpage()
    return sum(blank(text.get_text_bounded(*box)) for box in large)


def is_picture(page: Any, text: str) -> bool:
    """Whether a page with a text layer `text` is a picture: there is hardly any text, and pictures cover half of it.

    A scanner may have cut a page into strips. Of a page without any text whatever is drawn may be a picture.
    """
    import pypdfium2

    if len(text) >= _FEW_CHARS:
        return False
    width, height = page.get_size()
    some = {"max_depth": 1} if blank(text) else {"filter": [pypdfium2.raw.FPDF_PAGEOBJ_IMAGE]}
    pictures = (one.get_bounds() for one in page.get_objects(**some))
    covered = sum((right - left) * (top - bottom) for left, bottom, right, top in pictures)
    return bool(covered >= width * height / 2)


@lru_cache(maxsize=1)
def _ocr_is_there() -> bool:
    return find_spec("rapidocr_onnxruntime") is not None


@lru_cache(maxsize=1)
def _ocr() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # type: ignore[import-untyped]

    return RapidOCR(text_score=0, intra_op_num_threads=1, inter_op_num_threads=1)


def _lines_of_picture(page: Any) -> list[Any]:
    """Return the lines that OCR finds on a page: corners, words and score of each.

    A page that was scanned upside down or sideways is turned: hardly a line of it can be read, or all are tall.
    """
    import numpy as np

    picture = page.render(scale=_OCR_PIXELS / max(*page.get_size(), 1), rev_byteorder=False).to_numpy()
    tries = list[tuple[float, list[Any]]]()
    for quarters in (0, 2, 1, 3):
        # The classifier of lines that are upside down would turn some that are not.
        found, _ = _ocr()(np.ascontiguousarray(np.rot90(picture, quarters)), use_cls=False)
        telling = [line for line in found or () if len(line[1]) >= _TELLING]
        if not quarters and not telling:
            return found or []
        wide = sum(score for (left, _, right, _), _, score in telling if right[0] - left[0] >= right[1] - left[1])
        tries.append((wide / max(len(telling), 1), found or []))
        if tries[-1][0] > _UPRIGHT:
            break
    return max(tries, key=itemgetter(0))[1]


def _by_ocr(page: Any) -> tuple[str, int]:
    """Return the text of a picture of a page, line by line, and how many lines of it cannot be read."""
    found = _lines_of_picture(page)
    known = [one for one in found if one[2] >= _KNOWN]
    lines: list[list[tuple[float, str]]] = []
    middle = 0.0
    for corners, words, _ in sorted(known, key=lambda one: one[0][0][1] + one[0][2][1]):
        top, bottom = corners[0][1], corners[2][1]
        if not lines or abs((top + bottom) / 2 - middle) > _SAME_LINE * (bottom - top):
            lines.append([])
            middle = (top + bottom) / 2
        lines[-1].append((corners[0][0], words))
    text = "\n".join(" ".join(words for _, words in sorted(line)) for line in lines)
    return clean(text), len(found) - len(known)
