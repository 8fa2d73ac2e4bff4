"""The text of a page of a PDF (pdfium), with small numbers above the line, struck words, and values of forms."""

import ctypes
import math
import re
from bisect import bisect, bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, groupby, pairwise, takewhile
from operator import itemgetter
from typing import Any, Literal, NamedTuple
from unicodedata import bidirectional, category

from infra.sources.decoding import clean, glyphs
from memagent.errors import SourceError

_SOFT_HYPHEN = re.compile("[\x02\ufffe]")
"""What pdfium writes for a hyphen at a line's end."""
_THIN, _THICK, _BESIDE = 3, 15, 12
"""Points that a line through words is thick at most, through large ones, and that it may go on beside them."""
_STROKE = 0.15
"""Share of the size of large letters that a line through them is thick at most."""
_BETWEEN = 1
"""Points between two pieces of one line, at most."""
_WHITE = 250
_LOOKED_AT = 1_000
"""Characters that say how a page is turned."""
_UNSEEN = 2 | 32
"""Flags of what readers are not shown (PDF 32000-1, table 165: hidden, no view)."""
_TOUCH, _NEAR, _RIGHT = 4, 10, 30
"""Points between a field and words that touch it, and the most to words before and behind it."""
_FONT_BYTES = 200
_SUBSET = re.compile(r"^[A-Z]{6}\+|-?(?:Regular|MT)$")
"""Of a font's name: the letters before that of a part of it, and its kind behind it."""
_PRIVATE = re.compile("[\uf000-\uf0ff]")
_SIGN_FONT = re.compile("wingdings|webdings|(?:open)?symbol", re.I)
_LACKED = re.compile("[\x80-\u058f\u1e00-\u2bff]")
"""What a font of letters may lack and another one has, beside signs: letters of other languages, numerals, quotes."""
_SIGNS = ("So", "Sc", "Sm", "No")
"""Categories of boxes, ticks, currencies, arrows, numbers in circles."""
_WITH_OTHERS = ("Mn", "Mc", "Me", "Sk", "Cf")
"""Categories of what stands on or beside another character: accents, selectors of a variant."""
_APART = 0.1
"""Share of their size by which two letters are apart that have a blank between them, or stand on each other."""
_OVER = 0.3
"""Share of its size by which a letter reaches over the one beside it, at most; slanted ones do."""
_PIECE, _SMALL, _BELOW, _NEXT = 40, 0.9, 0.7, 0.5
"""Characters of a line of small numbers, at most; their size, how far above or below a letter they stand, and how far
behind it, in its size.
"""
_MARK = re.compile(r"[(\[]?[-−–+]?(?:\d{1,3}|[^\W\d_]{1,2})(?:[-−–+,;/]?\w{1,2})?[-−–+]?[)\]*]?|[*†‡§¶]{1,3}")
"""A small number: what stands above or below a letter, and is no amount, date or word."""
_ABOVE = 0.5
"""Share of the size of letters that others are above them on one line, as small numbers are."""
_TEXT_LINE = re.compile("[^\r\n\x02\ufffe]+[\x02\ufffe]?")
_POWER = re.compile(r"[-−–+]?\d")
_NUMBER = re.compile(r"[\d)][\d.,−–-]*\d")


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points from a page's lower left corner."""


class _Line(NamedTuple):
    """A level line on a page, in points from its lower left corner."""

    height: float
    left: float
    right: float
    thick: float = 0


class _Char(NamedTuple):
    """A character on a page, in points from its lower left corner, and its place in the page's text."""

    size: float  # none: it stands upright or on its head
    line: float
    low: float
    high: float
    left: float
    right: float
    place: int

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


_NO_CHAR = _Char(0, 0, 0, 0, 0, 0, 0)


class _Field(NamedTuple):
    """A field of a form, in points from the page's lower left corner, and what the file has of its value."""

    left: float
    bottom: float
    right: float
    top: float
    value: str
    kind: Literal["box", "list", "text"]


