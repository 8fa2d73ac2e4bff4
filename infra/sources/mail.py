"""Mail: .eml, .mbox and Outlook's .msg."""

import re
import struct
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from email import policy
from email.headerregistry import HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from email.parser import BytesParser
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

from infra.sources.base import Parsed, ParseRequest, Refused, unread
from infra.sources.decoding import blank, browser_encoding, clean, decode
from infra.sources.html import parse_html
from memagent.errors import SourceError

_HEADERS = ("From", "To", "Cc", "Bcc", "Date", "Subject")
_AS_WRITTEN = HeaderRegistry()
"""Headers whose words alone are decoded: Python would write addresses and dates anew, without what it cannot parse."""
for _name in _HEADERS:
    _AS_WRITTEN.map_to_type(_name, UnstructuredHeader)  # type: ignore[arg-type]  # which typeshed does not know
_POLICY = policy.default.clone(header_factory=_AS_WRITTEN)
_RECIPIENTS = (("To", 1), ("Cc", 2), ("Bcc", 3))
"""Kinds of recipients in Outlook's mails (MS-OXPROPS, PidTagRecipientType)."""
_SPACED = re.compile(rb"(?im)^(Content-Transfer-Encoding:[ \t]*[\w-]+)[ \t]+(?=\r?$)")
_ENCODED_WORD = re.compile(rb"=\?([A-Za-z0-9_-]{1,40})(?=\?[bBqQ]\?)")
"""The label of a header's words in another encoding (RFC 2047)."""
_CHARSET = re.compile(
    rb"""^Content-Type:(?:[^\n;]|\n[ \t]|;(?!\s*charset))*;\s*charset\s*=\s*["']?([\w.:-]{1,40})""", re.I | re.M
)
_HEAD_BYTES = 2**18
_LONG_HEADERS = f"its headers have more than {_HEAD_BYTES:,} bytes"
_AS_WINDOWS = {code: bytes([code]).decode("cp1252", "replace") for code in range(0x80, 0xA0)}
"""Letters of Windows, where a mail calls its code page Latin 1."""
_PAGES = re.compile(rb"(\x03\x00[\xde\xfd]\x3f.{4}).{4}", re.DOTALL)
"""The properties that say in which code pages a mail's texts of one byte a letter are."""
_BODY, _CODE_PAGE, _ONE_BYTE = 0x1000, 0x3FFD, 0x1E
_HTML, _RICH_BODY, _TRANSPORT, _RECIPIENT_TYPE = 0x1013, 0x1009, 0x7D, 0xC15
"""Properties of an Outlook mail (MS-OXPROPS): a page, compressed rich text, the headers it came with."""
_LOGO_CHARS = 100_000
"""Encoded characters up to which a picture in a mail counts as one of its layout."""
_CALENDAR = re.compile(
    r"(METHOD|SUMMARY|LOCATION|DTSTART|DTEND|DURATION|RRULE|STATUS|ORGANIZER|DESCRIPTION)"
    r"((?:;(?:\"[^\"]*\"|[^\":;])*)*):(.*)"
)
_NOT_THE_MEETING = {"VTIMEZONE", "STANDARD", "DAYLIGHT", "VALARM"}
"""Parts of a calendar with times of their own."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_SIGNATURES = {f"application/{kind}-signature" for kind in ("pkcs7", "x-pkcs7", "pgp")}


class _Attached(NamedTuple):
    """What is attached to a mail, a picture in it, or another form of its text."""

    name: str
    matters: bool = True
    """Whether it may have text that a reader would miss."""
    kind: str = "attachment"


def parse_eml(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the mail's headers, its texts in order and the names of what is attached.

    Of a body in several forms the plain one is read, unless another one has all of its words and more. The subject is
    the title. What is attached is not read: save it as a file of its own.

    Raises SourceError: ``broken``, or as `infra.sources.html.parse_html`.
    """
    yield _mail(stream.read(), request)


def parse_mbox(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed | Refused]:
    """Yield each mail of a mailbox (RFC 4155) as `parse_eml` does; its row is its number, from 1."""
    for number, data in enumerate(_mails(stream), 1):
        try:
            yield replace(_mail(data, request), row=str(number))
        except SourceError as error:
            yield Refused(str(number), error.reason, error.detail)
        except RecursionError:
            yield Refused(str(number), "too-deep", "its parts nest too deeply to be read in full")


