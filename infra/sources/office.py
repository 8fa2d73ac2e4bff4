"""Files of office programs that are archives of XML parts (Office Open XML, ECMA-376 part 2).

Names are compared without their namespace: the strict variant of the format has others.
"""

import math
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from infra.sources.base import ParseRequest, TextLine, counted
from infra.sources.decoding import bullet, glyphs
from infra.sources.listing import seekable
from memagent.errors import SourceError

_OLE = b"\xd0\xcf\x11\xe0"
_RATIO_FROM = 2**24
"""Inflated bytes below which no ratio counts as a bomb: XML compresses well."""
_SAID = ("header", "footer", "footnotes", "endnotes", "comments", "drawing", "notesSlide", "diagramData")
"""Kinds of parts with text; a sheet or slide is looked for by what lists it."""
_SAFE = {"resolve_entities": False, "no_network": True, "remove_comments": True, "remove_pis": True}


class OfficeArchive:
    """The parts of a file. Reading one that is not there raises KeyError; what is no XML raises a SyntaxError."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.not_read = Counter[str]()
        """Parts that are referred to and are not there, to which a parser adds what it leaves out."""
        top = self.related("")
        self.main = next((path for kind, path in top.values() if kind == "officeDocument"), "")
        """The part with the document itself."""
        self._core = next((path for kind, path in top.values() if kind == "core-properties"), None)

    def title(self) -> str:
        """Return the title of the core properties; empty: none."""
        root = self.xml(self._core) if self._core in self._archive.namelist() else ()
        return next((one.text or "" for one in root if local_name(one) == "title"), "")

    def related(self, part: str) -> dict[str, tuple[str, str]]:
        """Return the kind and path of the parts that a part refers to, by their ids; only those that are there."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        names = set(self._archive.namelist())
        if part and path not in names:
            return {}
        found = {
            one.get("Id", ""): (
                one.get("Type", "").rpartition("/")[2],
                posixpath.normpath(posixpath.join("/", folder, one.get("Target", ""))).lstrip("/"),
            )
            for one in self.xml(path)
        }
        self.not_read.update(
            f"missing {kind}" for kind, target in found.values() if kind in _SAID and target not in names
        )
        return {key: (kind, target) for key, (kind, target) in found.items() if target in names}

    def xml(self, part: str | None) -> Any:
        """Return the root element of a part (lxml); no entity of it is resolved."""
        return xml(self._archive.read(part or ""))

    def elements(self, part: str | None, name: str) -> Iterator[Any]:
        """Yield the elements of a name in a part, one at a time in memory; nothing for None."""
        from lxml import etree  # type: ignore[import-untyped]

        if part is None:
            return
        with self._archive.open(part) as file:
            for _, element in etree.iterparse(file, events=("end",), tag=f"{{*}}{name}", **_SAFE):
                yield element
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]


def xml(data: bytes) -> Any:
    """Return the root element of an XML file (lxml); no entity of it is resolved. What is none raises a SyntaxError."""
    from lxml import etree

    return etree.fromstring(data, etree.XMLParser(**_SAFE))


def drawn_lines(element: Any) -> Iterator[str]:
    """Yield the paragraphs of a drawing that are not empty, with their numbers (DrawingML, ECMA-376 part 1, 21.1.2)."""
    counts, body = dict[int, tuple[tuple[str, str], int]](), None
    for paragraph in element.iter("{*}p"):
        if body is not paragraph.getparent():
            counts, body = {}, paragraph.getparent()
        marks, line = {"t": None, "br": " ", "tab": "\t"}, TextLine()
        for one in paragraph.iter("{*}t", "{*}br", "{*}tab"):
            look = child(one.getparent(), "rPr")
            shift, strike = attribute(look, "baseline"), attribute(look, "strike")
            below, above = shift.startswith("-"), integer(look, "baseline", 0) > 0
            latin, private = (attribute(child(look, name), "typeface") for name in ("latin", "sym"))
            said = glyphs(marks[local_name(one)] or one.text or "", latin, private)
            line.add(said, above=above, below=below, struck=strike in ("sngStrike", "dblStrike"))
        if text := line.text.strip():
            yield _number(paragraph, counts) + text


_NUMBERS = {
    **{"arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter"},
    **{"romanLc": "lowerRoman", "romanUc": "upperRoman"},
}
_NUMBER = re.compile(rf"({'|'.join(_NUMBERS)})(Period|ParenR|ParenBoth|Plain)")
_AROUND = {"Period": "{}. ", "ParenR": "{}) ", "ParenBoth": "({}) ", "Plain": "{} "}