class _Chars:
    """The characters of a page, by number; pdfium and Python count those of a text differently."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.text: str = page.get_text_range()
        self._wide = [place for place, char in enumerate(self.text) if char > "\uffff"]  # two places each, for pdfium
        self._places = [place + index for index, place in enumerate(self._wide)]
        self._seen: dict[int, _Char] = {}

    def __getitem__(self, number: int) -> _Char:
        from pypdfium2 import raw

        if number not in self._seen:
            x, y, scale = ctypes.c_double(), ctypes.c_double(), raw.FS_MATRIX()
            raw.FPDFText_GetCharOrigin(self.page, number, x, y)
            raw.FPDFText_GetMatrix(self.page, number, scale)
            size = raw.FPDFText_GetFontSize(self.page, number) * math.hypot(scale.c, scale.d) * (scale.a > abs(scale.b))
            left, low, right, high = self.page.get_charbox(number)
            place = raw.FPDFText_GetTextIndexFromCharIndex(self.page, number)
            place -= bisect_left(self._places, place)
            self._seen[number] = _Char(size, line=y.value, low=low, high=high, left=left, right=right, place=place)
        return self._seen[number]

    def _number(self, place: int) -> int:
        from pypdfium2 import raw

        return int(raw.FPDFText_GetCharIndexFromTextIndex(self.page, place + bisect_left(self._wide, place)))

    def at(self, place: int) -> _Char:
        """Return the character at a place in the text."""
        return self[self._number(place)]

    def sign(self, place: int) -> str:
        """Return what a font of signs shows for a private letter at a place; of other fonts, the letter."""
        from pypdfium2 import raw

        name, flags = ctypes.create_string_buffer(_FONT_BYTES), ctypes.c_int()
        raw.FPDFText_GetFontInfo(self.page, self._number(place), name, _FONT_BYTES, flags)
        font = _SUBSET.sub("", name.value.decode("utf-8", "replace"))
        return glyphs(self.text[place], font) if _SIGN_FONT.match(font) else self.text[place]

    def is_made(self, place: int) -> bool:
        """Whether pdfium has written what is at a place, such as a blank between words."""
        from pypdfium2 import raw

        return bool(raw.FPDFText_IsGenerated(self.page, self._number(place)) == 1)

    def gap(self, was: int, one: int) -> float:
        """Return the room between the characters at two places by their widths in type, in sizes of the second."""
        end, begun = (self.page.get_charbox(self._number(place), loose=True) for place in (was, one))
        return float(begun[0] - end[2]) / (self.at(one).size or 1)

    def over(self, line: _Line) -> list[_Char]:
        """Return the characters that a line goes through, or that it stands over or under."""
        first, last = (self.page.get_index(x, line.height, 2 * _BESIDE, _BESIDE) for x in (line.left, line.right))
        if first is None or last is None:
            return []
        if first > last or any(self.text[self[end].place].isspace() for end in (first, last)):
            first, last = 0, self.page.count_chars() - 1  # one of them may be a small number, drawn last
        there = map(self.__getitem__, range(first, last + 1))
        level = (one for one in there if line.left <= one.middle <= line.right and one.place >= 0)
        return [one for one in level if abs(line.height - one.line) < one.size]


class PageText(NamedTuple):
    """The text of a page, as it stands in the document's text, and what is not in it, such as comments."""

    text: str
    not_read: Counter[str]


def read_page(document: Any, index: int) -> PageText:
    """Return what a page of a document (pdfium) says; its notes become part of what is drawn on it.

    Raises SourceError: ``broken``.
    """
    import pypdfium2
    from pypdfium2 import raw

    try:
        page = _upright(document, index)
        beside, lines, fields = _beside(page), list(_lines(page)), list(_fields(document, page))
        printed = Counter(_signs(page.get_textpage()) if fields else ())
        # Else the values of forms and free-text notes are no text of the page.
        raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
        page.close()
        page = document[index]
        chars = _Chars(page.get_textpage())
        text = _with_marks(chars, lines, *_filled_in(chars, fields, printed))
        page.close()
    except pypdfium2.PdfiumError as error:
        raise SourceError("broken", f"page {index + 1} cannot be read; export the file again") from error
    return PageText(clean(_SOFT_HYPHEN.sub("-", text)).strip("\n"), beside)


