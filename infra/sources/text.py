"""Plain text, Markdown and HTML."""

import re
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any, BinaryIO

from inscriptis import Inscriptis
from inscriptis.model.attribute import DEFAULT_ATTRIBUTE_MAP
from inscriptis.model.config import ParserConfig
from inscriptis.model.css import CssParse
from inscriptis.model.tag import CustomHtmlTagHandlerMapping
from inscriptis.model.tag.table_tag import table_end_handler

from infra.sources.base import Allowance, Parsed, ParseRequest
from infra.sources.decoding import clean, decode
from memagent.errors import SourceError

_MARKS = re.compile(r" {0,3}#{1,6}(?=[ \t])")
_TITLE_LINES = 200


def parse_text(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the file's text as it is."""
    text, encoding = decode(stream.read())
    yield Parsed(text, "", "text/plain", encoding)


def parse_markdown(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the file's text with its marks; the first heading outside of code is the title."""
    text, encoding = decode(stream.read())
    yield Parsed(text, _first_heading(text), "text/markdown", encoding)


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


_CHARSET = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.I)
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")


def parse_html(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the page's text; its ``<title>`` is the title.

    Raises:
        SourceError: ``too-deep`` where libxml2 would drop what lies below its limit of nesting, ``bomb`` and
            ``too-large`` where the layout would make too much of it.
    """
    from lxml.etree import ParserError  # type: ignore[import-untyped]
    from lxml.html import HTMLParser, document_fromstring  # type: ignore[import-untyped]

    data = stream.read()
    declared = _CHARSET.search(data[:4096])
    source, encoding = decode(data, declared.group(1).decode("ascii", "replace") if declared else None)
    parser = HTMLParser(no_network=True)
    try:
        tree = document_fromstring(_DECLARATION.sub("", source), parser=parser)
    except ParserError:  # nothing but comments or white space
        yield Parsed("", "", "text/html", encoding)
        return
    if any("depth" in entry.message for entry in parser.error_log):
        raise SourceError("too-deep", "its elements nest too deeply to be read in full; flatten it")
    title = tree.findtext(".//title") or ""
    yield Parsed(clean(page_text(tree, request.allowance)), title, "text/html", encoding)


_PADDING = 8
_MARGIN = 2
"""Characters and empty lines that an element's style may ask for: more is for the eye, or there to do harm."""
_DIRECTIVE_CHARS = 200


def page_text(tree: Any, allowance: Allowance) -> str:
    """Return the text of a page.

    Args:
        tree: its root element (lxml).
        allowance: how long the text may be. Padding counts with it before it is laid out.

    Raises:
        SourceError: ``bomb`` or ``too-large``.
    """
    budget = _Budget(allowance)
    config = ParserConfig(custom_html_tag_handler_mapping=CustomHtmlTagHandlerMapping({}, {"table": budget.table}))
    config.attribute_handler.attribute_mapping = {**DEFAULT_ATTRIBUTE_MAP, "style": _style}
    text: str = _Page(tree, config, budget).get_text()
    return text


class _Budget:
    """What the layout has made so far."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._chars = 0

    def spend(self, chars: int) -> None:
        self._chars += chars
        self._allowance.check(self._chars)

    def table(self, state: Any) -> None:
        """Lay out a table that ends, if it is not too large."""
        if state.current_table:
            lines, chars = _extent(state.current_table[-1])
            self.spend(chars + lines * (1 + state.tags[-2].canvas.left_margin))
        table_end_handler(state)


class _Page(Inscriptis):  # type: ignore[misc]
    """Counts the padding that each text will be given."""

    def __init__(self, tree: Any, config: ParserConfig, budget: _Budget) -> None:
        self._budget = budget
        super().__init__(tree, config)

    def _parse_html_tree(self, state: Any, tree: Any) -> Any:
        if text := tree.text or "":
            self._indent(text, state.tags[-1].canvas.left_margin + _PADDING)
        if tail := tree.tail or "":
            self._indent(tail, state.tags[-1].canvas.left_margin)
        return super()._parse_html_tree(state, tree)

    def _indent(self, text: str, margin: int) -> None:
        # All its lines count, as if it were preformatted: that is at most its length times the margin too much.
        self._budget.spend(len(text) + margin * (1 + text.count("\n")))


def _extent(table: Any) -> tuple[int, int]:
    """Return the lines and characters of a table once its cells are filled up."""
    widths: list[int] = []
    heights: list[int] = []
    for row in table.rows:
        height = 0
        for column, cell in enumerate(row.columns):
            cell.flush_inline()
            lines = [len(line) for block in cell.blocks for line in block.split("\n")]
            height = max(height, len(lines))
            if column == len(widths):
                widths.append(0)
            widths[column] = max(widths[column], *lines, 0) if lines else widths[column]
        heights.append(max(height, 1))
    total = [0]
    for width in widths:
        total.append(total[-1] + width + len(table.cell_separator))
    chars = sum(height * total[len(row.columns)] for row, height in zip(table.rows, heights, strict=True))
    return sum(heights), chars


def _style(style: str, element: Any) -> None:
    """Apply an element's style, without what is out of all proportion."""
    for directive in style.split(";"):
        if len(directive) > _DIRECTIVE_CHARS:  # the library's patterns take long for it
            continue
        try:
            CssParse.attr_style(directive, element)
        except (ValueError, OverflowError):  # a length that is no number, or endless
            continue
        element.padding_inline = max(0, min(element.padding_inline, _PADDING))
        element.margin_before = max(0, min(element.margin_before, _MARGIN))
        element.margin_after = max(0, min(element.margin_after, _MARGIN))


_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def parse_eml(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the mail's headers, its text (of HTML where it has no other) and the names of what is attached.

    The subject is the title. What is attached is not read: save it as a file of its own.

    Raises:
        SourceError: ``broken``, or as `infra.sources.text.parse_html`.
    """
    message = BytesParser(_class=EmailMessage, policy=policy.default).parse(stream)
    try:
        heads = {name: " ".join(str(message[name]).split()) for name in _HEADERS if message[name]}
        attached = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
        body = message.get_body(preferencelist=("plain", "html"))
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, LookupError) as error:
        raise SourceError("broken", "its headers cannot be read; save the mail again as .eml") from error
    if not heads:
        raise SourceError("broken", "it has no sender, date or subject: it is no mail; give it the suffix .txt")
    text = _text(body, request) if isinstance(body, EmailMessage) else ""
    lines = [*(f"{name}: {value}" for name, value in heads.items()), "", text.strip("\n")]
    lines += ["", *(f"Attachment: {' '.join(name.split())}" for name in attached)] if attached else []
    yield Parsed(clean("\n".join(lines)), clean(heads.get("Subject", "")), "message/rfc822")


def _text(body: EmailMessage, request: ParseRequest) -> str:
    data = body.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    charset = body.get_content_charset()
    text, _ = decode(data, charset)
    if body.get_content_subtype() != "html":
        return text
    from io import BytesIO

    (page,) = parse_html(BytesIO(text.encode()), request)
    return page.text
