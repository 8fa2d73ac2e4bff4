"""HTML: the text that a browser shows, laid out by inscriptis; books of such pages (.epub, EPUB 3.3)."""

import posixpath
import re
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO
from urllib.parse import unquote

from inscriptis import Inscriptis
from inscriptis.css_profiles import STRICT_CSS_PROFILE
from inscriptis.model.attribute import DEFAULT_ATTRIBUTE_MAP
from inscriptis.model.config import ParserConfig
from inscriptis.model.css import CssParse
from inscriptis.model.html_element import HtmlElement
from inscriptis.model.table import Table, TableCell
from inscriptis.model.tag import CustomHtmlTagHandlerMapping
from inscriptis.model.tag.table_tag import table_start_handler

from infra.sources.base import Allowance, Parsed, ParseRequest, counted, raised, unread, within
from infra.sources.decoding import clean, decode, glyphs, guessed
from infra.sources.office import child, local_name, opened, xml
from infra.sources.style_sheets import (
    BULLET,
    RESET,
    ROOM,
    WAS,
    StyleRule,
    apply_styles,
    integer,
    list_style,
    style_rules,
)
from memagent.errors import SourceError

_CHARSET = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.I)
_NO_XML = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that browsers do not show, and no tree can hold."""
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_END_TAGS = re.compile(r"</(?:html|body)\s*>", re.I)
"""They may be left out, and browsers read what follows them as if they were; libxml2 drops it."""
_BREAK = re.compile(r"</br\s*>", re.I)
_NEWER_BLOCKS = re.compile(
    r"<(/?)(section|article|aside|nav|main|header|footer|hgroup|details|summary|dialog|search)(?=[\s/>])", re.I
)
"""Blocks that libxml2 does not know: a paragraph whose end is left out would go on in them."""
_STRUCK = re.compile(r"<(/?)(s|strike)(?=[\s/>])", re.I)
"""Elements that libxml2 ends before a paragraph in them, and browsers do not; as ``del`` they go on."""


def parse_html(
    stream: BinaryIO, request: ParseRequest, *, is_static: bool = False, styles: Sequence[StyleRule] = ()
) -> Iterator[Parsed]:
    """Yield the page's text; its ``<title>`` is the title.

    Args:
        is_static: of a mail or book, where no click shows what its style sheet hides: that is not read. The fonts of
            signs that the sheet sets count, too.
        styles: rules of other style sheets.

    Raises:
        SourceError: ``too-deep`` where libxml2 would drop what lies below its limit of nesting, ``bomb`` and
            ``too-large`` where the layout would make too much of it.
    """
    from lxml.etree import ParserError  # type: ignore[import-untyped]
    from lxml.html import HTMLParser, document_fromstring  # type: ignore[import-untyped]

    data = stream.read()
    declared = _CHARSET.search(data[:4096])
    source, encoding = decode(data, declared.group(1).decode("ascii", "replace") if declared else None)
    parser = HTMLParser(no_network=True, huge_tree=True)  # else a long text ends the page without a word
    for pattern, known in ((_DECLARATION, ""), (_END_TAGS, ""), (_BREAK, "<br>")):
        source = pattern.sub(known, source)
    for pattern, known in ((_NEWER_BLOCKS, "div"), (_STRUCK, "del")):
        source = pattern.sub(partial(_renamed, known), source)
    try:
        tree = document_fromstring(source, parser=parser)
    except ParserError:  # nothing but comments or white space
        yield Parsed("", "", "text/html", encoding)
        return
    if any("depth" in entry.message for entry in parser.error_log):
        raise SourceError("too-deep", "its elements nest too deeply to be read in full; flatten it")
    for element in tree.iter("*"):
        if _NO_XML.search(element.text or ""):
            element.text = _NO_XML.sub(" ", element.text)
        if _NO_XML.search(element.tail or ""):
            element.tail = _NO_XML.sub(" ", element.tail)
    titles = (one.text or "" for one in tree.iter("title") if next(one.iterancestors("svg"), None) is None)
    title = next(titles, "")
    frames = sum(not frame.xpath("ancestor-or-self::*[@hidden]") for frame in tree.xpath(_EMBEDDED))
    given = ((one.get("media"), one.text or "") for one in tree.iter("style"))
    sheets = (f"@media {kind}{{{sheet}}}" if kind and _SOME_SCREENS.search(kind) else sheet for kind, sheet in given)
    apply_styles(tree, [*styles, *style_rules(sheets, is_static=is_static)])
    _write_signs(tree)
    prepare(tree)
    text = page_text(tree, request.allowance).replace("\xad", "")
    if "~~~~" not in source:
        text = re.sub("~~( ?)~~", r"\1", text)  # one stretch of several elements
    warnings = unread({"embedded page": frames, "unreadable letter": text.count("\ufffd")})
    warnings += () if declared else guessed(text, encoding)
    yield Parsed(clean(text), title, "text/html", encoding, warnings=warnings)


def _renamed(known: str, tag: "re.Match[str]") -> str:
    return f"</{known}" if tag[1] else f"<{known} {WAS}={tag[2].lower()}"


def prepare(tree: Any) -> None:
    """Change a page's tree (lxml) so that its layout as text says what a browser shows.

    Parts that are not shown go; cells that are merged leave their columns and rows; numbers of lists are as declared.
    """
    for element in tree.xpath("//body//*[not(self::option)] | //noframes"):
        if "mwe-math" in element.get("class", ""):  # MediaWiki shows a picture of it
            element.set("style", "")
        if element.get("shadowrootmode"):  # a template that a browser shows
            element.tag = "div"
        hidden = element.get("hidden") is not None or _is_hidden(element.get("style", ""))
        again = "katex-html" in element.get("class", "")  # a formula, as it is drawn
        if hidden or again or element.tag in _NOT_SHOWN or (element.tag == "object" and element.get("data")):
            _replace(element, "" if hidden or again or element.tag not in _NOT_READ else " ")
    for element in list(tree.iter("input", "select", "textarea")):
        _fill_in(element)
    for element in list(tree.iter(*_BLOCKS)):
        element.tag = "article"
    for foot in tree.xpath("//table/tfoot"):  # it may stand before the rows that it is shown below
        foot.getparent().append(foot)
    _write_formulas(tree)
    for element in list(tree.iter("*")):
        style = f"{element.get(ROOM, '')};{element.get('style', '')}"
        box = element.tag in _BOXES or _APART.search(style) or (_BOX.search(style) and _WIDE.search(style))
        for one in [*(element if _ROW.search(style) else ()), *([element] if box else ())]:
            if one.tag in _INLINE or one.tag in _BOXES:
                _set_apart(one)
    _mark_raised_and_struck(tree)
    for listing in list(tree.iter("ol", "ul")):
        _number(listing)
    spare = _SPARE_CELLS + len(tree.xpath("//td | //th"))
    for table in list(tree.iter("table")):
        table.addprevious(table.makeelement("article"))  # its first row is no part of a line before it
        spare = _spread(table, spare)


def _write_signs(tree: Any) -> None:
    """Write what fonts of signs show for letters: ticks, Outlook's bullets and smileys; what is not known stays."""
    fonts = dict[Any, str]()
    for element in tree.iter("*"):
        outer = fonts.get(element.getparent(), "")
        face = element.get("face")
        given = _FONT.findall(f"{element.get('style', '')}{'' if face is None else f';font-family:{face}'}")
        found = _SIGN_FONT.match(given[-1]) if given else None
        fonts[element] = own = found[1] if found else "" if given else outer
        for name, font in (("text", own), ("tail", outer)):
            if font and (said := getattr(element, name)):
                signs = zip(said, glyphs(said, font), strict=True)
                setattr(element, name, "".join(char if sign == "\ufffd" else sign for char, sign in signs))


