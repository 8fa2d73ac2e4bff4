"""Excel workbooks (.xlsx): the cells as they are shown, from the XML of the sheets (ECMA-376 part 1, 18)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import zip_longest
from math import floor, isfinite
from operator import eq, ge, gt, le, lt, ne
from typing import Any, BinaryIO, NamedTuple

from infra.sources.base import Parsed, ParseRequest, TextLine, unread, within
from infra.sources.decoding import clean, glyphs
from infra.sources.office import (
    OfficeArchive,
    attribute,
    child,
    drawn_lines,
    integer,
    is_on,
    local_name,
    not_read,
    opened,
)

_MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_FORMATS = {
    **{1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00"},
    **dict.fromkeys((*range(14, 18), *range(27, 37), *range(50, 59)), "yyyy-mm-dd"),
    **dict.fromkeys((18, 20), "h:mm"),
    **dict.fromkeys((19, 21), "h:mm:ss"),
    **dict.fromkeys((37, 38, 41, 42), "#,##0"),
    **dict.fromkeys((39, 40, 43, 44), "#,##0.00"),
    **{22: "yyyy-mm-dd h:mm", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss"},
}
"""Formats that a file names by number alone (18.8.30)."""
_MOST_COLUMNS = 16_384
_LONGEST_FORMAT = 255
"""Characters of a format in Excel."""
_COLUMN = re.compile(r"[A-Z]{1,3}")
_ESCAPE = re.compile(r"_x([0-9A-Fa-f]{4})_")
_SEPARATOR = re.compile(r'("[^"]*"|\\.|\[[^\]]*\])|;')
_MARK = re.compile(r'("[^"]*"|\\.)|\[\$([^\]-]*)[^\]]*\]|\[(?!h+\]|m+\]|s+\])[^\]]*\]|_.|\*.', re.I)
"""Literals, which stay; currencies; colours, conditions, and what pads a cell."""
_COLOUR = re.compile(r"\[(?:[a-z]{3,}|color ?\d+)\]", re.I)
_CONDITION = re.compile(r"\[(<=|>=|<>|<|>|=)\s*(-?\d+(?:\.\d+)?)\]")
_HOLDS = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "<>": ne}
_LITERAL = re.compile(r'"([^"]*)"|\\(.)')
_DIGITS = re.compile(r"[0#?][0#?,.]*(?:E[+-][0#?]+)?|\.[0#?]+|general", re.I)
_FRACTION = re.compile(r"s\]?[.,](0+)")
_DURATION = re.compile(r"\[(h+|m+|s+)\]", re.I)
_PRINTED = re.compile(r'&(?:"[^"]*"|K(?:[0-9A-F]{6}|\d\d[+-]\d{3})|\d+|.)', re.I | re.DOTALL)
_EXACT = Context(prec=1_000)
_UNCOMPUTED = "uncomputed formula"
_RICH = "picture or linked cell"
"""What older programs show as an error."""


def parse_xlsx(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the workbook's text: each sheet's name, then its rows with tabs between the cells; empty rows are left out.

    Numbers are as their format shows them, dates as ISO 8601. Of a formula it has the value that was last computed; one
    that was never computed, or is computed anew on opening, is a warning.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    with opened(stream, request, "Excel workbook", ".xlsx") as archive:
        workbook = Workbook(OfficeArchive(archive))
        text = "\n".join(within(request.allowance, workbook.lines()))
        workbook.not_read["unreadable letter"] = text.count("\ufffd")
    yield Parsed(clean(text), clean(workbook.title), _MEDIA_TYPE, warnings=unread(workbook.not_read))


class Cell(NamedTuple):
    """A cell of a row."""

    column: int
    """From 0."""
    text: str
    """As it is shown."""
    fault: str
    """What the cell has instead of a value, as ``error #N/A``; empty: nothing is wrong."""
    struck: bool
    """Whether all of it is struck through; where words of it are, they stand between ``~~`` in the text."""


