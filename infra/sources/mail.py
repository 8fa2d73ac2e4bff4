"""Mails as files (``.eml``): what was written, under its sender, date and subject."""

from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import BinaryIO

from infra.sources.base import Parsed, ParseRequest
from infra.sources.decoding import clean, decode
from infra.sources.text import parse_html
from memagent.errors import SourceError

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