def _is_hidden(style: str) -> bool:
    """Whether a style hides its element: what is declared last, or as important, holds."""
    shown = sorted(_DISPLAYED.findall(style), key=lambda found: bool(found[1]))
    return bool(shown and shown[-1][0].lower() == "none") or _INVISIBLE.search(style) is not None


def _write_formulas(tree: Any) -> None:
    """Write the formulas of a page (MathML) on a line."""
    for element in tree.xpath("//semantics/*[position() > 1]"):  # the formula again, as a source
        _replace(element, "")
    for element in list(tree.iter("msqrt", "mroot", "mfenced", "mrow", *_FORMULAS)):
        several = len(element.xpath(".//mi | .//mn | .//mo")) > 1
        if element.tag == "mroot" and len(element) == 2:
            element.insert(0, element[1])
            element[0].tail = "√"
            _put_around(element[1], "(", ")")
        elif element.tag == "msqrt":
            _put_around(element, *("√(", ")") if several else ("√", ""))
        elif element.tag == "mfenced" or (element.tag == "mrow" and several and element.getparent().tag in _FORMULAS):
            _put_around(element, element.get("open", "("), element.get("close", ")"))
        elif element.tag in _FORMULAS:
            element.text = " "
            for part in element[:-1]:
                part.tail = " choose " if element.get("linethickness") == "0" else _FORMULAS[element.tag]
            if element.xpath("string(following-sibling::*[1])").strip()[:1].isdigit():  # not of the same number
                element.tail = " "


