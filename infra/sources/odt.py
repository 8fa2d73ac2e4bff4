"""OpenDocument texts (.odt): what a reader of the printed document sees (OpenDocument 1.3 part 3).

As for Word: inserted text counts and deleted text does not, notes follow their paragraph, headers stand before the body
and footers after it, and numbers of lists are computed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, TextLine, counted, unread, within
from infra.sources.decoding import bullet, clean, glyphs
from infra.sources.office import TENTH_OF_PAGE, attribute, centimetres, child, integer, local_name, opened, xml
from memagent.errors import SourceError

_MEDIA_TYPE = "application/vnd.oasis.opendocument.text"
_HIDDEN = frozenset(
    "tracked-changes sequence-decls variable-decls user-field-decls forms hidden-text ruby-text script desc".split()
)
_BREAKS = {"tab": "\t", "line-break": "\n"}
_SHAPES = (
    "text-box custom-shape rect line polyline polygon regular-polygon path circle ellipse connector caption".split()
)
_ASIDES = {"note": "Footnote", "annotation": "Comment"} | dict.fromkeys(_SHAPES, "")
_FORMATS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman", "": "none"}
_MOST_REPEATED = 63
"""Cells and blanks that one element may stand for."""


def parse_odt(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text; the title is the one of the metadata.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    with opened(stream, request, "OpenDocument text", ".odt") as archive:
        if b"manifest:encryption-data" in archive.read("META-INF/manifest.xml"):
            raise SourceError("encrypted", "it asks for a password; save it without one")
        parts = {name: xml(archive.read(name)) for name in _PARTS if name in archive.namelist()}
        body = next(parts["content.xml"].iterfind("{*}body/{*}text"))
        text = "\n".join(within(request.allowance, _lines(body, parts)))
        title = next((one.text or "" for one in parts.get("meta.xml", body).iter(_TITLE)), "")
        left_out = _not_read(body) + Counter({"unreadable letter": text.count("\ufffd")})
    yield Parsed(clean(text), clean(title), _MEDIA_TYPE, warnings=unread(left_out))


_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_PARTS = ("content.xml", "styles.xml", "meta.xml")


def _lines(body: Any, parts: dict[str, Any]) -> Iterator[str]:
    own, others = (list(parts[name].iter()) if name in parts else [] for name in ("content.xml", "styles.xml"))
    values = dict(_form_value(one) for forms in body.iter("{*}forms") for one in forms.iter("*"))
    numbers = _Numbers([*others, *own])
    beside = [one for page in _used_pages([*others, *own]) for one in page if attribute(one, "display") != "false"]
    for kind in ("header", "body", "footer"):
        styles = [*others, *own] if kind == "body" else others  # automatic styles of the two have the same names
        for part in [body] if kind == "body" else [one for one in beside if local_name(one).startswith(kind)]:
            lines = _Text(numbers, _Looks(styles), values).blocks(part)
            yield from lines if kind == "body" else (line for line in lines if line.strip())


def _used_pages(elements: list[Any]) -> list[Any]:
    """Return the kinds of pages that are used: a file keeps the headers of others."""
    pages = {attribute(one, "name"): one for one in elements if local_name(one) == "master-page"}
    left = [attribute(one, "master-page-name") for one in elements] + list(pages)[:1]
    used = set[str]()
    while left:
        if (name := left.pop()) in pages and name not in used:
            used.add(name)
            left.append(attribute(pages[name], "next-style-name"))
    return [page for name, page in pages.items() if name in used]


def _form_value(control: Any) -> tuple[str, str]:
    """Return the id of a form's control, and what it shows."""
    kind, said = local_name(control), attribute(control, "current-value") or attribute(control, "value")
    if kind in ("checkbox", "radio"):
        ticked = "checked" in (attribute(control, "current-state"), attribute(control, "state"))
        chosen = ticked or attribute(control, "current-selected") == "true"
        said = f"{'☒' if chosen else '☐'} {attribute(control, 'label')}".strip()
    elif kind == "listbox":
        said = ", ".join(attribute(one, "label") for one in control if attribute(one, "current-selected") == "true")
    elif kind == "fixed-text":
        said = attribute(control, "label")
    return attribute(control, "id"), "" if kind in ("hidden", "password", "button", "file") else said


