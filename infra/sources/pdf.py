"""PDF (pdfium). A page that is a picture is read by OCR, if the extra `ocr` is installed."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

from infra.sources.base import Parsed, ParseRequest, joined_pages, unread, within
from infra.sources.decoding import blank, clean
from infra.sources.pdf_page import Box, placed, read_page
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
_AROUND = 2
"""Points around the words that OCR has found, within which the page's own text has them."""
_TELLING = 3
"""Letters from which on a line is long or tall."""
_TALL = 1.7
"""Height by width from which on a page is no sheet of paper, but the picture of a whole web page, or a receipt."""
_OUTLINED = 1_000
"""Lines and curves of letters that are drawn as outlines: of about a hundred."""
_LETTER_SEGMENTS, _LETTER_HEIGHTS = 6, (3, 40)
"""Of one such letter, or of a line of them: how many at least, and points. Arms and charts have larger pieces."""
_BETWEEN = 1
"""Points between two pieces of one picture, at most."""
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
    read = _Read(document, request.allowance.gets_on)
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
    def __init__(self, document: Any, gets_on: Callable[[], object]) -> None:
        self._document, self._gets_on = document, gets_on
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
                found = _by_ocr(page, self._gets_on) if _ocr_is_there() else _Found([], [], 0)
                self.beside["unreadable line"] += found.unknown
                if len("".join(found.lines).replace(" ", "")) > len("".join(found.printed).replace(" ", "")):
                    own = "\n".join(" ".join(line.split()) for line in text.split("\n"))
                    for words in found.printed:  # they stand in their places among the others
                        own = re.sub(rf"(?<!\S){re.escape(words)}(?!\S)", "", own, count=1)
                    text = "\n".join([*filter(str.strip, own.split("\n")), *found.lines]).strip()
                    self._by_ocr.append(index + 1)
                elif (blank(text) and scanned) or not _ocr_is_there():
                    self._not_read.append(index + 1)
            else:
                self.beside["large picture"] += _large_pictures(page)
            self.beside["unreadable letter"] += len(_UNREADABLE.findall(text))
            yield text

    def warnings(self) -> tuple[str, ...]:
        """Return what a reader should know of the pages so far."""
        said = {
            "read by OCR (compare numbers; no accents, €, ticks): {}": self._by_ocr,
            "part not read: {} (a picture)": self._not_read,
        }
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
    """Count the pictures on which hardly any text of the page stands, as it does on a scan with a text layer."""
    width, height = page.get_size()
    large = [box for box in _pictures(page) if _area(box) >= _LARGE * width * height]
    text = page.get_textpage() if large else None
    return sum(len(text.get_text_bounded(*box)) < _FEW_CHARS for box in large if text)


def _pictures(page: Any) -> list[Box]:
    """Return where the pictures of a page are. Scanners and print drivers cut them into strips, or tiles."""
    import pypdfium2

    boxes = [placed(one) for one in page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE])]
    for left, right, low, high in ((0, 2, 1, 3), (1, 3, 0, 2)):  # what is one above another, then side by side
        pieces, boxes = sorted(boxes, key=lambda box: (round(box[left]), round(box[right]), box[low])), []
        for piece in pieces:
            last = boxes[-1] if boxes else piece
            gaps = abs(last[left] - piece[left]), abs(last[right] - piece[right]), piece[low] - last[high]
            if boxes and max(gaps) <= _BETWEEN:
                (west, south, *_), (*_, east, north) = map(min, last, piece), map(max, last, piece)
                boxes[-1] = west, south, east, north
            else:
                boxes.append(piece)
    return boxes


def _area(box: Box) -> float:
    left, bottom, right, top = box
    return (right - left) * (top - bottom)