def _mark_raised_and_struck(tree: Any) -> None:
    for element in list(tree.iter(*_INLINE)):
        above = element.tag == "sup" or _RAISED.search(element.get("style", "")) is not None
        if not above and element.tag != "sub":
            continue
        said, before, behind = element.text_content(), _beside(element, before=True), _beside(element, before=False)
        left = right = ""
        if above and (written := raised(said, before)) != said:
            left, right = ("^(", ")") if written.startswith("^(") else ("^", "")
            left = " " if behind.strip() in ("/", "⁄") else left
        elif not above and said[:1].isdigit() and before[-1:].isdigit():
            left = "_"
        if said[-1:].isdigit() and behind[:1].isdigit():  # a mark of a note, and what it stands before
            right += " "
        if left or right:
            _put_around(element, left, right)
    within = set[Any]()
    for element in list(tree.iter("*")):
        given = _DECORATION.findall(element.get("style", ""))
        is_deleted = element.tag == "del" and (not given or not element.get(WAS))  # whatever it looks like
        if element not in within and (is_deleted or (given and "line-through" in given[-1].lower())):
            within.update(parts := list(element.iter("*")))
            for part in parts:  # each text: a mark around blocks would stand on lines of its own
                part.text = _as_struck(part.text)
                part.tail = part.tail if part is element else _as_struck(part.tail)


def _as_struck(text: str | None) -> str | None:
    said = (text or "").strip()
    return text.replace(said, f"~~{said}~~") if text and said else text


def _put_around(element: Any, left: str, right: str) -> None:
    element.text = left + (element.text or "").lstrip() if left else element.text or ""
    if len(element):
        element[-1].tail = f"{element[-1].tail or ''}{right}"
    else:
        element.text += right


def _beside(element: Any, *, before: bool) -> str:
    """Return the text right before an element on its line, or behind it."""
    while (parent := element.getparent()) is not None:
        if not before and element.tail:
            return str(element.tail)
        for other in islice(element.itersiblings(preceding=before), _MOST_EMPTY):
            if other.tag in _BOXES:
                return other.tail or " " if before else " "
            on_line = other.tag in _INLINE or not isinstance(other.tag, str)
            inside = other.text_content() if isinstance(other.tag, str) and on_line else ""
            said = other.tail or inside if before else on_line and (inside or other.tail)
            if said or not on_line:
                return str(said or "")
        if (before and parent.text) or parent.tag not in _INLINE:
            return (before and parent.text) or ""
        element = parent
    return ""


def _set_apart(element: Any) -> None:
    """Put spaces where the look of an element on a line sets it apart; not after the first letter of a word."""
    said, last, behind = element.text_content(), _beside(element, before=True)[-1:], _beside(element, before=False)
    if element.tag in _WITHIN_WORDS:
        if last.isdigit() and (said or behind)[:1].isdigit():
            element.text = f" {element.text or ''}"
        if said[-1:].isdigit() and behind[:1].isdigit():
            element.tail = f" {element.tail or ''}"
        return
    letter = said.strip().lstrip("“‘«\"'")
    if len(letter) == 1 and letter.isupper() and behind[:1].islower():
        return
    if not _CLOSING.match(said) and last not in ("", *"([“‘/-"):
        element.text = f" {element.text or ''}"
    if not _CLOSING.match(behind):
        element.tail = f" {element.tail or ''}"


def _replace(element: Any, said: str) -> None:
    element.clear(keep_tail=True)  # dropping it would copy the text behind it each time
    element.tag, element.text = "label", _NO_XML.sub(" ", said)