def _upright(document: Any, index: int) -> Any:
    """Return a page; one that is shown turned is turned in fact, unless its words are level as they are."""
    from pypdfium2 import PdfMatrix, raw

    page = document[index]
    if not (quarters := page.get_rotation() // 90):
        return page
    if not _is_level(page.get_textpage()):
        turn = PdfMatrix().rotate(90 * quarters)
        left, bottom, right, top = turn.on_rect(*page.get_cropbox())
        turn = turn.translate(-left, -bottom)
        raw.FPDFPage_TransFormWithClip(page, turn, None)
        raw.FPDFPage_TransformAnnots(page, *turn.get())
        for note, place, corners in _strikes(page):  # which pdfium leaves as they are
            turned = [side for corner in corners for side in turn.on_point(*corner)]
            raw.FPDFAnnot_SetAttachmentPoints(note, place, raw.FS_QUADPOINTSF(*turned))
        page.set_mediabox(0, 0, right - left, top - bottom)
        page.set_cropbox(0, 0, right - left, top - bottom)
    page.set_rotation(0)
    page.close()
    return document[index]


def _is_level(page: Any) -> bool:
    """Whether the first words of a page are level as they are; one without words is not."""
    chars = _Chars(page)
    sizes = [chars[number].size for number in range(min(page.count_chars(), _LOOKED_AT))]
    return bool(sizes) and 2 * sum(size > 0 for size in sizes) >= len(sizes)


def _with_marks(chars: _Chars, lines: Iterable[_Line], values: list[tuple[int, str]], moved: set[int]) -> str:
    """Return the text of a page, ``^`` before small numbers above the line, ``~~`` around struck words.

    Values of forms stand where their fields are; at the places `moved`, pdfium has them once more.
    """
    kept = ["" if place in moved else sign for place, sign in enumerate([*chars.text, ""])]
    for place in {found.start() for found in _PRIVATE.finditer(chars.text)} - moved:
        kept[place] = chars.sign(place)
    for place in moved - {one + 1 for one in moved}:
        end = next(one for one in count(place) if one not in moved)
        inside = place > 0 and end < len(chars.text)
        kept[place] = " " if inside and abs(chars.at(place - 1).line - chars.at(end).line) < _TOUCH else "\n"
    filled = {place for place, _ in values}
    order = _with_small_numbers(chars, _visual_order(chars, filled), filled | moved)
    struck, small = _struck(chars, lines) - moved, set[int]()
    for was, one in pairwise(order[:-1]):
        behind = was in struck and one not in struck and chars.text[one].strip()
        most = chars.at(was).size * (1 / _SMALL if was in small else _SMALL)
        if behind and chars.at(one).size < most:  # the line goes under it
            small.add(one)
            struck.add(one)
    stretches = groupby((place for place in order[:-1] if chars.text[place].strip()), key=struck.__contains__)
    for first, *others in (list(places) for is_struck, places in stretches if is_struck):
        kept[first] = f"~~{kept[first]}"
        kept[[first, *others][-1]] += "~~"
    for place, mark in [*(one for one in _raised(chars) if one[0] not in moved), *values]:
        kept[place] = mark + kept[place]
    for was, one in pairwise(order[:-1]):
        blanks = chars.text[was].isspace() + chars.text[one].isspace()
        if one == was + 1 or blanks == 1:
            continue
        last, above = chars.at(was), chars.at(one).line - chars.at(was).line
        if blanks == 2:
            kept[one] = ""
        elif above > _APART * last.size and chars.text[was].isdigit() and _POWER.match(chars.text, one):
            kept[one] = f"^{kept[one]}"
        elif (
            chars.gap(was, one) > _APART
            or (chars.text[one - 1 : one] in ("\r", "\n") and chars.at(one).size > last.size)
            or (abs(above) > _APART * last.size and chars.text[one].isdigit() and not chars.text[was].isalpha())
        ):
            kept[one] = f" {kept[one]}"  # small numbers beside the line are no digits of the number before them
    return "".join(kept[place] for place in order)


def _visual_order(chars: _Chars, filled: set[int]) -> list[int]:
    """Return the places of the text in the order in which they stand on their lines.

    LibreOffice draws what the font of its words lacks after the rest of the line. Lines from right to left, on their
    head, with fields (`filled`), or with values over other characters, are left as they are.
    """
    kinds = [category(char) for char in chars.text]
    other = [
        kind in _SIGNS or (_LACKED.match(char) is not None and kind not in _WITH_OTHERS)
        for char, kind in zip(chars.text, kinds, strict=True)
    ]
    order = list(range(len(chars.text) + 1))
    for line in reversed(list(_TEXT_LINE.finditer(chars.text))):
        places = range(*line.span())
        if not any(other[line.start() : line.end()]) or any(bidirectional(char) in ("R", "AL") for char in line[0]):
            continue
        drawn = [place for place in places if not chars.text[place].isspace() and kinds[place] not in _WITH_OTHERS]
        steps = [(was, one) for was, one in pairwise(drawn) if other[was] or other[one]]
        if not any(chars.at(one).left < chars.at(was).left for was, one in steps):
            continue
        sizes, levels = [chars.at(place).size for place in drawn], [chars.at(place).line for place in drawn]
        if (
            max(levels) - min(levels) < _ABOVE * max(sizes)
            and all(sizes)
            and not filled.intersection((*places, line.end()))
            and not _overlap(chars, drawn)
        ):
            real = [place for place in places if not chars.is_made(place)]
            order[line.start() : line.end()] = _with_blanks(chars, sorted(real, key=lambda place: chars.at(place).left))
    return order


def _with_small_numbers(chars: _Chars, order: list[int], filled: set[int]) -> list[int]:
    """Return an order in which small numbers stand behind the letters that they are beside.

    Browsers draw last what a style has moved, and so have it on lines of its own, or at the end of one.
    """
    lines, short, before = list[tuple[float, range]](), list[range](), -1
    blanks, joined = set[int](), dict[int, int]()
    for found in _TEXT_LINE.finditer(chars.text):
        line = range(found.start(), found.start() + len(found[0].rstrip()))
        if not line or filled.intersection(line) or not chars.at(line[0]).size:
            before = -1
            continue
        begun = next(place for place in line if not chars.text[place].isspace())
        if before >= 0 and _goes_on(chars, before, begun):
            blanks.update(range(before + 1, begun))
            joined[line.start] = before
        before = line[-1]
        short += [line] if len(line) <= _PIECE else []
        end, most = line.stop, _SMALL * chars.at(line[0]).size
        while (blank := chars.text.rfind(" ", begun, end)) > begun and 0 < chars.at(blank + 1).size < most:
            end = blank
        if end < line.stop and chars.at(end + 1).left < chars.at(end - 1).left:
            short.append(range(end + 1, line.stop))
            line = range(line.start, end)
        lines.append((chars.at(line[0]).line, line))
    lines.sort(key=itemgetter(0))
    gone, behind = set[int](), defaultdict[int, list[int]](list)
    rank = {place: index for index, place in enumerate(order)}
    for span in sorted(short, key=lambda span: chars.at(span[0]).line):
        for piece, end in _apart(chars, span):
            is_mark = gone.isdisjoint(piece) and _MARK.fullmatch(chars.text, piece.start, piece.stop)
            spot = _before(chars, lines, piece) if is_mark else None
            if spot is not None:
                behind[spot] += sorted(rank.keys() & piece, key=rank.__getitem__)
                gone.update(piece)
                blanks.update(range(piece.stop, end))
        if all(place in gone or place in blanks for place in span):
            after = [*takewhile(lambda place: chars.text[place : place + 1].isspace(), count(span.stop))]
            if span.start not in joined or _is_beside(chars, joined[span.start], span.stop + len(after)):
                blanks.update(after)
            blanks.update([span.start - 1] if chars.text.endswith(" ", 0, span.start) else ())

    def with_small(place: int) -> Iterator[int]:
        yield place
        for one in behind[place]:  # which may have a smaller one behind it
            yield from with_small(one)

    return [place for was in order if was not in gone for place in with_small(was) if place not in blanks]


def _goes_on(chars: _Chars, was: int, one: int) -> bool:
    """Whether pdfium has broken a line at a small number: between the characters at two places."""
    end, begun = chars.at(was), chars.at(one)
    small, large = sorted((end.size, begun.size))
    is_level = 0 < small < _SMALL * large and abs(end.line - begun.line) < _BELOW * large
    return is_level and -_OVER * large < begun.left - end.right < _NEXT * large


def _is_beside(chars: _Chars, was: int, one: int) -> bool:
    """Whether the characters at two places are on one line, where a small number stands between them."""
    return one < len(chars.text) and abs(chars.at(was).line - chars.at(one).line) < _BELOW * chars.at(was).size


def _apart(chars: _Chars, span: range) -> Iterator[tuple[range, int]]:
    """Yield the parts of a line that stand apart, and where the blanks behind each end."""
    begun, drawn = span.start, [place for place in span if not chars.text[place].isspace()]
    for was, one in pairwise([*drawn, -1]):
        if one < 0 or abs(chars.at(one).left - chars.at(was).right) > chars.at(was).size:
            yield range(begun, was + 1), one if one >= 0 else span.stop
            begun = one


def _before(chars: _Chars, lines: list[tuple[float, range]], piece: range) -> int | None:
    """Return the place behind which a small number stands: a letter, or what is before a line; None: there is none."""
    first, last = chars.at(piece[0]), chars.at(piece[-1])
    leads, reach, size = None, 2 * first.size, max(chars.at(place).size for place in piece)
    beside = lines[bisect(lines, first.line - reach, key=itemgetter(0)) :]
    for _, line in takewhile(lambda one: one[0] < first.line + reach, beside):
        along = sorted((chars.at(place).left, place) for place in line if not chars.text[place].isspace())
        index = bisect(along, first.left, key=lambda one: chars.at(one[1]).middle) - 1
        before = [chars.at(place) for _, place in along[max(index - 1, 0) : index + 1]]  # it may follow another one
        large = max(before, key=lambda one: one.size, default=_NO_CHAR)
        slack, room = _OVER * first.size, [*along, (math.inf, -1)][index + 1][0]
        begins = chars.at(along[0][1])
        if index < 0 and line.start and size < _SMALL * begins.size and first.line > begins.line + _APART * begins.size:
            leads = line.start - 1 if 0 < room - last.left < begins.size else leads
        shift = abs(first.line - large.line)
        is_small = size < _SMALL * large.size and _APART * large.size < shift < _BELOW * large.size
        if is_small and -slack < first.left - before[-1].right < _NEXT * large.size and last.right < room + slack:
            return along[index][1]
    return leads


def _with_blanks(chars: _Chars, places: list[int]) -> Iterator[int]:
    """Yield places, and those of the blanks of pdfium whose neighbours are still the same."""
    for was, one in pairwise([*places, -1]):
        yield was
        if one == was + 2 and chars.is_made(was + 1):
            yield was + 1


def _overlap(chars: _Chars, drawn: list[int]) -> bool:
    """Whether characters stand on others that were not drawn next to them, as on the line of a form."""
    number = {place: index for index, place in enumerate(drawn)}
    level = pairwise(sorted(drawn, key=lambda place: chars.at(place).left))
    return any(chars.gap(was, one) < -_OVER for was, one in level if number[one] != number[was] + 1)


def _raised(chars: _Chars) -> Iterator[tuple[int, str]]:
    """Yield where small numbers begin that stand above the line, and where digits go on behind them."""
    for number in _NUMBER.finditer(chars.text):
        looks = [chars.at(place) for place in range(*number.span())]
        normal = max(looks, key=lambda look: look.size)
        raised = [look.size < normal.size and look.line - normal.line > 0.15 * normal.size for look in looks]
        for place, (was, above) in enumerate(pairwise(raised), number.start() + 1):
            if above != was and (above or chars.text[place].isdigit()):
                yield place, "^" if above else " "


def _lines(page: Any) -> Iterator[_Line]:
    """Yield a page's thin lines, and those that readers drew through words."""
    from pypdfium2 import raw

    for line in page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH]):
        left, bottom, right, top = placed(line)
        if top - bottom <= _THICK and right - left >= max(_THIN, 2 * (top - bottom)) and _is_drawn(line):
            yield _Line((bottom + top) / 2, left, right, top - bottom)
    for _, _, corners in _strikes(page):
        across, up = zip(*corners, strict=True)
        yield _Line((min(up) + max(up)) / 2, min(across), max(across))