class Workbook:
    """The sheets of a file with what they share: strings, formats, the first day."""

    def __init__(self, archive: OfficeArchive) -> None:
        self._archive, self.title = archive, archive.title()
        self.not_read = archive.not_read
        """Parts that are not in the lines so far."""
        parts = archive.related(archive.main)
        root = archive.xml(archive.main)
        self.sheets = list[tuple[str, str]]()
        """Their names and parts."""
        self._hidden = set[str]()
        for sheet in _children(root, "sheets"):
            kind, path = parts.get(attribute(sheet, "id"), ("", ""))
            if kind == "worksheet":
                self.sheets.append((attribute(sheet, "name"), path))
                self._hidden |= {path} if attribute(sheet, "state") in ("hidden", "veryHidden") else set()
            else:
                self.not_read[f"{kind.removesuffix('sheet') or 'missing'} sheet"] += 1
        if not self.sheets and self.not_read["missing sheet"]:
            raise LookupError("none of its sheets is there")
        self._is_stale = attribute(child(root, "calcPr"), "fullCalcOnLoad") in ("1", "true")
        first_is_1904 = attribute(child(root, "workbookPr"), "date1904") in ("1", "true")
        self._first_day = datetime(1904, 1, 1) if first_is_1904 else datetime(1899, 12, 30)
        paths = {kind: path for kind, path in parts.values()}
        self._strings = [_string(one) for one in archive.elements(paths.get("sharedStrings"), "si")]
        styles = archive.xml(paths["styles"]) if "styles" in paths else None
        own = {attribute(one, "numFmtId"): attribute(one, "formatCode") for one in _children(styles, "numFmts")}
        looks = list(_children(styles, "cellXfs"))
        names = (attribute(look, "numFmtId") for look in looks)
        self._formats = [own.get(name) or _FORMATS.get(int(name or 0), "") for name in names]
        fonts = list(_children(styles, "fonts"))
        of_looks = [fonts[n] if (n := integer(look, "fontId", 0)) < len(fonts) else None for look in looks]
        self._struck = {n for n, font in enumerate(of_looks) if is_on(child(font, "strike"))}
        self._fonts = [attribute(child(font, "name"), "val") for font in of_looks]

    def lines(self) -> Iterator[str]:
        """Yield the lines of all sheets."""
        several = len(self.sheets) > 1
        for name, path in self.sheets:
            if several:
                yield f"{name}{' (hidden sheet)' if path in self._hidden else ''}\n"
            for _, cells in self.rows(path):
                if line := self._line(cells):
                    yield line
            yield from self._printed(path)
            yield from self._beside(path)
            if several:
                yield ""

    def _printed(self, sheet: str) -> Iterator[str]:
        """Yield the headers and footers of a sheet's pages (18.3.1.46), without page numbers and looks."""
        found = (one.text or "" for part in self._archive.elements(sheet, "headerFooter") for one in part)
        said = (_PRINTED.sub(lambda code: {"&&": "&"}.get(code[0], " "), text) for text in dict.fromkeys(found))
        yield from filter(None, (" ".join(text.split()) for text in said))

    def _beside(self, sheet: str) -> Iterator[str]:
        """Yield the comments of a sheet and the texts of what is drawn on it."""
        for kind, path in self._archive.related(sheet).values():
            if kind == "comments":
                for comment in self._archive.elements(path, "comment"):
                    said = " ".join("".join(one.text or "" for one in comment.iter("{*}t")).split())
                    yield f"Comment on {attribute(comment, 'ref')}: {said}"
            elif kind == "control" or (kind == "ctrlProp" and self._archive.xml(path).get("objectType") != "Button"):
                self.not_read["form control"] += 1
            elif kind in ("oleObject", "package"):
                self.not_read["embedded object"] += 1
            elif kind == "drawing":
                root = self._archive.xml(path)
                self.not_read.update(not_read(root))
                yield from drawn_lines(root)

    def rows(self, sheet: str) -> Iterator[tuple[int, list[Cell]]]:
        """Yield the rows of a sheet's part, each with its number from 1."""
        number = 0
        for row in self._archive.elements(sheet, "row"):
            number, cells = integer(row, "r", number + 1), list[Cell]()
            for cell in row:
                if local_name(cell) == "c":
                    place = _COLUMN.match(attribute(cell, "r"))
                    after = cells[-1].column + 1 if cells else 0
                    column = min(_number(place.group()), _MOST_COLUMNS) - 1 if place else after
                    style = integer(cell, "s", 0)
                    text = self._text(cell, style)
                    cells.append(Cell(column, text, self._fault(cell, text), style in self._struck))
            yield number, cells

    def _line(self, cells: Iterable[Cell]) -> str:
        texts: list[str] = []
        for cell in cells:
            texts += [""] * (cell.column - len(texts))
            text = " ".join(cell.text.split())
            texts.append(f"~~{text.replace('~~', '')}~~" if cell.struck and text else text)
            if cell.fault in (_UNCOMPUTED, _RICH):
                self.not_read[cell.fault] += 1
        return "\t".join(texts).rstrip("\t")

    def _text(self, cell: Any, style: int) -> str:
        kind, value = attribute(cell, "t") or "n", child(cell, "v")
        said = "" if value is None else value.text or ""
        if kind == "s":
            return self._in_font(style, *self._strings[int(said)]) if said else ""
        if kind == "inlineStr":
            inline = child(cell, "is")
            return self._in_font(style, *_string(inline)) if inline is not None else ""
        if kind == "b":
            return "TRUE" if said == "1" else "FALSE"
        if kind != "n" or not said:
            return self._in_font(style, _unescaped(said), is_plain=True)
        return shown(float(said), self._formats[style] if style < len(self._formats) else "", self._first_day)

    def _in_font(self, style: int, text: str, is_plain: bool) -> str:
        return glyphs(text, self._fonts[style]) if is_plain and style < len(self._fonts) else text

    def _fault(self, cell: Any, text: str) -> str:
        kind = attribute(cell, "t")
        if kind == "e":
            return _RICH if attribute(cell, "vm") else f"error {text}"
        lacks = self._is_stale or (not text and kind != "str")  # a stale value may be a writer's 0
        return _UNCOMPUTED if lacks and child(cell, "f") is not None else ""