def _fill_in(field: Any) -> None:
    """Put what a field of a form shows in its place, apart from what is beside it; of a choice, only what is chosen."""
    kind = field.get("type", "text").lower()
    if field.tag == "select":
        chosen = field.xpath(".//option[@selected]")
        if field.get("multiple") is None:
            chosen = chosen[-1:] or field.xpath("(.//option[not(@disabled)])[not(../@size > 1)][1]")
        said = ", ".join(" ".join(one.text_content().split()) for one in chosen)
    elif field.tag == "textarea":
        said = field.text_content()
    elif kind in ("checkbox", "radio"):
        said = "☐" if field.get("checked") is None else "☒"
    else:
        said = "" if kind in _NO_TEXT else field.get("value", "")
    _replace(field, f" {said}{' ' if (field.tail or 'x')[0].isalnum() else ''}")


def _number(listing: Any) -> None:
    """Write the numbers of an ordered list into its items, where they are not 1, 2, 3, as the layout writes them."""
    items = listing.xpath("li | *[not(self::li or self::ol or self::ul)]/li")
    usual = "decimal" if listing.tag == "ol" else BULLET
    usual = list_style(listing) or _LIST_STYLES.get(listing.get("type", ""), usual)
    kinds = [list_style(item) or _ITEM_STYLES.get(item.get("type", ""), usual) for item in items]
    off = any(f"list-style:{RESET}" in one.get("style", "") for one in [listing, *items])
    if off and all(_NUMBERED.match(item.text_content()) for item in items):
        kinds = ["none"] * len(items)
    for place, item in enumerate(items):
        if (shown := _DISPLAYED.findall(item.get("style", ""))) and shown[-1][0].lower() != "list-item":
            kinds[place] = "none"
    if set(kinds) <= {BULLET} | ({"none"} if listing.tag == "ul" else set()):
        listing.tag = "ul"
        return
    counts = any(listing.get(name) is not None for name in ("start", "reversed")) or listing.tag == "ul"
    if set(kinds) == {"decimal"} and not counts and all(item.get("value") is None for item in items):
        return
    step = -1 if listing.get("reversed") is not None else 1
    count = integer(listing.get("start"), len(items) if step < 0 else 1)
    for item, kind in zip(items, kinds, strict=True):
        count = integer(item.get("value"), count)
        number = "* " if kind == BULLET else f"{counted(count, kind)}. ".lstrip(". ")
        item.text = number + (item.text or "").lstrip()
        item.tag = "div"
        count += step
    listing.tag = "div"


def _spread(table: Any, spare: int) -> int:
    """Put cells where merged ones reach, with the text of one that reaches down if it is short.

    Returns `spare`, the number of cells that may be made, without those that were: beyond it, columns are as written.
    """
    group = None
    for row in table.iter("tr"):
        if next(row.iterancestors("table"), None) is not table:
            continue
        if row.getparent() is not group:  # no cell reaches beyond its group of rows
            group, reaching = row.getparent(), dict[int, tuple[int, str]]()
        column = 0
        for cell in [one for one in row if one.tag in ("td", "th")]:
            while column in reaching and spare > 0:
                cell.addprevious(_from_above(row, column, reaching))
                column, spare = column + 1, spare - 1
            wide = min(max(integer(cell.get("colspan"), 1), 1), _MOST_COLUMNS)
            tall = integer(cell.get("rowspan"), 1)
            said = _words(cell) if tall > 1 else ""
            for offset in range(wide if spare >= wide else 1):
                if tall > 1:
                    reaching[column + offset] = (tall - 1, said if not offset and len(said) <= _REPEATED else "")
                if offset:
                    cell.addnext(cell.makeelement("td"))
                    spare -= 1
            column += wide
        while column in reaching and spare > 0:
            row.append(_from_above(row, column, reaching))
            column, spare = column + 1, spare - 1
    return spare


def _words(cell: Any) -> str:
    """Return the words of a cell on a line."""
    from lxml.etree import iterwalk

    said = list[str]()
    for event, one in iterwalk(cell, events=("start", "end", "comment")):
        said += [" "] if isinstance(one.tag, str) and one.tag not in _INLINE and ":" not in one.tag else []
        said += [one.text or ""] if event == "start" and one.tag not in ("script", "style") else []
        said += [one.tail or ""] if event != "start" and one is not cell else []
    return " ".join("".join(said).split())