def _old_form_value(mark: Any) -> str:
    """Return what a form field of Word shows, as LibreOffice keeps it: a check box, the choice of a list."""
    given = [(attribute(one, "name"), attribute(one, "value")) for one in mark]
    if attribute(mark, "type").endswith("FORMCHECKBOX"):
        return "☒" if ("Checkbox_Checked", "true") in given else "☐"
    entries = [value for name, value in given if name == "Dropdown_ListEntry"]
    return next((one for index, one in enumerate(entries) if ("Dropdown_Selected", str(index)) in given), "")


def _not_read(body: Any) -> Counter[str]:
    """Count objects of other programs, and pictures of a tenth of a page: charts and formulas are objects, too."""
    found = Counter[str]()
    for frame in body.iter("{*}frame"):
        if next(frame.iter("{*}object", "{*}object-ole"), None) is not None:
            found["embedded object"] += 1
        elif next(frame.iter("{*}image"), None) is not None:
            size = centimetres(attribute(frame, "width")) * centimetres(attribute(frame, "height"))
            found["large picture"] += size >= TENTH_OF_PAGE
    return found


class _Looks:
    """How letters look by the style of a paragraph or of words: hidden, struck through, raised (16.29.8 and 20.331)."""

    def __init__(self, styles: Iterable[Any]) -> None:
        kept = [one for one in styles if local_name(one) in ("style", "font-face")]
        self._styles = {(attribute(one, "family"), attribute(one, "name")): one for one in kept}
        """The faces of fonts have no family of styles."""
        self.of = cache(self._of)

    def _of(self, name: str, family: str, depth: int = 0) -> dict[str, str]:
        style = self._styles.get((family, name))
        if style is None or depth > _MOST_STYLES:
            return {}
        shape = child(style, "text-properties")
        own = {key: value for key in _TELLING if (value := attribute(shape, key))}
        if kind := attribute(shape, "text-line-through-type"):  # which alone strikes, too
            own.setdefault("text-line-through-style", kind)
        if "font-name" in own:
            face = self._styles.get(("", own["font-name"]))
            own["font-name"] = attribute(face, "font-family").strip("'") or own["font-name"]
        return {**self._of(attribute(style, "parent-style-name"), family, depth + 1), **own}

    def is_unlisted(self, name: str) -> bool:
        """Whether a paragraph's automatic style takes it out of the outline."""
        style = self._styles.get(("paragraph", name))
        if style is None or local_name(style.getparent()) != "automatic-styles":
            return False
        return any(key.endswith("}list-style-name") and not value for key, value in style.attrib.items())


_TELLING = ("display", "text-line-through-style", "text-position", "font-name")
_MOST_STYLES = 20
"""Styles that are based one on another."""