def _number(paragraph: Any, counts: dict[int, tuple[tuple[str, str], int]]) -> str:
    """Return the number of a paragraph that has one, or a bullet that says something (21.1.2.4).

    `counts` has the kinds of numbers of its text so far, by level, and how far they have come.
    """
    look = child(paragraph, "pPr")
    level, numbering = integer(look, "lvl", 0), child(look, "buAutoNum")
    kind = attribute(numbering, "type"), attribute(numbering, "startAt")
    for other in [one for one in counts if one > level or (one == level and counts[one][0] != kind)]:
        del counts[other]
    if numbering is None:
        sign = bullet(attribute(child(look, "buChar"), "char"), attribute(child(look, "buFont"), "typeface"))
        return "" if sign == "•" else f"{sign} "
    count = counts.get(level, (kind, integer(numbering, "startAt", 1) - 1))[1] + 1
    counts[level] = kind, count
    found = _NUMBER.match(kind[0])
    style, around = found.groups() if found else ("arabic", "Period")
    return _AROUND[around].format(counted(count, _NUMBERS[style]))


TENTH_OF_PAGE = 62
"""Square centimetres of a tenth of an A4 page: a smaller picture is rarely a scan, or a copy of a passport."""
_UNITS = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72, "px": 2.54 / 96}
_SIZE = re.compile(r"(?:^|;)\s*(width|height)\s*:\s*([0-9.]{1,20}[a-z]{2})")


def centimetres(size: str) -> float:
    """Return a size that has its unit, in centimetres; 0: it has another, or none."""
    try:
        return float(size[:-2]) * _UNITS.get(size[-2:], 0.0)
    except ValueError:
        return 0.0


def not_read(root: Any, large: float = TENTH_OF_PAGE * 360_000**2) -> Counter[str]:
    """Return what a part draws, or has from other programs, that is not in its text.

    A picture counts from so many square EMU on: it may be a page.
    """
    found = Counter[str]()
    for one in root.iter("{*}graphicData", "{*}OLEObject", "{*}oleObj", "{*}altChunk", "{*}subDoc"):
        name = local_name(one)
        kind = attribute(one, "uri").rpartition("/")[2]
        if name != "graphicData":
            found["embedded document" if name in ("altChunk", "subDoc") else "embedded object"] += 1
        elif (drawn := kind.removesuffix("ex")) in ("chart", "diagram"):
            found[drawn] += 1
    for one in root.iter("{*}pic"):
        found["large picture"] += _area(one) >= large
    for one in root.iter("{*}imagedata"):  # of VML, which is the older form of a picture, or an object's preview
        if next(one.iterancestors("{*}Fallback", "{*}object"), None) is None:
            sides = dict(_SIZE.findall(attribute(one.getparent(), "style")))
            area = math.prod(centimetres(sides.get(side, "")) for side in ("width", "height"))
            found["large picture"] += area >= TENTH_OF_PAGE
    return found


_COLUMN, _ROW = 609_600, 190_500
"""EMU of a column and a row of a sheet that have no size of their own."""


def _area(picture: Any) -> float:
    """Return the size of a picture in square EMU; infinite: it has that of its place on a layout."""
    around = next(picture.iterancestors("{*}oneCellAnchor", "{*}twoCellAnchor", "{*}inline", "{*}anchor"), ())
    for size in (*picture.iter("{*}ext"), *(one for one in around if local_name(one) in ("ext", "extent"))):
        if area := integer(size, "cx", 0) * integer(size, "cy", 0):
            return area
    first, last = child(around, "from"), child(around, "to")
    if first is None or last is None:
        return math.inf
    places = ([int(getattr(child(one, name), "text", 0)) for one in (first, last)] for name in ("col", "row"))
    return math.prod(end - start for start, end in places) * _COLUMN * _ROW


@contextmanager
def opened(stream: BinaryIO, request: ParseRequest, kind: str, suffix: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive of XML parts while it is read, by a parser of `kind` of files with a suffix.

    Raises SourceError: as `check_archive`; ``broken`` where a part is missing or no XML, or nests too deeply.
    """
    file = seekable(stream)
    check_archive(file, request, kind, suffix)
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (LookupError, ValueError, StopIteration, SyntaxError, RuntimeError, zipfile.BadZipFile) as error:
        raise SourceError("broken", f"it is no {kind}, or a damaged one; save it again as {suffix}") from error


def check_archive(file: BinaryIO, request: ParseRequest, kind: str, suffix: str) -> None:
    """Refuse an Office file, open at its start, that is none of its kind, or would inflate out of all proportion.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
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


def local_name(element: Any) -> str:
    """Return an element's name without its namespace."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def child(element: Any, name: str) -> Any:
    """Return the first child of a name; None: there is none."""
    return None if element is None else next((one for one in element if local_name(one) == name), None)


def integer(element: Any, name: str, default: int) -> int:
    """Return an attribute of at most nine digits without regard to its namespace, or the default."""
    value = attribute(element, name)
    return int(value) if value.isdigit() and len(value) < 10 else default


def is_on(switch: Any) -> bool:
    """Whether a switch is there and is not set to off (ECMA-376 part 1, 17.17.4)."""
    return switch is not None and attribute(switch, "val") not in ("0", "false", "off")


def attribute(element: Any, name: str) -> str:
    """Return an attribute without regard to its namespace; empty: there is none."""
    if element is None:
        return ""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")