def _from_above(row: Any, column: int, reaching: dict[int, tuple[int, str]]) -> Any:
    left, said = reaching.pop(column)
    if left > 1:
        reaching[column] = (left - 1, said)
    made = row.makeelement("td")
    made.text = said
    return made


_EMBEDDED = "//iframe[(@src or @srcdoc) and not(@width<2 or @height<2 or contains(@style, 'none'))] | //object[@data]"
"""Pages in a page that are shown: others count its visitors."""
_FONT = re.compile(r"(?<![\w-])font(?:-family)?\s*:([^;]*)", re.I)
_SIGN_FONT = re.compile(
    r"\s*(?:(?:[^\s,\d]*\d[^\s,]*|normal|bold|italic|medium(?:/\w+)?|(?:xx?-)?(?:small|large)(?:er)?)\s+)*"
    r"[\"']?(wingdings(?: [23])?|webdings|symbol)(?:-regular)?[\"']?\s*(?:$|[,!])",
    re.I,
)
"""The first font, perhaps behind its size. A browser that lacks it shows letters that mean nothing."""
_DECORATION = re.compile(r"text-decoration(?:-line)?\s*:([^;]*)", re.I)
_RAISED = re.compile(
    r"vertical-align\s*:\s*(?:super|(?:text-)?top|[2-9]|\d\d|(?:1|[01]?\.[2-9]\d*)\s*(?:r?em|ex))"
    r"|(?<![\w-])top\s*:\s*-(?:[2-9]|\d\d|[01]?\.\d+\s*r?em)",
    re.I,
)
"""A lesser shift is for the eye."""
_CLOSING = re.compile(r"$|\s|[,;:!?)\]}”’]|\.(?!\d)")
"""What may follow a word without a space."""
_SOME_SCREENS = re.compile(r"max-|^(?!.*(?:screen|all|not|min-))", re.I)  # media that are no large screen
_ROW = re.compile(r"display\s*:\s*(?:inline-)?(?:flex|grid)", re.I)
_APART = re.compile(
    r"float\s*:\s*[lr]|position\s*:\s*(?:absolute|fixed)"
    r"|(?:padding|margin)(?:-left|-right|-inline(?:-start|-end)?)?\s*:[^;]*?(?<![\d.-])(?:[3-9]|\d\d|(?:[12][\d.]*|0?\.[1-9]\d*)\s*(?:r?em|in|cm|%))",
    re.I,
)
"""Styles that leave room beside an element on a line: three points or more, or shares of a letter or line."""
_BOX = re.compile(r"display\s*:\s*inline-block", re.I)
_WIDE = re.compile(
    r"(?<![\w-])(?:min-)?width\s*:\s*(?:[3-9]|\d\d|(?:[12][\d.]*|0?\.[3-9]\d*)\s*(?:r?em|in|cm|%))", re.I
)
_BOXES = frozenset("img svg button".split())
"""Elements with room of their own on a line."""
_INLINE = frozenset(
    "span font a b i u em strong small big sup sub mark ins del cite code abbr acronym q time label kbd samp var dfn "
    "tt bdi bdo data output nobr wbr".split()
)
_WITHIN_WORDS = frozenset("code mark kbd samp var dfn tt abbr acronym q cite ins del img svg".split())
"""Elements that stand in words as well, with a little room around them."""
_NOT_READ = frozenset("iframe video audio canvas object".split())
_NOT_SHOWN = _NOT_READ - {"object"} | {*"template noframes datalist title desc metadata".split()}
"""Elements without a text of the page; those of drawings say what is drawn."""
_BLOCKS = "dt dd dl form fieldset legend center menu dir hr text".split()
"""Elements that stand apart, which the layout would run together with what is beside them; ``text`` of drawings."""
_FORMULAS = {"mfrac": "/", "msup": "^", "msub": "_"} | dict.fromkeys(("msubsup", "mroot", "munderover", "mtr"), " ")
_NO_TEXT = ("hidden", "password", "submit", "reset", "button", "image", "file", "range", "color")
"""Fields of forms without a text, or with one that is no value."""
_DISPLAYED = re.compile(r"(?<![\w-])display\s*:\s*([\w-]+)\s*(!\s*important)?", re.I)
_INVISIBLE = re.compile(r"(?<![\w-])visibility\s*:\s*hidden", re.I)
_NUMBERED = re.compile(r"\s*(?:§|\d+(?:\.\d+)*[.)]?\s|\(?\w{1,4}[.)]\s)")
"""How an item begins that has its number typed."""
_LIST_STYLES = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_ITEM_STYLES = {"1": "decimal", **_LIST_STYLES, **dict.fromkeys(("disc", "circle", "square"), BULLET)}
_MOST_COLUMNS = 63
_MOST_EMPTY = 20
"""Elements without a text between one and the text beside it."""
_SPARE_CELLS = 10_000
"""Cells that merged ones may add to a page, besides as many as it has."""
_REPEATED = 200
"""Characters of a merged cell that are said again in its other rows, and of several lines in a cell that become one."""
_COLUMNS, _LONG_CELL = 3, 2_000
"""Cells of a row that is hardly there for the layout, and the characters of several lines in one of these."""
_PADDING = 8
_MARGIN = 2
"""Characters and empty lines that an element's style may ask for: more is for the eye, or there to do harm."""
_DIRECTIVE_CHARS = 200


