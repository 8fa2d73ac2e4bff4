"""Plain text, Markdown, and rich text (.rtf) without what is deleted or hidden."""

import codecs
import math
import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

from infra.sources.base import Parsed, ParseRequest, TextLine, unread
from infra.sources.decoding import SIGN_FONTS, clean, decode, glyphs, guessed
from memagent.errors import SourceError

_MARKS = re.compile(r" {0,3}#{1,6}(?=[ \t])")
_TITLE_LINES = 200


def parse_text(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the file's text as it is."""
    text, encoding = decode(stream.read())
    warnings = (*guessed(text, encoding), *unread({"unreadable letter": text.count("\ufffd")}))
    yield Parsed(text, "", "text/plain", encoding, warnings=warnings)


def parse_markdown(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the file's text with its marks; the first heading outside of code is the title."""
    text, encoding = decode(stream.read())
    warnings = (*guessed(text, encoding), *unread({"unreadable letter": text.count("\ufffd")}))
    yield Parsed(text, _first_heading(text), "text/markdown", encoding, warnings=warnings)


def _first_heading(text: str) -> str:
    fenced = False
    for line in text[:100_000].split("\n", _TITLE_LINES)[:_TITLE_LINES]:
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and (marks := _MARKS.match(line)) and (title := _heading(line[marks.end() :])):
            return title
    return ""


def _heading(line: str) -> str:
    """Return a heading without the marks that may close it (CommonMark, 4.2).

    One pattern for all of it takes the cube of the white space in a line.
    """
    title = line.strip(" \t")
    unmarked = title.rstrip("#")
    return title if unmarked and not unmarked.endswith((" ", "\t")) else unmarked.rstrip(" \t")


_RTF = re.compile(r"\\([a-z]{1,32})(-?\d{1,10})?[ ]?|\\'([0-9a-f]{2})|\\([^a-z])|[{}]|[^\\{}]+", re.IGNORECASE)
_RTF_OBJECT = re.compile(r"\{\\object\b")
_RTF_PICTURE = re.compile(
    r"\\(non)?shppict|(?:\\picscalex(\d{1,6})\s?\\picscaley(\d{1,6})[^{}]{0,200}?)?\\picwgoal(\d{1,6})\s?\\pichgoal(\d{1,6})"
)
_RTF_LETTERING = re.compile(r"\{\\sp\s*\{\\sn gtextUNICODE\}\s*\{\\sv ([^{}]*)\}\s*\}")
"""Of a watermark."""
_RTF_LARGE = 20_000_000
"""Square twips of a tenth of an A4 page."""
_RTF_TITLE = re.compile(r"\{\\title\b([^{}]*)\}")
_RTF_NOTES = {"footnote": "Footnote: ", "annotation": "Comment: "}
_RTF_CELLS = re.compile(r"\{\\\*\\nesttableprops[^{}]*\}|\\(?:(trowd|row|cell|par)(?![a-z])|cellx(-?\d{1,6}))")
_RTF_NEAR = 60
"""Twips between two edges of cells that are one: a millimetre."""
_MOST_COLUMNS = 63
_RTF_READ = {
    **dict.fromkeys(("header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"), "\n"),
    **dict.fromkeys(("shp", "shpinst", "shpgrp", "shptxt", "pntext", "upr", "ud"), ""),
    **_RTF_NOTES,
    **{"cell": "\t", "nestcell": " "},
}
"""Groups with text of the document that are among striprtf's `destinations`, and ends of cells, and what they say."""
_RTF_UNUSED = {
    "\\titlepg": re.compile(r"\\(?:header|footer)f(?![a-z])"),
    "\\facingp": re.compile(r"\\(?:header|footer)l(?![a-z])"),
}
"""Headers of first and left pages, and what switches them on."""
_RTF_CHARSET = re.compile(r"\\f(\d+)(?:(?!\\f\d).)*?\\fcharset(\d{1,4})", re.DOTALL)
_RTF_NAMED = r"\b(Symbol|Webdings|Wingdings(?: [23])?)"
"""A font of signs."""
_RTF_SIGNS = re.compile(r"(?>\\f(\d+)(?:(?!\\f\d).)*?\\fcharset2\b)(?:(?!\\f\d)[^;])*" + _RTF_NAMED + ";", re.DOTALL)
_RTF_SIGN = re.compile(
    r"""\{\\\*\\fldinst\b(?:[^{}]*\{)?[^{}]*\bSYMBOL (\d{1,5}) \\\\f "?""" + _RTF_NAMED + r"""\b[^{}]*\}?\}"""
    r"""(?=\s*\{\\fldrslt\s*\{?(?:\\[a-z]+-?\d*\s?)*\})"""
)
"""A field for a sign of a font of signs, whose result says its look alone."""
_SIGN_FONTS = {f"000000{index}": font for index, font in enumerate(sorted(SIGN_FONTS))}
"""Font numbers for such signs, as no program writes them."""
_RTF_BYTES = re.compile(r"\\(?:bin(\d{1,10})[ ]?|[^a-z])|[{}]", re.DOTALL)
"""Bytes may hold marks."""
_RTF_PAGES = {
    **{"mac": "mac_roman", "cp10000": "mac_roman", "pc": "cp437", "pca": "cp850", "cp708": "iso8859_6"},
    **{"cp0": "cp1252", "mac_japanese": "cp932", "mac_korean": "cp949", "mac_chinesesimp": "gb18030"},
    "mac_chinesetrad": "big5hkscs",
}
"""Code pages that Python has under other names; 0 is that of the system that wrote the file."""
_RTF_OFF = ("0", "-0")
_RTF_HEAD = 2**16
"""Characters in which the title stands, before the text."""


def parse_rtf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text with its headers, notes and shapes, without what is deleted or hidden.

    Raises SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    from striprtf.striprtf import charset_map, font_table_group

    source = stream.read().decode("latin-1")  # a character a byte
    if not source.lstrip().startswith("{\\rtf"):
        raise SourceError("broken", "it is no rich text; save it again as .rtf")
    head, (whole, after) = source[:_RTF_HEAD], _first_group(source)
    charsets = _RTF_CHARSET.findall(font_table_group(whole))
    pages = {font: _known_page(charset_map.get(int(charset), "")) for font, charset in charsets}
    pages |= {font: name.lower() for font, name in _RTF_SIGNS.findall(font_table_group(whole))} | _SIGN_FONTS
    numbers = {name: font for font, name in _SIGN_FONTS.items()}
    whole = _RTF_SIGN.sub(lambda it: rf"{{\f{numbers[it[2].lower()]}\uc1\u{0xF000 + int(it[1]) % 256}?}}", whole)
    whole = whole.replace("{\\listtext\\pard", "{\\listtext")  # its tab is none of a table
    whole = _RTF_LETTERING.sub(r"{\\shptxt \1\\par}", whole)
    for switch, unused in _RTF_UNUSED.items():
        whole = whole if switch in whole else unused.sub(r"\\*\\unused", whole)
    try:
        text = _rtf_text(_spread_cells(whole), pages)
        page, title = re.search(r"\\(?:ansicpg\d+|mac|pca?)\b", head), _RTF_TITLE.search(head)
        name = _rtf_text(f"{page.group() if page else ''} {title.group(1)}", {}) if title else ""
    except (ValueError, OverflowError) as error:
        raise SourceError("broken", "its marks cannot be read; save it again as .rtf, or as .docx") from error
    request.allowance.check(len(text))
    parts = {"embedded object": len(_RTF_OBJECT.findall(source)), "unreadable letter": text.count("\ufffd")}
    parts["large picture"] = _large_pictures(source)
    parts["form control"] = len(re.findall(r"\\fftype[12](?!\d)", source))
    parts["equation"] = len(re.findall(r"\\moMath(?![A-Za-z])", source))
    ended = "the file is cut off: its end is missing" if after is None else ""
    if re.search(r"\w", after or ""):
        ended = "what stands after the end of the text is not read"
    yield Parsed(clean(text), clean(name.strip()), "text/rtf", warnings=(*unread(parts), *filter(None, (ended,))))


def _large_pictures(source: str) -> int:
    """Count the pictures that may be pages; copies of them for other programs are none."""
    found, is_copy = 0, False
    for piece in _RTF_PICTURE.finditer(source):
        if piece[4] is None:
            is_copy = bool(piece[1])
        elif not is_copy:
            scaled = (int(piece[place + 2]) * int(piece[place] or 100) // 100 for place in (2, 3))
            found += math.prod(scaled) >= _RTF_LARGE
    return found


def _first_group(source: str) -> tuple[str, str | None]:
    """Return the first group, without bytes of pictures and objects, and what follows; None: the group does not end."""
    kept, after, depth = list[str](), 0, 0
    while found := _RTF_BYTES.search(source, after):
        kept.append(source[after : found.start() if found[1] else found.end()])
        after = found.end() + int(found[1] or 0)
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if found[0] == "}" and depth <= 0:
            return "".join(kept), source[after:]
    return "".join(kept) + source[after:], None


def _spread_cells(source: str) -> str:
    """Put ends of cells where merged ones reach: by its right edge a cell takes one or several columns of its table."""
    tables, edges, ends, is_row = list[list[tuple[list[int], list[int]]]]([[]]), list[int](), list[int](), False
    for found in _RTF_CELLS.finditer(source):
        if found[2]:
            edges.append(int(found[2]))
        elif found[1] == "cell":
            ends.append(found.end())
        elif found[1] == "trowd":  # which Word repeats at the end of the row
            is_row, edges = True, []
        elif found[1] == "row":
            tables[-1].append((edges, ends))
            is_row, ends = False, []
        elif found[1] and not is_row and tables[-1]:
            tables.append([])
    kept, done = list[str](), 0
    for rows in tables:
        grid = list[int]()
        for edge in sorted({edge for edges, _ in rows for edge in edges}):
            grid += [edge] if not grid or edge - grid[-1] > _RTF_NEAR else []
        for edges, ends in rows:
            columns = [bisect(grid, edge) for edge in edges]
            for (last, column), end in zip(pairwise([0, *columns]), ends, strict=False):
                kept += [source[done:end], "\\cell" * min(column - last - 1, _MOST_COLUMNS)]
                done = end
    return "".join([*kept, source[done:]])


class _Notes:
    """The text of a document, whose notes wait for the end of the paragraph that has their mark."""

    def __init__(self) -> None:
        self._line, self._notes = TextLine(), list[TextLine]()
        self._level = 0
        """Of the group of the note that is open; 0: none is."""
        self.ended = False
        """Whether a paragraph of a cell has ended, and another one may follow on the line."""

    def begin(self, label: str, level: int) -> None:
        if not self._level:
            self._level = level
            self._notes.append(TextLine())
        self._notes[-1].add(label)

    def end_group(self, level: int) -> None:
        self._level = self._level if level >= self._level else 0

    def add(self, said: str, look: "_Look") -> None:
        line = self._notes[-1] if self._level else self._line
        if said and line is self._line:
            said, self.ended = " " * (self.ended and not said.isspace()) + said, False
        line.add(said, above=look.above, below=look.below, struck=look.struck)
        if not self._level and said.endswith("\n"):
            self._line.add("".join(f"{note}\n" for note in self._written()))

    def text(self) -> str:
        return "\n".join([self._line.text, *self._written()])

    def _written(self) -> list[str]:
        notes, self._notes = self._notes, []
        return [" ".join(note.text.split()) for note in notes]


@dataclass(slots=True)
class _Look:
    """How the letters of a group are to be read and shown."""

    page: str
    hidden: bool = False
    left_out: bool = False
    substitutes: int = 1
    above: bool = False
    below: bool = False
    struck: bool = False
    in_cell: bool = False

    def shift(self, word: str, value: str) -> None:
        on = value not in _RTF_OFF
        if word in ("super", "nosupersub", "sub", "plain", "up", "dn"):
            self.above, self.below = word in ("super", "up") and on, word in ("sub", "dn") and on
        if word in ("strike", "striked", "plain"):
            self.struck = word != "plain" and on


def _rtf_text(source: str, pages: Mapping[str, str]) -> str:
    """Return the text without what is deleted or hidden; groups of `_RTF_READ` are read as if part of the body.

    Args:
        pages: code pages by font; one that is not there, or is empty, is the document's.
    """
    from striprtf.striprtf import destinations, specialchars

    ansi = "cp1252"
    default = "0"  # a font, also where no `deff` names it
    starred, skip = False, 0
    look, groups, letters, notes = _Look(ansi), list[_Look](), bytearray(), _Notes()
    for found in _RTF.finditer(source + "}"):
        mark, (word, value, escaped, char) = found.group(), found.groups("")
        if escaped or mark[0] not in "\\{}":
            # The two bytes of a letter may be an escape and an ASCII character.
            data = bytes.fromhex(escaped) or mark.encode("latin-1").translate(None, b"\r\n")
            data = data.replace(b"\t", b" ") if look.in_cell else data
            letters += data[skip:] if not look.hidden and not look.left_out else b""
            skip = max(0, skip - len(data))
            continue
        if letters:
            text = letters.decode("latin-1" if look.page in SIGN_FONTS else look.page, "replace")
            notes.add(glyphs(text, look.page), look)
            letters.clear()
        skip, said = 0, specialchars.get(word or char, "")
        if mark == "{":
            groups.append(replace(look))
        elif mark == "}" and groups:
            look = groups.pop()
            notes.end_group(len(groups))
        elif mark == "\\*":
            starred = True  # a group that a reader may leave out; the next word says which
            continue
        elif word in ("v", "deleted", "mvf"):
            look.hidden = value not in _RTF_OFF
        elif word in ("intbl", "pard", "trowd", "row"):
            look.in_cell = word in ("intbl", "trowd")
        elif word in ("ansicpg", "mac", "pc", "pca"):
            ansi = look.page = _known_page(f"cp{value}" if value else word)
        elif word in ("deff", "plain", "f"):
            look.hidden, default = look.hidden and word != "plain", value if word == "deff" else default
            look.page = pages.get(value if word == "f" else default) or ansi
        elif word == "uc":
            look.substitutes = max(0, int(value or 1))
        elif word == "u" and value:
            said, skip = chr(int(value) + 0x10000 * (int(value) < 0)), look.substitutes
            said = glyphs(said, look.page)
        look.shift(word, value)
        # A row is a line, with tabs between cells.
        if look.in_cell and (word in ("par", "line", "tab") or char in ("\r", "\n")):
            notes.ended, said = True, ""
        if word in _RTF_READ:
            said = _RTF_READ[word]
            # The first half of a text that is there twice is ASCII, the second one Unicode.
            look.hidden = word == "upr" or (look.hidden if word != "ud" else len(groups) > 1 and groups[-2].hidden)
            if word in _RTF_NOTES and not look.hidden and not look.left_out:
                notes.begin(said, len(groups))
                said = ""
        elif starred or word in destinations:
            look.left_out = True
        starred = False
        if said and not look.left_out and (not look.hidden or said[0] in "\n\t"):  # else lines and cells run together
            notes.add(said, look)
    return notes.text()


def _known_page(name: str) -> str:
    """Return Python's name of a code page; for one that it does not have ASCII: other letters are unreadable."""
    with suppress(LookupError):
        return codecs.lookup(_RTF_PAGES.get(name, name)).name if name else ""
    return "ascii"
