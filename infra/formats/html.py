"""HTML: the text as it reads on a page; scripts and styles are dropped (inscriptis)."""

import re
from collections.abc import Iterator
from typing import BinaryIO

from infra.formats.base import Parsed, Request
from infra.formats.decoding import clean, decode
from infra.formats.layout import page_text
from memagent.errors import SourceError

_CHARSET = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.I)
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")


def parse_html(stream: BinaryIO, request: Request) -> Iterator[Parsed]:
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