def is_picture(page: Any, text: str) -> bool:
    """Whether a page with a text layer `text` is a picture: there is hardly any text, and pictures cover half of it.

    Or its letters are drawn as outlines. Of a page without any text whatever is drawn may be a picture.
    """
    from pypdfium2 import raw

    if len(text) >= _FEW_CHARS:
        return False
    width, height = page.get_size()
    boxes = [one.get_bounds() for one in page.get_objects(max_depth=1)] if blank(text) else _pictures(page)
    if sum(map(_area, boxes)) >= width * height / 2:
        return True
    segments, left, right = 0, width, 0.0
    for one in page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH]):
        box, count = placed(one), raw.FPDFPath_CountSegments(one)
        if count >= _LETTER_SEGMENTS and _LETTER_HEIGHTS[0] <= box[3] - box[1] <= _LETTER_HEIGHTS[1]:
            segments, left, right = segments + count, min(left, box[0]), max(right, box[2])
    return segments > _OUTLINED and right - left > width / 2


@lru_cache(maxsize=1)
def _ocr_is_there() -> bool:
    return find_spec("rapidocr_onnxruntime") is not None


@lru_cache(maxsize=1)
def _ocr() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # type: ignore[import-untyped]

    return RapidOCR(text_score=0, intra_op_num_threads=1, inter_op_num_threads=1)


def _pieces(page: Any) -> Iterator[tuple[Any, float, float]]:
    """Yield the picture of a page (array), a tall one in pieces: OCR takes 2,000 pixels a side and makes more smaller.

    With each, how many pixels are a point, and the points from the page's lower edge to the upper one of the piece.
    They end between lines: at the last blank row of pixels of their lower half, or the one that is nearest to blank.
    """
    width, height = page.get_size()
    scale = _OCR_PIXELS / max(width, height if height <= _TALL * width else _TALL * width, 1)
    begun, end = 0, math.ceil(height * scale)
    while begun < end:
        below = max(0, height - (begun + _OCR_PIXELS) / scale)
        picture = page.render(scale=scale, crop=(0, below, 0, begun / scale), rev_byteorder=False).to_numpy()
        rows = len(picture)
        if below:
            spread = picture[rows // 2 :].std(axis=1).max(axis=1)[::-1]
            rows -= int(spread.argmin())
        yield picture[:rows], scale, height - begun / scale
        begun += rows


def _lines_of_picture(picture: Any, gets_on: Callable[[], object]) -> list[Any]:
    """Return the lines that OCR finds on a picture of a page: corners, words and score of each.

    A page that was scanned upside down or sideways is turned: hardly a line of it can be read, or all are tall.
    """
    import numpy as np

    tries = list[tuple[float, list[Any]]]()
    for quarters in (0, 2, 1, 3):
        gets_on()
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


class _Found(NamedTuple):
    """What OCR has found on a page."""

    lines: list[str]
    printed: list[str]
    """Pieces of these that the page's own text has in the same places, in its words."""
    unknown: int
    """How many lines it cannot read."""


def _by_ocr(page: Any, gets_on: Callable[[], object]) -> _Found:
    """Read a page that is a picture."""
    lines, printed, unknown, text = list[str](), list[str](), 0, page.get_textpage()
    west, south, *_ = page.get_cropbox()
    for piece, scale, height in _pieces(page):
        top = south + height
        found = _lines_of_picture(piece, gets_on)
        known = [one for one in found if one[2] >= _KNOWN]
        rows: list[list[tuple[float, str]]] = []
        middle = 0.0
        for corners, words, _ in sorted(known, key=lambda one: one[0][0][1] + one[0][2][1]):
            high, low = corners[0][1], corners[2][1]
            if not rows or abs((high + low) / 2 - middle) > _SAME_LINE * (low - high):
                rows.append([])
                middle = (high + low) / 2
            left, right = west + corners[0][0] / scale, west + corners[2][0] / scale
            place = left - _AROUND, top - low / scale - _AROUND, right + _AROUND, top - high / scale + _AROUND
            exact = " ".join(text.get_text_bounded(*place).split())
            if len(exact.replace(" ", "")) == len(words.replace(" ", "")):
                printed.append(words := exact)  # of the same letters these are exact
            elif exact and exact.replace(" ", "") in words.replace(" ", ""):
                printed.append(exact)  # which was typed behind words of the picture
            rows[-1].append((left, words))
        lines += [clean(" ".join(words for _, words in sorted(row))) for row in rows]
        unknown += len(found) - len(known)
    return _Found(lines, printed, unknown)