def placed(drawn: Any) -> Box:
    """Return where an object (pdfium) stands on its page; in an embedded figure it has the figure's coordinates."""
    left, bottom, right, top = drawn.get_bounds()
    figure = drawn.container
    while figure:
        left, bottom, right, top = figure.get_matrix().on_rect(left, bottom, right, top)
        figure = figure.container
    return left, bottom, right, top


def _strikes(page: Any) -> Iterator[tuple[Any, int, list[tuple[float, float]]]]:
    """Yield the marks with which readers struck words out: the note, and the number and corners of each line."""
    from pypdfium2 import raw

    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        note, at = raw.FPDFPage_GetAnnot(page, index), raw.FS_QUADPOINTSF()
        if raw.FPDFAnnot_GetSubtype(note) == raw.FPDF_ANNOT_STRIKEOUT and not raw.FPDFAnnot_GetFlags(note) & _UNSEEN:
            for place in range(raw.FPDFAnnot_CountAttachmentPoints(note)):
                raw.FPDFAnnot_GetAttachmentPoints(note, place, at)
                yield note, place, [(at.x1, at.y1), (at.x2, at.y2), (at.x3, at.y3), (at.x4, at.y4)]
        raw.FPDFPage_CloseAnnot(note)


def _is_drawn(path: Any) -> bool:
    """Whether a path is painted, and in no white."""
    from pypdfium2 import raw

    fill, stroke, color = ctypes.c_int(), ctypes.c_int(), [ctypes.c_uint(part) for part in (0, 0, 0, 255)]
    raw.FPDFPath_GetDrawMode(path, fill, stroke)
    paint = raw.FPDFPageObj_GetStrokeColor if stroke.value else raw.FPDFPageObj_GetFillColor
    paint(path, *color)  # what has no color of its own stays black
    return bool((stroke.value or fill.value) and color[3].value and min(part.value for part in color[:3]) < _WHITE)


