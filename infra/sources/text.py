"""Plain text, Markdown and mail."""

import re
from collections.abc import Iterable, Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest
from infra.sources.decoding import browser_encoding, clean, decode
from infra.sources.html import parse_html
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


_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_ENCODED_WORD = re.compile(rb"=\?([A-Za-z0-9_-]{1,40})(?=\?[bBqQ]\?)")
"""The label of a header's words in another encoding (RFC 2047)."""
_CALENDAR = re.compile(r"^(SUMMARY|LOCATION|DTSTART|DTEND|ORGANIZER|DESCRIPTION)(?:;[^:\n]*)?:(.*)$", re.MULTILINE)


def parse_eml(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the mail's headers, its texts in order and the names of what is attached.

    Of a body in several forms the plain one is read, unless it is blank. The subject is the title. What is attached is
    not read: save it as a file of its own.

    Raises:
        SourceError: ``broken``, or as `infra.sources.html.parse_html`.
    """
    data = _ENCODED_WORD.sub(_as_in_browsers, stream.read())
    message = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(data)
    attached: list[str] = []
    try:
        heads = {name: " ".join(str(message[name]).split()) for name in _HEADERS if message[name]}
        texts = list(_texts(message, request, attached))
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, LookupError) as error:
        raise SourceError("broken", "its headers cannot be read; save the mail again as .eml") from error
    if not heads:
        raise SourceError("broken", "it has no sender, date or subject: it is no mail; give it the suffix .txt")
    lines = [
        *(f"{name}: {value}" for name, value in heads.items()),
        "",
        "\n\n".join(text.strip("\n") for text in texts),
    ]
    lines += ["", *(f"Attachment: {' '.join(name.split())}" for name in attached)] if attached else []
    yield Parsed(clean("\n".join(lines)), clean(heads.get("Subject", "")), "message/rfc822")


def _as_in_browsers(word: re.Match[bytes]) -> bytes:
    return b"=?" + browser_encoding(word.group(1).decode("ascii")).encode("ascii")


def _texts(part: Any, request: ParseRequest, attached: list[str]) -> Iterator[str]:
    """Yield the texts of a mail or a part of it; add the names of what is not read to `attached`."""
    kind = part.get_content_type()
    if kind == "multipart/alternative":
        forms: dict[str, tuple[list[str], list[str]]] = {}
        for form in part.iter_parts():
            names: list[str] = []
            forms[form.get_content_type()] = (list(_texts(form, request, names)), names)
        kinds = (name for name in _by_preference(forms) if any(map(str.strip, forms[name][0])))
        texts, names = forms.get(next(kinds, ""), ([], []))
        attached += names
        yield from texts
    elif part.is_multipart() and part.get_content_maintype() == "multipart":
        for inner in part.iter_parts():
            yield from _texts(inner, request, attached)
    elif kind in ("text/plain", "text/html", "text/calendar") and part.get_content_disposition() != "attachment":
        text = _text(part, request)
        yield "\n".join(": ".join(found) for found in _CALENDAR.findall(text)) if kind == "text/calendar" else text
    elif kind != "application/pkcs7-signature" or part.get_filename():
        attached.append(part.get_filename() or kind)


def _by_preference(kinds: Iterable[str]) -> list[str]:
    """Return the forms of a body, the plainest first; one with pictures (``multipart/related``) after plain text."""
    order = ("text/plain", "text/html", "multipart/related", "multipart/mixed", "text/calendar")
    return sorted(kinds, key=lambda kind: order.index(kind) if kind in order else len(order))


def _text(body: Any, request: ParseRequest) -> str:
    data = body.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    charset = body.get_content_charset()
    text, _ = decode(data, charset) if data else ("", "")
    if body.get_content_subtype() != "html":
        return text
    from io import BytesIO

    (page,) = parse_html(BytesIO(text.encode()), request)
    return page.text