def shown(value: float, code: str, first_day: datetime) -> str:
    """Return a number as a cell of a format shows it; dates and times in ISO 8601.

    Args:
        code: of the format (18.8.31), as ``0.0%``; empty: general.
        first_day: the day 0 of dates.
    """
    sections = _SEPARATOR.sub(lambda found: found[1] or "\0", code[:_LONGEST_FORMAT]).split("\0")
    marked, unsigned = _section(sections, value)
    section = _unmarked(marked)
    if unsigned and _COLOUR.search(_LITERAL.sub("", marked)):  # a text has no red that could stand for the sign
        unsigned = [*map(_unmarked, sections)].count(section) == 1
    bare = _LITERAL.sub("", section).lower()
    if not section or "@" in bare or not isfinite(value):  # a number that a format hides is shown, too
        return _general(value)
    if not bare:
        return _LITERAL.sub(r"\1\2", section)
    if set(bare) & set("ymdhs"):
        return _moment(value, bare, first_day)
    runs = [*_DIGITS.finditer(_LITERAL.sub(lambda found: "\0" * len(found.group()), section))]
    if not runs or "/" in bare:
        return _general(value)
    size = abs(value)
    if len(runs) == 1:
        run = runs[0].group()
        figures = [_general(size) if run.lower() == "general" else _figure(size, run, percent="%" in bare)]
    elif all(set(run.group()) <= set("0#?") for run in runs):
        figures = _spread(size, [run.group() for run in runs])
    else:
        return _general(value)
    edges = [0, *(edge for run in runs for edge in run.span()), len(section)]
    between = (_LITERAL.sub(r"\1\2", section[edges[k] : edges[k + 1]]) for k in range(0, len(edges), 2))
    sign = "-" if value < 0 and not unsigned and any(figures) else ""  # as Excel does, before a currency
    return sign + "".join(text for pair in zip_longest(between, figures, fillvalue="") for text in pair)


def _unmarked(section: str) -> str:
    """Return a section of a format without its marks; a currency is a literal."""
    return _MARK.sub(lambda found: found[1] or (f'"{found[2]}"' if found[2] else ""), section)