def _whole(lines: Iterable[_Line]) -> list[_Line]:
    """Return lines, those as one that are drawn piece by piece, as one for each word; backgrounds are none of them."""
    rows, whole = list[list[_Line]](), list[_Line]()
    for line in sorted(lines, key=lambda line: (line.thick > _THIN, line)):
        is_new = not rows or (line.thick > _THIN) != (rows[-1][0].thick > _THIN)
        if is_new or line.height - rows[-1][0].height > _BETWEEN:
            rows.append([])
        rows[-1].append(line)
    for row in rows:
        begun = len(whole)
        for line in sorted(row, key=lambda line: line.left):
            if len(whole) > begun and line.left - whole[-1].right <= _BETWEEN:
                whole[-1] = whole[-1]._replace(right=max(whole[-1].right, line.right))
            else:
                whole.append(line)
    return whole


def _struck(chars: _Chars, lines: Iterable[_Line]) -> set[int]:
    """Return the places of the letters that a line goes through, above the one on which the largest stand."""
    text, struck = chars.text, set[int]()
    for line in _whole(lines):
        over = [one for one in chars.over(line) if one.line - line.height < _ABOVE * one.size]  # not those above it
        letters = [one for one in over if text[one.place].isalpha() or text[one.place].isdecimal()] or over
        largest = max(letters, key=lambda one: (one.size, one.line, one.high - one.low), default=_NO_CHAR)
        through = 0.16 * largest.size < line.height - largest.line < 0.5 * largest.size
        through &= line.thick <= _THIN or (line.thick <= _STROKE * largest.size and len(over) > 2)
        if through and largest.low < line.height < largest.high - 0.05 * largest.size:  # a root has its line on top
            struck |= {one.place for one in over if text[one.place].strip()}
    return struck


