"""Plain text and Markdown."""

import re
from collections.abc import Iterator
from typing import BinaryIO

from infra.sources.base import Parsed, ParseRequest
from infra.sources.decoding import decode

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