class _Text:
    def __init__(self, numbers: "_Numbers", looks: _Looks, values: Mapping[str, str]) -> None:
        self._numbers, self._looks, self._values = numbers, looks, values
        self._asides: list[str] = []

    def blocks(self, element: Any, listed: "_Place | None" = None) -> Iterator[str]:
        """Yield the lines of paragraphs, lists and tables; `listed` is the place of a paragraph in a list."""
        for part in element:
            name = local_name(part)
            if name in ("p", "h"):
                yield from self._paragraph(part, listed)
                listed = None if listed is None else replace(listed, numbered=False)
            elif name == "list":
                yield from self._list(part, listed)
            elif name == "table":
                yield from self._table(part)
            elif (
                name not in _HIDDEN and attribute(part, "display") != "none" and attribute(part, "is-hidden") != "true"
            ):
                yield from self.blocks(part)

    def _paragraph(self, paragraph: Any, listed: "_Place | None") -> Iterator[str]:
        words, look = TextLine(), self._looks.of(attribute(paragraph, "style-name"), "paragraph")
        hidden = any(attribute(one, "is-hidden") == "true" for one in paragraph.iter("{*}hidden-paragraph"))
        self._inline(paragraph, words, {**look, "display": "none"} if hidden else look)
        if words.text or not hidden:
            unlisted = listed is None and self._looks.is_unlisted(attribute(paragraph, "style-name"))
            numbered = attribute(paragraph, "is-list-header") != "true" and not unlisted
            number = self._numbers.next(paragraph, listed) if numbered else ""  # what a style hides counts as well
            yield from [number + words.text] if words.text or look.get("display") != "none" else []
        asides, self._asides = self._asides, []
        yield from asides

    def _inline(self, element: Any, words: TextLine, look: dict[str, str]) -> None:
        self._say(element.text, words, look)
        for part in element:
            name = "desc" if ":svg-" in str(part.tag) else local_name(part)  # a picture has a title that is not shown
            own = {**look, **self._looks.of(attribute(part, "style-name"), "text")}
            if name in _BREAKS:
                words.add(_BREAKS[name])
            elif name == "s":
                self._say(" " * min(integer(part, "c", 1), _MOST_REPEATED), words, look)
            elif name == "control":
                value, apart = self._values.get(attribute(part, "control")), (part.tail or "x")[0].isalnum()
                self._say(f"{value}{' ' * apart}" if value else "", words, look)
            elif name == "fieldmark":
                self._say(_old_form_value(part), words, look)
            elif name in _ASIDES:
                self._aside(part, _ASIDES[name])
            elif (
                name not in _HIDDEN
                and attribute(part, "display") != "none"
                and (own.get("display") != "none" or look.get("display") == "none")
            ):
                self._inline(part, words, own)
            self._say(part.tail, words, look)

    def _say(self, text: str | None, words: TextLine, look: dict[str, str]) -> None:
        if text and look.get("display") != "none":
            above, below = (re.match(sign, look.get("text-position", "")) for sign in ("super|[1-9]", "sub|-"))
            strike = look.get("text-line-through-style", "none") != "none"
            said = glyphs(" ".join(text.split("\n")), look.get("font-name", ""))
            words.add(said, above=bool(above), below=bool(below), struck=strike)

    def _aside(self, part: Any, label: str) -> None:
        body = child(part, "note-body") if label == "Footnote" else part
        lines = [
            line
            for line in _Text(self._numbers, self._looks, self._values).blocks(body if body is not None else ())
            if line
        ]
        if label and lines:
            kind = "Endnote" if attribute(part, "note-class") == "endnote" else label
            lines = [f"{kind}: {' '.join(line.strip() for line in lines)}"]
        self._asides += lines

    def _list(self, element: Any, above: "_Place | None") -> Iterator[str]:
        place = self._numbers.enter(element, above)
        for item in element:
            if local_name(item) in ("list-item", "list-header"):
                numbered = local_name(item) == "list-item"
                if numbered and attribute(item, "start-value"):
                    place.begin_at(integer(item, "start-value", 1))
                own = replace(place, style=attribute(item, "style-override") or place.style, numbered=numbered)
                yield from self.blocks(item, own)

    def _table(self, table: Any) -> Iterator[str]:
        """Yield a table's rows; a cell that is merged over several rows stands in each of them."""
        below: dict[int, tuple[int, str]] = {}
        for row in table.iter("{*}table-row"):
            if next(row.iterancestors("{*}table"), None) is not table:
                continue
            texts: list[str] = []
            for cell in row:
                if local_name(cell) == "covered-table-cell" and len(texts) in below:
                    left, said = below.pop(len(texts))
                    if left > 1:
                        below[len(texts)] = (left - 1, said)
                elif local_name(cell) in ("table-cell", "covered-table-cell"):
                    said = " ".join(re.sub(r"[\t\n]", " ", line) for line in self.blocks(cell) if line.strip())
                    if (tall := integer(cell, "number-rows-spanned", 1)) > 1:
                        below[len(texts)] = (tall - 1, said)
                else:
                    continue
                texts += [said] * min(integer(cell, "number-columns-repeated", 1), _MOST_REPEATED)
            yield "\t".join(texts).rstrip("\t")