def _fields(document: Any, page: Any) -> Iterator[_Field]:
    """Yield the fields of a page's form that are seen, row by row."""
    from pypdfium2 import raw

    kinds: dict[int, Literal["box", "list", "text"]] = {
        **dict.fromkeys((raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON), "box"),
        **dict.fromkeys((raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX), "text"),
        raw.FPDF_FORMFIELD_LISTBOX: "list",
    }
    form, place = document.formenv, raw.FS_RECTF()
    for index in range(raw.FPDFPage_GetAnnotCount(page) if form else 0):
        note = raw.FPDFPage_GetAnnot(page, index)
        kind = kinds.get(raw.FPDFAnnot_GetFormFieldType(form, note))
        if kind and not raw.FPDFAnnot_GetFlags(note) & _UNSEEN:
            raw.FPDFAnnot_GetRect(note, place)
            if kind == "box":
                # LibreOffice ticks a box by the name of no picture of it.
                state = _string(raw.FPDFAnnot_GetStringValue, note, b"AS")
                said = "☒" if raw.FPDFAnnot_IsChecked(form, note) or state not in ("", "Off") else "☐"
            else:
                options = range(raw.FPDFAnnot_GetOptionCount(form, note) if kind == "list" else 0)
                chosen = [index for index in options if raw.FPDFAnnot_IsOptionSelected(form, note, index)]
                labels = (_string(raw.FPDFAnnot_GetOptionLabel, form, note, index) for index in chosen)
                said = ", ".join(labels) or _string(raw.FPDFAnnot_GetFormFieldValue, form, note)
            yield _Field(place.left, place.bottom, place.right, place.top, value=said, kind=kind)
        raw.FPDFPage_CloseAnnot(note)