def _mails(stream: BinaryIO) -> Iterator[bytes]:
    lines, after_blank, begun = list[bytes](), True, False
    for line in stream:
        if after_blank and line.startswith(b"From "):
            if begun:
                yield b"".join(lines)
            lines, begun = [], True
        elif begun:
            lines.append(line[1:] if line.startswith(b">") and line.lstrip(b">").startswith(b"From ") else line)
        elif line.strip():
            raise SourceError("broken", "it does not begin with a line 'From ...': it is no mailbox")
        after_blank = not line.strip(b"\r\n")
    if begun:
        yield b"".join(lines)


def parse_msg(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield a mail that Outlook has saved, as `parse_eml` does.

    Raises SourceError: ``broken``, ``no-text`` where its body is rich text alone.
    """
    from oxmsg.domain.encodings import encoding_from_codepage

    try:
        message = _loaded(stream.read())
        if len(raw := message.properties.str_prop_value(_TRANSPORT) or "") > _HEAD_BYTES:
            raise SourceError("too-large", _LONG_HEADERS)
        given = _shown(_parsed(raw.encode("utf-8", "surrogateescape")))
        named = [
            (f"{one.name} <{one.email_address}>", one.properties.int_prop_value(_RECIPIENT_TYPE) or 1)
            for one in message.recipients
        ]
        heads = {
            "From": given.get("From") or message.sender or "",
            **{
                name: given.get(name) or ", ".join(who for who, is_ in named if is_ == kind)
                for name, kind in _RECIPIENTS
            },
            "Date": message.message_headers.get("Date")
            or (f"{message.sent_date:%a, %d %b %Y %H:%M:%S %z}" if message.sent_date else ""),
            "Subject": message.subject,
        }
        plain = message.body or ""
        if plain and any((one.pid, one.ptyp) == (_BODY, _ONE_BYTE) for one in message.properties):
            # The library has read it in the code page of the mail as it was sent, and not as it was saved.
            page = encoding_from_codepage(message.properties.int_prop_value(_CODE_PAGE) or 1252)
            plain, _ = decode(plain.encode(message.properties.body_encoding), page)
        # Of `html_body` only what is text already: it takes the mail's code page for the page's.
        html = message.properties.binary_prop_value(_HTML) or (message.html_body or "").encode("utf-8", "replace")
        attached = [_Attached(one.file_name or one.mime_type or "") for one in message.attachments]
        rich = message.properties.binary_prop_value(_RICH_BODY)
    except (ValueError, TypeError, AttributeError, OSError, LookupError, AssertionError, struct.error) as error:
        raise SourceError("broken", "it is no Outlook mail, or a damaged one; save it again as .msg or .eml") from error
    if blank(plain) and not html and rich:
        raise SourceError("no-text", "its body is Outlook's rich text; save the mail as .eml or .html")
    forms = {"text/plain": "" if blank(plain) else plain, "text/html": _page(html, request) if html else ""}
    chosen, is_less = _preferred(forms)
    attached += [_Attached("", kind=_OTHER_FORM)] if is_less else []
    text = forms.get(chosen, plain)
    said = {name: " ".join(one.translate(_AS_WINDOWS).split()) for name, one in heads.items() if one}
    yield _laid_out(said, [text], attached)


def _loaded(data: bytes) -> Any:
    """Return a mail of Outlook; where its code pages are not known, as if they were UTF-8: most texts need none."""
    from oxmsg import Message
    from oxmsg.domain.model import UnrecognizedCodePageError, UnsupportedEncodingError

    message = Message.load(data)
    try:
        message.properties.str_prop_value(_BODY)  # which reads all properties
    except (UnrecognizedCodePageError, UnsupportedEncodingError):
        return Message.load(_PAGES.sub(lambda found: found[1] + b"\xe9\xfd\x00\x00", data))
    return message


def _mail(data: bytes, request: ParseRequest) -> Parsed:
    end = re.search(rb"\r?\n\r?\n", data)
    if (end.start() if end else len(data)) > _HEAD_BYTES:  # Python's parser takes gigabytes for megabytes of a header
        raise SourceError("too-large", _LONG_HEADERS)
    head = data[: end.start() if end else len(data)]
    if not head.isascii():  # old mail: its letters are in the encoding of its text
        label = _CHARSET.search(data)  # of its own, or of a part
        with suppress(SourceError):
            data = decode(head, label[1].decode() if label else None)[0].encode() + data[len(head) :]
    attached: list[_Attached] = []
    try:
        message = _parsed(data)
        heads = _shown(message)
        texts = list(_texts(message, request, attached))
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, LookupError) as error:
        raise SourceError("broken", "its headers cannot be read; save the mail again as .eml") from error
    if not heads and "MIME-Version" not in message:
        raise SourceError("broken", "it has no sender, date or subject: it is no mail; give it the suffix .txt")
    return _laid_out(heads, texts, attached)


def _parsed(data: bytes) -> EmailMessage:
    data = _SPACED.sub(rb"\1", data)  # Python decodes no such encoding
    data = _ENCODED_WORD.sub(lambda label: b"=?" + browser_encoding(label[1].decode("ascii")).encode("ascii"), data)
    return BytesParser(_class=EmailMessage, policy=_POLICY).parsebytes(data)


def _shown(message: EmailMessage) -> dict[str, str]:
    said = {name: ", ".join(" ".join(str(one).split()) for one in message.get_all(name, ())) for name in _HEADERS}
    return {name: value for name, value in said.items() if value}


def _laid_out(heads: dict[str, str], texts: list[str], attached: list[_Attached]) -> Parsed:
    lines = [
        *(f"{name}: {value}" for name, value in heads.items()),
        *([""] if heads else []),
        "\n\n".join(text.strip("\n") for text in texts),
    ]
    names = [" ".join(one.name.split()) for one in attached if one.kind != _OTHER_FORM]
    lines += ["", *(f"Attachment: {name}" for name in names)] if names else []
    text = clean("\n".join(lines))
    lost = {"unreadable letter": text.count("\ufffd")}
    warnings = unread(Counter(one.kind for one in attached if one.matters) + Counter(lost))
    return Parsed(text, clean(heads.get("Subject", "")), "message/rfc822", warnings=warnings)


def _texts(part: Any, request: ParseRequest, attached: list[_Attached]) -> Iterator[str]:
    """Yield the texts of a mail or a part of it; add the names of what is not read to `attached`."""
    kind = part.get_content_type()
    if kind == "multipart/alternative":
        forms: dict[str, tuple[list[str], list[_Attached]]] = {}
        for form in part.iter_parts():
            texts, names = forms.setdefault(form.get_content_type(), ([], []))
            texts += _texts(form, request, names)
        chosen, is_less = _preferred({name: "\n".join(texts) for name, (texts, _) in forms.items()})
        attached += [_Attached("", kind=_OTHER_FORM)] if is_less else []
        for name, (_, names) in forms.items():  # of another form its files matter
            attached += [one for one in names if chosen in ("", name) or (one.matters and one.name not in forms)]
        invitation = forms.get("text/calendar", ((), ()))[0]  # says when and where, beside the text
        yield from dict.fromkeys([*(forms[chosen][0] if chosen else ()), *invitation])
    elif part.is_multipart() and part.get_content_maintype() == "multipart":
        for inner in part.iter_parts():
            yield from _texts(inner, request, attached)
    elif kind in ("text/plain", "text/html", "text/calendar") and part.get_content_disposition() != "attachment":
        text = _text(part, request)
        if kind == "text/calendar":
            text = _meeting(text)
        yield text
    elif kind not in _SIGNATURES:
        logo = kind.startswith("image/") and part.get_content_disposition() != "attachment"
        size = len(part.get_payload()) if isinstance(part.get_payload(), str) else 0
        attached.append(_Attached(part.get_filename() or kind, matters=not logo or size > _LOGO_CHARS))


def _meeting(calendar: str) -> str:
    """Return what a calendar (RFC 5545) says of its meetings, a line each."""
    parts, lines = list[str](), list[str]()
    for line in re.sub(r"\n[ \t]", "", calendar).split("\n"):  # a long line goes on in the next one
        if line.startswith("BEGIN:"):
            parts.append(line[6:].strip())
        elif line.startswith("END:"):
            parts = parts[:-1]
        elif not _NOT_THE_MEETING.intersection(parts[-1:]) and (said := _CALENDAR.fullmatch(line)):
            zone = re.search(r";TZID=\"?([^\";]*)", said[2])
            lines.append(f"{said[1]}: {said[3]}{f' ({zone[1]})' if zone else ''}")
    return re.sub(r"\\(.)", lambda sign: "\n" if sign[1] in "nN" else sign[1], "\n".join(lines))


def _preferred(said: Mapping[str, str]) -> tuple[str, bool]:
    """Return the form of a body that is read, by what each says, and whether another one has more that matters.

    It is the plainest with half of the most letters; but one with words, or empty cells before numbers, that the plain
    form lacks, if it has all of that one's words, or with marks of raised and struck text, if it has nearly all. One
    with pictures is ``multipart/related``. A plain form marks what it quotes.
    """
    letters = {name: len("".join(_LINK.sub("", text).split())) for name, text in said.items()}
    order = ("text/plain", "text/html", "multipart/related", "multipart/mixed", "text/calendar")
    kinds = sorted(filter(letters.get, letters), key=lambda kind: order.index(kind) if kind in order else len(order))
    most = max((letters[kind] for kind in kinds if kind != "text/calendar"), default=0)
    whole = [kind for kind in kinds if 2 * letters[kind] >= most]
    words = {kind: set(_WORD.findall(_LINK.sub("", said[kind]))) for kind in whole if kind in order[:4]}
    plain, is_quoting = words.pop("text/plain", set()), re.search(r"(?m)^ ?>", said.get("text/plain", ""))
    marked = [kind for kind in letters if kind != "text/plain" and _MARKED.search(said[kind])]
    telling = [
        kind for kind in words if kind in marked and sum(not w.isdigit() for w in plain - words[kind]) < _MANY_WORDS
    ]
    if telling or whole[:1] != ["text/plain"]:
        return next(iter(telling + whole), ""), False
    for kind, others in words.items():
        has_cells = others == plain and _EMPTY_CELL.search(said[kind]) is not None
        if not is_quoting and (others > plain or has_cells):
            return kind, False
        marked += [kind] if has_cells else []
    more = [others - plain for others in words.values()]
    # A plain form that shares few words with another may only say that the text is there.
    least = [3 if 2 * len(others & plain) < len(plain) else _MANY_WORDS for others in words.values()]
    long = any(len(one) >= many for one, many in zip(more, least, strict=True))
    return "text/plain", bool(marked) or long or any(re.search(r"\d", "".join(one)) for one in more)


_MARKED = re.compile(r"~~\S|[\d.,:%)\]]\^")
_EMPTY_CELL = re.compile(r"\t\t[^\t\n]*\d")
_LINK = re.compile(r"<?(?:https?://|mailto:|tel:)\S+|\[(?:cid|image):[^\]\n]*\]")
"""Plain forms write out where links lead, and where pictures are."""
_WORD = re.compile(r"[^\W_]+")
_MANY_WORDS = 10
"""Words of another form that matter; fewer lead to a browser, or name a program."""
_OTHER_FORM = "another form of the text that says more"


def _text(body: Any, request: ParseRequest) -> str:
    data = body.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    if str(body["Content-Transfer-Encoding"]).lower() == "base64":
        data = _from_base64(body.get_payload()) or data
    charset = body.get_content_charset()
    if body.get_content_subtype() == "html" and not charset:
        return _page(data, request)  # what the page says of itself counts
    text, _ = decode(data, charset) if data else ("", "")
    return _page(text.encode(), request) if body.get_content_subtype() == "html" else text


def _from_base64(said: str) -> bytes:
    """Return what lines of base64 say, also where the end is cut off, and a footer behind them, which has no such ones.

    Empty: these lines do not follow each other; Python makes of all letters what it can.
    """
    lines, taken = [line.strip() for line in said.strip().split("\n")], list[str]()
    while taken != lines and _BASE64.fullmatch(line := lines[len(taken)]):
        if taken and len(taken[-1]) != len(taken[0]):
            break
        taken.append(line)
    footer = lines[len(taken) :]
    if not taken or (footer and all(_BASE64.fullmatch(line) for line in footer if line)):
        return b""
    letters = "".join(taken).rstrip("=")
    text = b64decode(letters[: len(letters) - (len(letters) % 4 == 1)] + "==")
    return b"\n".join([text, *(line.encode("utf-8", "surrogateescape") for line in footer)])


def _page(data: bytes, request: ParseRequest) -> str:
    (page,) = parse_html(BytesIO(data), request, is_static=not request.name.lower().endswith((".mht", ".mhtml")))
    return page.text