@dataclass(frozen=True, slots=True)
class _Place:
    """A level of a list."""

    style: str
    level: int
    """From 1."""
    counts: dict[int, int]
    """By level: of the list and those within it, whatever their styles."""
    numbered: bool = True

    def begin_at(self, number: int) -> None:
        self.counts[self.level] = number - 1


@dataclass(slots=True)
class _Numbers:
    """The numbers of lists and headings (OpenDocument 1.3 part 3, 5.3 and 16.30 to 16.34)."""

    styles: list[Any]
    levels: dict[tuple[str, int], Any] = field(default_factory=dict)
    """By name of the list style, empty for headings, and level."""
    headings: dict[int, int] = field(default_factory=dict)
    """Their counts, by level."""
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """By style of a list: those of the last one."""
    of_lists: dict[str, dict[int, int]] = field(default_factory=dict)
    """The same by the ids of lists, which others go on with."""

    def __post_init__(self) -> None:
        for one in self.styles:
            if local_name(one) in ("list-style", "outline-style"):
                name = attribute(one, "name") if local_name(one) == "list-style" else ""
                self.levels |= {(name, integer(level, "level", 1)): level for level in one}

    def enter(self, element: Any, above: _Place | None) -> _Place:
        """Return the place in a list that begins; its numbers begin anew, unless it goes on with earlier ones."""
        style = attribute(element, "style-name") or (above.style if above else "")
        if above:
            return _Place(style, above.level + 1, above.counts)
        counts = self.of_lists.get(attribute(element, "continue-list"))
        if counts is None:
            counts = self.counts.get(style, {}) if attribute(element, "continue-numbering") == "true" else {}
        self.counts[style] = counts
        if name := attribute(element, "id"):
            self.of_lists[name] = counts
        return _Place(style, 1, counts)

    def next(self, paragraph: Any, listed: _Place | None) -> str:
        """Return the number of a paragraph, with the blank after it; empty: it has none."""
        if listed is None and local_name(paragraph) == "h":
            listed = _Place("", integer(paragraph, "outline-level", 1), self.headings)
            if attribute(paragraph, "restart-numbering") == "true":
                first = integer(self.levels.get(("", listed.level)), "start-value", 1)
                listed.begin_at(integer(paragraph, "start-value", first))
        level = self.levels.get((listed.style, listed.level)) if listed is not None and listed.numbered else None
        if listed is None or level is None:
            return ""
        counts = listed.counts
        counts[listed.level] = counts.get(listed.level, integer(level, "start-value", 1) - 1) + 1
        for deeper in [one for one in counts if one > listed.level]:
            del counts[deeper]
        if "bullet" in local_name(level) or "image" in local_name(level):
            font = attribute(child(level, "text-properties"), "font-name")
            return f"{bullet(attribute(level, 'bullet-char'), font)} "
        first = max(1, listed.level - integer(level, "display-levels", 1) + 1)
        shown = {}
        for one in range(1, listed.level + 1):
            upper = self.levels.get((listed.style, one), level)
            shown[one] = _counted(counts.setdefault(one, integer(upper, "start-value", 1)), upper)
        said = ".".join(number for one, number in shown.items() if one >= first and number)
        said = f"{attribute(level, 'num-prefix')}{said}{attribute(level, 'num-suffix')}"
        if pattern := attribute(level, "num-list-format"):  # of LibreOffice: %1%.%2%
            said = re.sub(r"%(\d)%", lambda found: shown.get(int(found[1]), ""), pattern)
        return f"{said} " if said.strip() else ""


def _counted(count: int, level: Any) -> str:
    """Write a count of a list; formats of other scripts (LibreOffice's ``А, Б, В``) are written as decimals."""
    name, doubled = attribute(level, "num-format").partition(",")[0], attribute(level, "num-letter-sync") == "true"
    return counted(count, _FORMATS.get(name, name), doubled=doubled)
