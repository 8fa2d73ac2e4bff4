"""Plain text, Markdown, and rich text (.rtf) without what is deleted or hidden."""

import re
from collections.abc import Iterator
from typing import BinaryIO

from infra.sources.base import Parsed, ParseRequest, unread
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


_RTF = re.compile(r"\\([a-z]{1,32})(-?\d{1,10})?[ ]?|\\'[0-9a-f]{2}|\\[^a-z]|[{}]|[^\\{}]+", re.IGNORECASE)
_RTF_OBJECT = re.compile(r"\{\\object\b")
_RTF_TITLE = re.compile(r"\{\\title\b([^{}]*)\}")
_RTF_READ = {
    **dict.fromkeys(("header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"), "\\par "),
    **dict.fromkeys(("shp", "shpinst", "shpgrp", "shptxt", "pntext", "upr", "ud"), ""),
    "footnote": "\\par Footnote: ",
    "annotation": "\\par Comment: ",
}
"""Groups with text of the document that the library drops, and what stands for their mark."""
_RTF_BYTES = re.compile(r"\\(?:bin(\d{1,10})[ ]?|[^a-z])", re.DOTALL)
_RTF_OFF = ("0", "-0")
_RTF_HEAD = 2**16
"""Characters in which the title stands, before the text."""


def parse_rtf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text with its headers, notes and shapes, without what is deleted or hidden.

    Raises SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    from striprtf.striprtf import rtf_to_text

    source = stream.read().decode("latin-1")  # letters beyond ASCII are written as escapes
    if not source.lstrip().startswith("{\\rtf"):
        raise SourceError("broken", "it is no rich text; save it again as .rtf")
    title = _RTF_TITLE.search(source[:_RTF_HEAD])
    try:
        text = rtf_to_text("".join(_shown_rtf(_without_bytes(source))), errors="replace")
        name = rtf_to_text(f"{{\\rtf1\\ansi {title.group(1)}}}", errors="replace") if title else ""
    except (ValueError, LookupError, IndexError, TypeError) as error:
        raise SourceError("broken", "its marks cannot be read; save it again as .rtf, or as .docx") from error
    request.allowance.check(len(text))
    warnings = unread({"embedded object": len(_RTF_OBJECT.findall(source))})
    if not source.rstrip("\0 \t\r\n").endswith("}"):
        warnings = (*warnings, "the file is cut off: its end is missing")
    yield Parsed(clean(text), clean(name.strip()), "text/rtf", warnings=warnings)


def _without_bytes(source: str) -> str:
    """Return the source without the bytes of pictures and objects, which may hold marks."""
    kept, after = list[str](), 0
    while found := _RTF_BYTES.search(source, after):
        kept.append(source[after : found.start() if found[1] else found.end()])
        after = found.end() + int(found[1] or 0)
    return "".join(kept) + source[after:]


def _shown_rtf(source: str) -> Iterator[str]:
    """Yield marks and texts without deleted and hidden text; groups of `_RTF_READ` are read as if part of the body."""
    hidden, groups, starred = False, list[bool](), ""
    for found in _RTF.finditer(source):
        mark, word, value = found.group(), (found.group(1) or "").lower(), found.group(2)
        if mark == "{":
            groups.append(hidden)
        elif mark == "}":
            hidden = groups.pop() if groups else False
        if mark == "\\*":
            starred = mark  # the mark of a group that a reader may leave out; the next word says which
            continue
        if word in ("v", "deleted"):
            hidden = value not in _RTF_OFF
        elif word == "plain":
            hidden = False
        elif word == "upr":
            hidden = True  # its text in ASCII; in Unicode the same text follows
        elif word == "ud":
            hidden = groups[-2] if len(groups) > 1 else False
        if word in _RTF_READ:
            mark, starred = _RTF_READ[word], ""
        elif mark == "\\\\":
            mark = "{\\uc0\\u92 }"  # the library takes the words \bin for a picture's bytes
        is_text = not word and mark not in ("{", "}") and not starred
        if hidden and (is_text or word in ("u", "tab", "bullet", "emdash", "endash", "lquote", "rquote")):
            continue
        yield starred + mark
        starred = ""