def page_text(tree: Any, allowance: Allowance) -> str:
    """Return the text of a page; padding counts with the allowance before it is laid out.

    Raises SourceError: ``bomb`` or ``too-large``.
    """
    budget = _Budget(allowance)
    tables = CustomHtmlTagHandlerMapping({"table": budget.table}, {})
    # As browsers do: the default puts spaces around spans, in words and numbers as well, and before each line of a div.
    styles = dict.fromkeys(_INLINE - {"q"}, HtmlElement(whitespace=None)) | STRICT_CSS_PROFILE  # as what they stand in
    config = ParserConfig(css=styles, custom_html_tag_handler_mapping=tables)
    config.attribute_handler.attribute_mapping = {**DEFAULT_ATTRIBUTE_MAP, "style": _style}
    text: str = _Page(tree, config, budget).get_text()
    return text.replace(_AND, "&")


_AND = "\ufdd0"
"""Stands for an ampersand, which is no character of text: the layout would take it for the beginning of an entity."""


class _Budget:
    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._chars = 0

    def spend(self, chars: int) -> None:
        self._chars += chars
        self._allowance.check(self._chars)

    def table(self, state: Any, attributes: dict[str, str]) -> None:
        table_start_handler(state, attributes)
        state.current_table[-1] = _Table(self, state.tags[-2].canvas.left_margin)


class _Table(Table):  # type: ignore[misc]
    """Writes each row as a line, with tabs between cells; a row with long cells as these, one after another."""

    def __init__(self, budget: _Budget, margin: int) -> None:
        super().__init__(margin, "\t")
        self._budget = budget

    def get_text(self) -> str:
        lines = [line for row in self.rows for line in self._lines(row.columns)]
        self._budget.spend(sum(map(len, lines)) + len(lines) * (1 + self.left_margin_len))
        return "\n".join([*lines, ""])

    def _lines(self, cells: Sequence[TableCell]) -> list[str]:
        for cell in cells:
            cell.normalize_blocks()
        texts = ["\n".join(line.rstrip() for line in cell.blocks).strip("\n") for cell in cells]
        several = [text for text in texts if "\n" in text]
        most = _LONG_CELL if len(texts) >= _COLUMNS and sum(map(bool, texts)) > 1 else _REPEATED
        if any("\t" in text for text in texts) or max(map(len, several), default=0) > most:
            return [line for text in texts if text for line in text.split("\n")]
        joined = "\t".join(" ".join(text.split()) for text in texts).rstrip("\t")
        return [joined] if joined else []


class _Page(Inscriptis):  # type: ignore[misc]
    """Counts the padding that each text will be given."""

    def __init__(self, tree: Any, config: ParserConfig, budget: _Budget) -> None:
        self._budget = budget
        super().__init__(tree, config)

    def _parse_html_tree(self, state: Any, tree: Any) -> Any:
        if text := tree.text or "":
            self._indent(text, state.tags[-1].canvas.left_margin + _PADDING)
            tree.text = text.replace("&", _AND)
        if tail := tree.tail or "":
            self._indent(tail, state.tags[-1].canvas.left_margin)
            tree.tail = tail.replace("&", _AND)
        return super()._parse_html_tree(state, tree)

    def _indent(self, text: str, margin: int) -> None:
        # All its lines count, as if it were preformatted: that is at most its length times the margin too much.
        self._budget.spend(len(text) + margin * (1 + text.count("\n")))