def _string(get: Callable[..., int], *of: Any) -> str:
    """Return what one of pdfium's functions writes as UTF-16 into a place of a size."""
    size = get(*of, None, 0)
    said = (ctypes.c_ushort * (size // 2))()
    get(*of, said, size)
    return bytes(said).decode("utf-16-le", "replace").rstrip("\0")


def _signs(page: Any) -> Iterator[tuple[int, float, float]]:
    """Yield the characters of a page, each with its origin."""
    from pypdfium2 import raw

    x, y = ctypes.c_double(), ctypes.c_double()
    for number in range(page.count_chars()):
        raw.FPDFText_GetCharOrigin(page, number, x, y)
        yield raw.FPDFText_GetUnicode(page, number), round(x.value, 1), round(y.value, 1)


def _filled_in(
    chars: _Chars, fields: list[_Field], printed: Counter[tuple[int, float, float]]
) -> tuple[list[tuple[int, str]], set[int]]:
    """Return the values of fields with their places in the text, and the places that are left out for them.

    A value is shown as the page has it beside what is `printed`, mostly at the end; without one, as the file has.
    """
    text, body, shown = chars.text, list[_Char](), list[_Char]()
    for number, sign in enumerate(_signs(chars.page) if fields else ()):
        if (one := chars[number]).place >= 0 and text[one.place].strip():
            if not printed[sign]:
                shown.append(one)
            elif one.size:
                body.append(one)
        printed[sign] -= printed[sign] > 0
    tables, spots = _tables(fields, body), dict[_Field, int]()
    values, moved, unbegun = defaultdict[int, list[str]](list), set[int](), set(tables.values())
    for field, own in _shown(fields, shown, text).items():
        said = " ".join("".join(text[place] for place in sorted(own)).split())
        if field.kind == "box":
            said = f"{field.value} {said if len(said) > 1 else ''}".strip()  # one sign is the tick
        elif field.kind == "list" or not said or "".join(field.value.split()) == "".join(said.split()):
            said = " ".join(field.value.split())  # a cell for each digit makes no spaces
        moved.update(own)
        if said:
            table, row = tables.get(field, (field, 0))
            spot = spots[table] if table in spots else _spot(table, body, spots)
            spots[table] = spots[field] = len(text) if spot is None else spot
            values[spots[field]].append("\n" * ((table, row) in unbegun) + said)
            unbegun.discard((table, row))
    between = [" ", *text, " "]  # before a place, and at it
    spaced = (
        (place, f"{' ' * (not between[place].isspace())}{' '.join(said)}{' ' * between[place + 1].isalnum()}")
        for place, said in values.items()
    )
    return [(place, said.replace(" \n", "\n")) for place, said in spaced], moved


def _tables(fields: list[_Field], body: list[_Char]) -> dict[_Field, tuple[_Field, int]]:
    """Return the fields of tables that are fields alone, each with the whole first row of its table, and its row."""
    rows, tables = list[list[_Field]](), dict[_Field, tuple[_Field, int]]()
    for field in sorted(fields, key=lambda one: -one.bottom):
        if not rows or rows[-1][0].bottom - field.bottom > _TOUCH:
            rows.append([])
        rows[-1].append(field)
    for above, row in pairwise(sorted(row) for row in rows):
        first, last = above[0], row[0]
        alike = len(above) == len(row) > 1 and first.bottom - last.top < last.top - last.bottom
        alike &= all(abs(one.left - other.left) < _TOUCH for one, other in zip(above, row, strict=False))
        if alike and not any(last.bottom <= one.line + 0.3 * one.size <= first.top for one in body):
            table, number = tables.get(first, (first._replace(right=above[-1].right), 0))
            tables |= dict.fromkeys(above, (table, number)) | dict.fromkeys(row, (table, number + 1))
    return tables


def _shown(fields: list[_Field], shown: list[_Char], text: str) -> dict[_Field, set[int]]:
    """Return the fields row by row, each with the places of what the page shows in it, and of the blanks around."""
    ordered = sorted(fields, key=lambda field: (-field.bottom, field.left))
    places: dict[_Field, set[int]] = {field: set() for field in ordered}
    owners, owner, value, drawn = dict[int, _Field](), None, "", 0
    for was, one in pairwise([_NO_CHAR, *shown]):
        letter = text[one.place]
        if owner is None or value[drawn : drawn + 1] != letter:  # else it may be drawn over other fields
            level = (field for field in fields if field.bottom <= (one.low + one.high) / 2 <= field.top)
            inside = next((field for field in level if field.left <= one.middle <= field.right), None)
            # Words may go on behind their field.
            goes_on = abs(one.line - was.line) < _TOUCH and one.left - was.right < _NEAR
            inside = inside or (owner if goes_on else None)
            if inside is not owner:
                owner, value, drawn = inside, "".join(inside.value.split()) if inside else "", 0
        drawn = drawn + 1 if value[drawn : drawn + 1] == letter else len(value)
        if owner:
            owners[one.place] = owner
            places[owner].add(one.place)
    for blanks in re.finditer(r"\s+", text):
        for field in filter(None, map(owners.get, (blanks.start() - 1, blanks.end()))):
            places[field].update(range(*blanks.span()))
    return places


def _spot(field: _Field, body: list[_Char], spots: dict[_Field, int]) -> int | None:
    """Return the place in the text where a field belongs.

    It is behind what stands on its left, or before what stands on its right, as with a box to tick; or behind what
    stands above it, words or a field that has its place, where that is nearer.
    """
    beside = [one for one in body if field.bottom <= one.line + 0.3 * one.size <= field.top]
    ends = [one for one in beside if one.right <= field.left + _TOUCH]
    starts = [one for one in beside if one.left >= field.right - _TOUCH]
    over = [one for one in body if field.left - _TOUCH <= one.middle <= field.right and one.line > field.bottom]
    found = list[tuple[int, int]]()
    if ends:
        last = max(ends, key=lambda one: one.right)
        word = takewhile(lambda pair: pair[1].place == pair[0].place + 1, pairwise(body[body.index(last) :]))
        last = next((one for _, one in deque(word, maxlen=1)), last)  # which may reach into the field
        found.append((0 if field.left - last.right < _NEAR else 2, last.place + 1))
    if starts and (first := min(starts, key=lambda one: one.left)).left - field.right < _RIGHT:
        found.append((-1 if field.kind == "box" else 3, first.place))
    lowest = min((one.line for one in over), default=math.inf)
    columns = (one for one in spots if one.left < field.right and field.left < one.right)
    above = min(
        (one for one in columns if field.bottom + _TOUCH < one.bottom < lowest),
        key=lambda one: one.bottom,
        default=None,
    )
    if above:
        found.append((4, spots[above]))
    elif over:
        last = max((one for one in over if one.line < lowest + _TOUCH), key=lambda one: one.right)
        # To the end of the words above, which may be longer than the field.
        for was, one in pairwise(body[body.index(last) :]):
            if abs(one.line - last.line) > _TOUCH or not 0 <= one.left - was.right + _TOUCH < one.size:
                break
            last = one
        found.append((1 if lowest < field.top + _TOUCH else 4, last.place + 1))
    return min(found)[1] if found else None


_REMARKS = frozenset({1, *range(4, 13), 14, 15})
"""Kinds of notes, by pdfium's numbers, whose contents no page shows: remarks on places, lines, shapes, marked text."""


def _beside(page: Any) -> Counter[str]:
    """Return how many comments readers wrote on a page, and how many files they attached to it."""
    from pypdfium2 import raw

    found = Counter[str]()
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        note = raw.FPDFPage_GetAnnot(page, index)
        kind, size = raw.FPDFAnnot_GetSubtype(note), raw.FPDFAnnot_GetStringValue(note, b"Contents", None, 0)
        look = raw.FPDFAnnot_GetAP(note, raw.FPDF_ANNOT_APPEARANCEMODE_NORMAL, None, 0)
        remark = kind in _REMARKS or (kind == raw.FPDF_ANNOT_FREETEXT and look <= 2)  # which nothing draws
        found["comment"] += remark and size > 2  # an empty text has the two bytes of its end
        found["attachment"] += kind == raw.FPDF_ANNOT_FILEATTACHMENT
        raw.FPDFPage_CloseAnnot(note)
    return found