def _section(sections: Sequence[str], value: float) -> tuple[str, bool]:
    """Return the section of a format that shows a number, and whether it does without the number's sign."""
    conditions = [_CONDITION.search(_LITERAL.sub("", section)) for section in sections]
    if any(conditions):
        of_others = False  # whether what is left is below 0
        for section, found in zip(sections, conditions, strict=True):
            if found is None:
                return section, of_others
            if _HOLDS[found[1]](value, float(found[2])):
                return section, found[1] in ("<", "<=") and float(found[2]) <= 0
            of_others |= found[1] in (">", ">=") and float(found[2]) == 0
        return "", False
    if value < 0 and len(sections) > 1:
        return sections[1], True
    return sections[2 if value == 0 and len(sections) > 2 else 0], False


def _spread(value: float, runs: Sequence[str]) -> list[str]:
    """Return the digits of a number over the runs of marks of a format as ``000-00-0000``, filled from the right."""
    digits, shown = f"{_rounded(_decimal(value), 0)}", list[str]()
    for run in reversed(runs):
        taken = digits if len(shown) == len(runs) - 1 else digits[-len(run) :]
        digits = digits[: len(digits) - len(taken)]
        shown.append(taken.rjust(run.count("0"), "0"))
    return shown[::-1]


def _figure(value: float, code: str, *, percent: bool) -> str:
    whole, _, part = code.partition("E")[0].partition(".")
    number = _decimal(value).scaleb(2 if percent else 0)
    while whole.endswith(",") or part.endswith(","):  # each scales by a thousand
        number, whole, part = number.scaleb(-3), whole.removesuffix(","), part.removesuffix(",")
    if "E" in code.upper():
        return f"{float(_rounded(number, len(part) - number.adjusted())):.{len(part)}E}"
    number = _rounded(number, len(part))
    if "0" not in code and not number:
        return ""  # such marks show no zero
    zeros, comma = max(1, whole.count("0")), "," * ("," in whole)
    text = f"{number:0{zeros + (zeros - 1) // 3 * len(comma) + len(part) + bool(part)}{comma}f}"
    if spare := len(part) - part.count("0"):
        kept = text.rstrip("0") if spare == len(part) else text[:-spare] + text[-spare:].rstrip("0")
        text = kept.rstrip(".")
    return text


def _decimal(value: float) -> Decimal:
    return Decimal(f"{value:.15g}")  # as many digits as Excel counts


def _rounded(number: Decimal, places: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _EXACT)


def _general(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15G}"


def _moment(value: float, code: str, first_day: datetime) -> str:
    found = _FRACTION.search(code)
    places = len(found[1]) if found else 0
    ticks = int(_rounded(_decimal(value) * 86_400, places).scaleb(places))
    has_time = bool(set(code) & set("hs"))
    if _DURATION.search(code):
        seconds, part = divmod(abs(ticks), 10**places)
        clock = f"{'-' * (ticks < 0)}{seconds // 3600}:{seconds // 60 % 60:02}" + f":{seconds % 60:02}" * ("s" in code)
        return f"{clock}.{part:0{places}}" if places else clock
    seconds, part = divmod(ticks, 10**places)
    try:
        days = (0 < value < 60 and first_day.year == 1899) + (0 if has_time else floor(_decimal(value)))
        at = first_day + timedelta(days, seconds if has_time else 0)  # 1900 had no 29 February
    except OverflowError:
        return _general(value)
    has_day = bool(set(code) & set("yd")) or not has_time
    clock = at.strftime("%H:%M:%S" if at.second or "s" in code else "%H:%M") + (f".{part:0{places}}" if places else "")
    return " ".join([*([at.date().isoformat()] if has_day else []), *([clock] if has_time else [])])


def _string(element: Any) -> tuple[str, bool]:
    """Return a string without its guide to pronunciation, and whether it is in the font of its cell alone."""
    line, runs = TextLine(), [one for one in element if local_name(one) == "r"]
    for run in (element, *runs):
        said, look = "".join(one.text or "" for one in run if local_name(one) == "t"), child(run, "rPr")
        place = attribute(child(look, "vertAlign"), "val")
        said = glyphs(said, attribute(child(look, "rFont"), "val"))
        line.add(said, above=place == "superscript", below=place == "subscript", struck=is_on(child(look, "strike")))
    return _unescaped(line.text), not runs


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text) if "_x" in text else text


def _children(element: Any, name: str) -> Any:
    found = child(element, name)
    return () if found is None else found


def _number(letters: str) -> int:
    return sum((ord(letter) - ord("A") + 1) * 26**place for place, letter in enumerate(reversed(letters)))
