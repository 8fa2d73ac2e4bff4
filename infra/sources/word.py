"""Word documents (.docx): what a reader of the printed document sees, from the XML of its parts (ECMA-376).

Tracked insertions count and deletions do not. Notes, comments and text boxes follow the paragraph that has their mark;
headers stand before the body and footers after it, each once. Numbers of lists are computed as Word shows them, so that
"Breach of 2.2" has its target. A content control that is bound to data says what the data says, as in Word.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, TextLine, counted, unread, within
from infra.sources.decoding import bullet, clean, glyphs
from infra.sources.office import OfficeArchive, attribute, child, integer, is_on, local_name, not_read, opened

_MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_HIDDEN = frozenset(
    {"del", "moveFrom", "delText", "instrText", "pPr", "rPr", "sdtPr", "sdtEndPr", "tblPr", "rt", "fldData"}
)
_BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_WORDS = frozenset({"t", "sym", *_BREAKS})
_MATH = {"f": "", "num": "", "den": "/", "sup": "^", "sub": "_", "lim": "_", "rad": "√", "d": ""}
"""Parts of equations (22.1), and what stands before each on a line."""
_BETWEEN = {"deg": "&", "e": "&", "mr": "@"}
"""What stands after a part of a root or matrix, and before the next, as Word writes them on a line."""
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes", "commentReference": "comments"}
_NOTE_LABELS = {"footnotes": "Footnote", "endnotes": "Endnote", "comments": "Comment"}
_TICKED, _EMPTY = "☒", "☐"
_NUMBERING = re.compile("AUTONUM|LISTNUM")
"""Fields (17.16.5) that Word numbers itself, without a result in the file."""
_CODE = re.compile("[0-9A-Fa-f]{1,4}")
_MOST_COLUMNS = 63
"""Columns of a table in Word."""
_MOST_LEVELS = 9
_PROPERTIES = {
    "core-properties": "{6C3C8BC8-F283-45AE-878A-BAB7291924A1}",
    "extended-properties": "{6668398D-A668-4E3E-A5EB-62B293D839F1}",
}
"""Kinds of parts to which Word binds content controls by names of its own."""
_PREFIX = re.compile(r"""xmlns:([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_KEPT = ("{*}sdt", "{*}delText", "{*}moveFrom", "{*}blip", "{*}tr")
"""Parts of a content control that its data cannot stand for: controls, tracked changes, pictures, tables."""
_LIFTED = 4
"""Half points from which on a run that is lifted is raised; a lesser shift is for the eye."""


def parse_docx(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text; the title is the one of the core properties.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    with opened(stream, request, "Word document", ".docx") as archive:
        document = _Document(OfficeArchive(archive))
        text = "\n".join(within(request.allowance, document.lines()))
        document.not_read["unreadable letter"] = text.count("\ufffd")
    yield Parsed(clean(text), clean(document.title), _MEDIA_TYPE, warnings=unread(document.not_read))


class _Document:
    """The parts of a file, and the text of them in order."""

    def __init__(self, archive: OfficeArchive) -> None:
        self._archive, self.title = archive, archive.title()
        self.not_read = archive.not_read
        """Parts that are not in the lines so far."""
        self._parts = archive.related(archive.main)
        self._data = cache(archive.xml)
        self._numbers = _Numbers(self._of_kind("numbering"), self._of_kind("styles"))
        self._notes = {kind: {attribute(one, "id"): one for one in self._of_kind(kind)} for kind in _NOTE_LABELS}

    def lines(self) -> Iterator[str]:
        body = self._xml(self._archive.main)
        self.not_read.update(not_read(body))
        for note in (one for notes in self._notes.values() for one in notes.values()):
            self.not_read.update(not_read(note))
        codes = "".join((one.text or "") + attribute(one, "instr") for one in body.iter("{*}instrText", "{*}fldSimple"))
        self.not_read["automatic number"] = len(_NUMBERING.findall(codes))
        self.not_read["form control"] = sum(kind == "control" for kind, _ in self._parts.values())
        self.not_read["formula"] = len(re.findall(r"\bEQ\s", codes))
        beside = [self._parts.get(name, ("", "")) for name in self._printed_beside(body)]
        for kind in ("header", "", "footer"):
            if not kind:
                yield from _Text(self._numbers, self._notes).blocks(body)
            for part in (path for found, path in beside if found and found == kind):
                printed = self._xml(part)
                self.not_read.update(not_read(printed))
                lines = _Text(self._numbers, self._notes).blocks(printed)
                yield from (line for line in lines if line.strip())

    def _printed_beside(self, body: Any) -> list[str]:
        """Return the ids of the headers and footers that are printed: others stay in a file that were switched off."""
        kinds = {"default"} | ({"even"} if is_on(child(self._of_kind("settings"), "evenAndOddHeaders")) else set())
        given, used = dict[tuple[str, str], str](), list[str]()
        for section in (one for one in body.iter() if local_name(one) == "sectPr"):
            own = [one for one in section if local_name(one) in ("headerReference", "footerReference")]
            given |= {(local_name(one), attribute(one, "type")): attribute(one, "id") for one in own}
            printed = kinds | ({"first"} if is_on(child(section, "titlePg")) else set())
            used += [name for (_, kind), name in given.items() if (kind or "default") in printed]
        return list(dict.fromkeys(used))

    def _of_kind(self, kind: str) -> Any:
        part = next((path for found, path in self._parts.values() if found == kind), None)
        return self._xml(part) if part is not None else ()

    def _xml(self, part: str) -> Any:
        """Return a part's root in which each content control says what it is bound to (17.5.2.6)."""
        root = self._archive.xml(part)
        for control in root.iter("{*}sdt"):
            binding = child(child(control, "sdtPr"), "dataBinding")
            if binding is not None and (said := self._bound(binding)) is not None:
                _fill(control, said)
        return root

    def _bound(self, binding: Any) -> str | None:
        """Return what the data of a binding says; None: there is no such data."""
        from lxml import etree  # type: ignore[import-untyped]

        store = attribute(binding, "storeItemID").upper()
        mappings = _PREFIX.findall(attribute(binding, "prefixMappings"))
        names = {prefix: double or single for prefix, double, single in mappings}
        with suppress(etree.XPathError, SyntaxError):
            for part in (path for name, path in self._stores if not store or name == store):
                found = self._data(part).xpath(attribute(binding, "xpath"), namespaces=names)
                if isinstance(found, list) and found:
                    if isinstance(found[0], str):  # of an attribute
                        return found[0]
                    return found[0].text if not len(found[0]) else None
        return None

    @cached_property
    def _stores(self) -> list[tuple[str, str]]:
        """The ids and paths of the parts that content controls can be bound to."""
        top = self._archive.related("").values()
        found = [(_PROPERTIES[kind], path) for kind, path in top if kind in _PROPERTIES]
        for path in (path for kind, path in self._parts.values() if kind == "customXml"):
            own = [one for kind, one in self._archive.related(path).values() if kind == "customXmlProps"]
            found.append((attribute(self._data(own[0]), "itemID").upper() if own else "", path))
        return found


def _fill(control: Any, said: str) -> None:
    """Have a content control say what its data says, in the words of its list or box."""
    look, content = child(control, "sdtPr"), child(control, "sdtContent")
    words = list(content.iter(*(f"{{*}}{name}" for name in _WORDS))) if content is not None else []
    box, day = child(look, "checkbox"), child(look, "date")
    if box is not None:
        ticked = said.strip() in ("1", "true")
        said, same = _TICKED if ticked else _EMPTY, ticked == is_on(child(box, "checked"))
    else:
        choices = {attribute(one, "value"): attribute(one, "displayText") for one in look.iter("{*}listItem")}
        said = choices.get(said) or said
        shown = "".join(one.text or "" for one in words)
        if day is not None and _DAY.match(said):
            said, shown = said[:10], attribute(day, "fullDate")[:10]  # shown in a format of its own
        same = not said or "".join(said.split()) == "".join(shown.split())
    if same or content is None or said.startswith("<?xml") or next(content.iter(*_KEPT), None) is not None:
        return
    holders = [one.getparent() for one in words]
    for holder, one in zip(holders, words, strict=True):
        holder.remove(one)
    run = next((one for one in holders if local_name(one) == "r"), next(content.iter("{*}r"), None))
    space = content.tag.removesuffix("sdtContent")
    if run is None:
        run = content.makeelement(f"{space}r")
        next(content.iter("{*}p"), content).append(run)
    run.append(content.makeelement(f"{space}t"))
    run[-1].text = said


class _Text:
    """The text of one part. Notes and text boxes wait for the end of the paragraph that has their mark."""

    def __init__(self, numbers: "_Numbers", notes: dict[str, dict[str, Any]]) -> None:
        self._numbers, self._notes = numbers, notes
        self._fields: list[str] = []
        """Fields that are open, the innermost last: ``code`` before its result, ``result`` in it."""
        self._asides: list[str] = []
        self._joined = ""
        """Text of a paragraph whose end was deleted: it goes on in the next one."""
        self._style = ""
        """Of the paragraph."""

    def blocks(self, element: Any) -> Iterator[str]:
        for part in element:
            name = local_name(part)
            if name == "p":
                yield from self._paragraph(part)
            elif name == "tbl":
                joined, self._joined = self._joined, ""
                yield from [joined] if joined else []
                yield from self._table(part)
            elif name == "AlternateContent":
                yield from self.blocks(_chosen(part))
            elif name not in _HIDDEN:
                yield from self.blocks(part)
        if self._joined:
            yield self._joined
            self._joined = ""

    def _paragraph(self, paragraph: Any) -> Iterator[str]:
        settings = child(paragraph, "pPr")
        words = TextLine()
        self._style = attribute(child(settings, "pStyle"), "val")
        self._inline(paragraph, words)
        text = self._joined + words.text
        self._fields = [state for state in self._fields if state != "code"]  # a damaged field must not swallow the rest
        mark = child(settings, "rPr")
        hidden = is_on(child(mark, "vanish")) and not text
        large = attribute(child(settings, "framePr"), "dropCap") not in ("", "none")  # its first letter, alone
        if hidden or large or child(mark, "del") is not None or child(mark, "moveFrom") is not None:
            self._joined = text  # without a number: the paragraph in which it goes on has one
            return
        self._joined = ""
        yield self._numbers.next(settings) + text
        asides, self._asides = self._asides, []
        yield from asides

    def _inline(self, element: Any, words: TextLine) -> None:
        for part in element:
            name = local_name(part)
            if name in _HIDDEN:
                continue
            if name == "r" and self._has(part, "vanish"):  # it is hidden
                self._inline(part, TextLine())  # for the fields that begin and end in it
            elif name == "fldChar":
                self._field(part, words)
            elif name in _NOTES:
                self._note(_NOTES[name], attribute(part, "id"))
            elif name == "txbxContent":
                lines = _Text(self._numbers, self._notes).blocks(part)
                self._asides += [line for line in lines if line.strip()]
            elif name == "AlternateContent":
                self._inline(_chosen(part), words)
            elif name in _MATH:
                own = TextLine()
                self._inline(part, own)
                stacked = name == "den" and attribute(child(child(element, "fPr"), "type"), "val") == "noBar"
                sign = " choose " if stacked else _MATH[name]
                words.add(sign + _bracketed(own.text, part) if own.text else "")
                words.gap = True
            elif name in ("acc", "bar"):
                own = TextLine()
                self._inline(part, own)
                words.add("".join(char + _accent(part) for char in own.text))
            elif name == "r":
                run = TextLine()
                self._inline(part, run)
                place = attribute(self._given(part, "vertAlign"), "val")
                above = place == "superscript" or integer(self._given(part, "position"), "val", 0) >= _LIFTED
                strike = self._has(part, "strike", "dstrike")
                words.add(run.text, above=above, below=place == "subscript", struck=strike)
                words.gap |= run.gap
            elif name == "textpath":  # a watermark, or other lettering
                self._asides += filter(None, [attribute(part, "string")])
            elif name not in _WORDS:
                if name == "nary":
                    words.add(attribute(child(child(part, "naryPr"), "chr"), "val") or "∫")
                start = len(words)
                self._inline(part, words)
                words.gap |= name == "inline"  # a picture
                after = part.getnext() if name in _BETWEEN and len(words) > start else None
                if after is not None and local_name(after) in (name, "e"):
                    set_apart = attribute(child(child(element, "dPr"), "sepChr"), "val") or "|"
                    words.add(set_apart if local_name(element) == "d" else _BETWEEN[name])
            elif "code" not in self._fields:
                words.add(self._word(part))

    def _word(self, element: Any) -> str:
        if local_name(element) == "sym":
            code = attribute(element, "char")
            return glyphs(chr(int(code, 16)) if _CODE.fullmatch(code) else "\ufffd", attribute(element, "font"))
        if element.tag.endswith("}t"):
            given = None if "math}" in element.tag else self._given(element.getparent(), "rFonts")
            return glyphs(element.text or "", attribute(given, "ascii"))
        return _BREAKS[local_name(element)]

    def _given(self, run: Any, setting: str) -> Any:
        return self._numbers.given(child(run, "rPr"), setting, self._style)

    def _has(self, run: Any, *switches: str) -> bool:
        return any(is_on(self._given(run, switch)) for switch in switches)

    def _field(self, mark: Any, words: TextLine) -> None:
        kind = attribute(mark, "fldCharType")
        if kind == "begin":
            words.add(_form_value(mark))
            self._fields.append("code")
        elif kind == "separate" and self._fields:
            self._fields[-1] = "result"
        elif kind == "end" and self._fields:
            self._fields.pop()

    def _note(self, kind: str, number: str) -> None:
        note = self._notes[kind].get(number)
        if note is not None:
            text = " ".join(line.strip() for line in _Text(self._numbers, self._notes).blocks(note) if line.strip())
            self._asides += [f"{_NOTE_LABELS[kind]}: {text}"] if text else []

    def _table(self, table: Any) -> Iterator[str]:
        """Yield a table's rows; a cell that is merged over several rows stands in each of them."""
        above: dict[int, str] = {}
        for row in _inside(table, "tr"):
            settings = child(row, "trPr")
            if child(settings, "del") is not None:
                continue
            texts = [""] * min(integer(child(settings, "gridBefore"), "val", 0), _MOST_COLUMNS)
            local: dict[int, str] = {}
            for cell in _inside(row, "tc"):
                shape = child(cell, "tcPr")
                merge, column = child(shape, "vMerge"), len(texts)
                if merge is not None and attribute(merge, "val") in ("", "continue") and column in above:
                    text = above[column]
                else:
                    lines = " ".join(line for line in self.blocks(cell) if line.strip())
                    text = re.sub(r"[\t\n]", " ", lines)  # else they, or a table in it, would be cells of this one
                local[column] = text
                span = min(max(integer(child(shape, "gridSpan"), "val", 1), 1), _MOST_COLUMNS)
                texts += [text, *[""] * (span - 1)]
            yield "\t".join(texts).rstrip("\t")
            above = local


@dataclass(slots=True)
class _Level:
    """A level of a list: how its numbers look."""

    format: str
    text: str
    start: int
    style: str
    legal: bool
    glue: str
    restart: int
    """Levels after whose numbers it begins anew, from the first one on."""


@dataclass(slots=True)
class _List:
    levels: dict[int, _Level]
    counts: dict[int, int] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)


class _Numbers:
    """The styles, and the numbers that Word writes before paragraphs of lists (ECMA-376 part 1, 17.9)."""

    def __init__(self, numbering: Iterable[Any], styles: Iterable[Any]) -> None:
        self._lists: dict[str, _List] = {}
        self._abstract: dict[str, str] = {}
        """A list's number -> the definition that it shares with others."""
        self._starts: dict[str, dict[int, int]] = {}
        self._own: dict[str, dict[int, _Level]] = {}
        """The levels that a list defines for itself, by its number."""
        self._styles = {attribute(one, "styleId"): one for one in styles if local_name(one) == "style"}
        self._of_letters: dict[str, dict[str, Any]] = {}
        links: dict[str, str] = {}
        for one in numbering:
            if local_name(one) == "abstractNum":
                key = attribute(one, "abstractNumId")
                self._lists[key] = _List({_number_of(level): _level(level) for level in _inside(one, "lvl")})
                if (link := child(one, "numStyleLink")) is not None:
                    links[key] = attribute(link, "val")
            elif local_name(one) == "num":
                number = attribute(one, "numId")
                self._abstract[number] = attribute(child(one, "abstractNumId"), "val")
                self._starts[number] = {
                    _number_of(over): integer(child(over, "startOverride"), "val", 1)
                    for over in _inside(one, "lvlOverride")
                    if child(over, "startOverride") is not None
                }
                own = (level for over in _inside(one, "lvlOverride") for level in _inside(over, "lvl"))
                self._own[number] = {_number_of(level): _level(level) for level in own}
        for key, style in links.items():  # a definition may stand for that of a style
            number = attribute(child(child(child(self._styles.get(style), "pPr"), "numPr"), "numId"), "val")
            self._lists[key] = self._lists.get(self._abstract.get(number, ""), self._lists[key])

    def next(self, settings: Any) -> str:
        """Return the number of the next paragraph, with what stands between it and the text; empty: it has none."""
        number, depth = self._place(settings)
        found = self._lists.get(self._abstract.get(number, ""))
        levels = {**found.levels, **self._own.get(number, {})} if found is not None else {}
        if found is None or depth not in levels:
            return ""
        counts, level = found.counts, levels[depth]
        override = self._starts[number].get(depth)
        if override is not None and f"{number} {depth}" not in found.begun:
            found.begun.add(f"{number} {depth}")
            counts[depth] = override
        else:
            counts[depth] = counts[depth] + 1 if depth in counts else level.start
        for deeper in [one for one in counts if one > depth]:
            if deeper not in levels or depth < levels[deeper].restart:
                del counts[deeper]
        if level.format == "bullet":
            return f"{level.text}{level.glue}"
        text = level.text
        for above in range(depth + 1):
            upper = levels.get(above, level)
            count = counts.setdefault(above, upper.start)
            form = "decimal" if level.legal and "decimal" not in upper.format else upper.format
            text = text.replace(f"%{above + 1}", counted(count, form, doubled=True))
        return f"{text}{level.glue}" if text else ""

    def given(self, settings: Any, name: str, paragraph: str) -> Any:
        """Return a setting of letters (17.3.2) of a run, by itself or by its style or the paragraph's; None: none."""
        if (own := child(settings, name)) is not None and _sets(own):
            return own
        of_run, of_paragraph = map(self._letters, (attribute(child(settings, "rStyle"), "val"), paragraph))
        return of_run.get(name, of_paragraph.get(name))

    def _letters(self, style: str) -> dict[str, Any]:
        """Return a style's settings of letters, and those of the styles that it is based on."""
        if style not in self._of_letters:
            parts = [part for name in self._family(style) for part in self._styles[name] if local_name(part) == "rPr"]
            self._of_letters[style] = {local_name(one): one for part in reversed(parts) for one in part if _sets(one)}
        return self._of_letters[style]

    def _place(self, settings: Any) -> tuple[str, int]:
        """Return a paragraph's list and level, by itself or by its style; an empty name: none."""
        given = child(settings, "numPr")
        level = child(given, "ilvl")
        if number := attribute(child(given, "numId"), "val"):
            return number, integer(level, "val", 0)
        style, is_own = attribute(child(settings, "pStyle"), "val"), level is not None
        for name in self._family(style):
            of_style = child(child(self._styles[name], "pPr"), "numPr")
            level = child(of_style, "ilvl") if level is None else level
            if number := attribute(child(of_style, "numId"), "val"):
                levels = self._lists.get(self._abstract.get(number, ""), _List({})).levels
                named = (depth for depth, one in levels.items() if one.style == style and not is_own)
                return number, next(named, integer(level, "val", 0))
        return "", 0

    def _family(self, style: str) -> Iterator[str]:
        seen: set[str] = set()
        while style in self._styles and style not in seen:
            seen.add(style)
            yield style
            style = attribute(child(self._styles[style], "basedOn"), "val")


def _sets(setting: Any) -> bool:
    """Whether a setting of letters says something of ours: one of fonts may name those of other scripts alone."""
    return local_name(setting) != "rFonts" or bool(attribute(setting, "ascii") or attribute(setting, "asciiTheme"))


def _level(element: Any) -> _Level:
    # Formats of later versions have a choice: the first is what Word shows.
    written, text = next(element.iter("{*}numFmt"), None), attribute(child(element, "lvlText"), "val")
    form = attribute(written, "val") or "decimal"
    form = attribute(written, "format").partition(",")[0] if form == "custom" else form  # 001, 002, 003, ...
    return _Level(
        format=form,
        text=bullet(text, attribute(child(child(element, "rPr"), "rFonts"), "ascii")) if form == "bullet" else text,
        start=integer(child(element, "start"), "val", 0),
        style=attribute(child(element, "pStyle"), "val"),
        legal=child(element, "isLgl") is not None,
        glue="" if attribute(child(element, "suff"), "val") == "nothing" else " ",
        restart=integer(child(element, "lvlRestart"), "val", _MOST_LEVELS),
    )


def _number_of(level: Any) -> int:
    value = attribute(level, "ilvl")
    return int(value) if value.isdigit() and int(value) < _MOST_LEVELS else 0


def _accent(element: Any) -> str:
    """Return what stands over or under letters of an equation, as a combining character (22.1.2.2 and 22.1.2.8)."""
    name = local_name(element)
    settings, usual = child(element, f"{name}Pr"), "\u0302" if name == "acc" else "\u0332"
    usual = "\u0305" if attribute(child(settings, "pos"), "val") == "top" else usual
    return unicodedata.normalize("NFKD", attribute(child(settings, "chr"), "val") or usual)[-1]


def _bracketed(said: str, part: Any) -> str:
    """Return a part of an equation in its brackets; one that is no delimiter has them unless it is short."""
    if local_name(part) != "d":
        return said if len(said) == 1 or said.replace(".", "").isdecimal() else f"({said})"
    given = [child(child(part, "dPr"), name) for name in ("begChr", "endChr")]
    left, right = (attribute(one, "val") if one is not None else usual for one, usual in zip(given, "()", strict=True))
    return f"{left}{said}{right}"


def _form_value(mark: Any) -> str:
    """Return what an old form field shows that has no result of its own: a check box, the choice of a list."""
    form = child(mark, "ffData")
    if (box := child(form, "checkBox")) is not None:
        state = child(box, "checked")
        return _TICKED if is_on(state if state is not None else child(box, "default")) else _EMPTY
    if (choice := child(form, "ddList")) is not None:
        entries = [attribute(one, "val") for one in choice if local_name(one) == "listEntry"]
        index = integer(child(choice, "result"), "val", 0)
        return entries[index] if index < len(entries) else ""
    return ""


def _chosen(alternatives: Any) -> Any:
    """Return the newer of two forms of the same content, unless only the older one has text."""
    choices = [one for one in alternatives if local_name(one) in ("Choice", "Fallback")]
    with_text = (one for one in choices if any(local_name(part) in ("t", "sym") for part in one.iter()))
    return next(with_text, choices[0] if choices else ())


def _inside(element: Any, name: str) -> Iterator[Any]:
    """Yield the elements of a name, also those in content controls, custom XML or tracked insertions around them."""
    for part in element:
        if local_name(part) == name:
            yield part
        elif local_name(part) in ("sdt", "sdtContent", "customXml", "ins", "moveTo"):
            yield from _inside(part, name)