def _style(style: str, element: Any) -> None:
    """Apply an element's style, without what is out of all proportion."""
    for directive in style.split(";"):
        if len(directive) > _DIRECTIVE_CHARS:  # the library's patterns take long for it
            continue
        if display := _DISPLAYED.match(directive.strip()):  # the library takes all that it does not know for inline
            value = display.group(1).lower()
            left_out = "inline-" in value or value == "none"  # what is hidden has gone
            directive = "" if left_out else f"display:{value if value == 'inline' else 'block'}"
        try:
            CssParse.attr_style(directive, element)
        except (ValueError, OverflowError):  # a length that is no number, or endless
            continue
        element.padding_inline = max(0, min(element.padding_inline, _PADDING))
        element.margin_before = max(0, min(element.margin_before, _MARGIN))
        element.margin_after = max(0, min(element.margin_after, _MARGIN))


_LARGE_BYTES = 30_000
"""Of a picture of a page or a table, rarely of an ornament."""
_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_SHEET = re.compile(rb"""<link\b[^>]{0,999}?href\s*=\s*["']([^"'>]{1,999}\.css)["']""", re.I)
_PREFIX = re.compile(rb"(</?)[A-Za-z][\w.-]*:(?=[A-Za-z])")
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that only make fonts unusable elsewhere."""


def parse_epub(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the book's text, an empty line between chapters.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``, or as `infra.sources.html.parse_html`.
    """
    with opened(stream, request, "book", ".epub") as archive:
        if _ENCRYPTION in archive.namelist() and any(
            method.get("Algorithm") not in _FONTS
            for method in xml(archive.read(_ENCRYPTION)).iter("{*}EncryptionMethod")
        ):
            raise SourceError("encrypted", "it is protected against copying; get it without protection")
        package = next(xml(archive.read(_CONTAINER)).iter("{*}rootfile")).get("full-path", "")
        book = xml(archive.read(package))
        title = next((one.text or "" for one in book.iter("{*}title")), "")
        text = "\n\n".join(within(request.allowance, _chapters(archive, book, posixpath.dirname(package), request)))
        pictures = _large_pictures(archive, book, posixpath.dirname(package))
    warnings = unread({"large picture": pictures, "unreadable letter": text.count("\ufffd")})
    yield Parsed(text, clean(title), "application/epub+zip", warnings=warnings)


def _path(item: Any, folder: str) -> str:
    """Return the path of an item of a book's manifest in its archive."""
    return posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))


def _large_pictures(archive: zipfile.ZipFile, book: object, folder: str) -> int:
    """Return how many pictures of a book, but its cover, may be pages or tables."""
    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    pictures = (one for one in child(book, "manifest") if one.get("media-type", "").startswith("image/"))
    inner = (one for one in pictures if "cover" not in f"{one.get('id')} {one.get('properties')}")
    return sum(sizes.get(_path(one, folder), 0) >= _LARGE_BYTES for one in inner)


def _chapters(archive: zipfile.ZipFile, book: object, folder: str, request: ParseRequest) -> Iterator[str]:
    paths = {one.get("id"): _path(one, folder) for one in child(book, "manifest")}
    names = set(archive.namelist())
    rules = cache(
        lambda path: style_rules(
            [archive.read(path).decode("utf-8", "replace")] if path in names else [], is_static=True
        )
    )
    for one in child(book, "spine"):
        if local_name(one) == "itemref":
            path = paths[one.get("idref")]
            page = _PREFIX.sub(rb"\1", archive.read(path))
            links = (unquote(link.decode("utf-8", "replace")) for link in _SHEET.findall(page))
            sheets = (posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links)
            styles = [rule for sheet in sheets for rule in rules(sheet)]
            (chapter,) = parse_html(BytesIO(page), request, styles=styles, is_static=True)
            if text := chapter.text.strip("\n"):
                yield text
