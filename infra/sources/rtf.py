"""Rich text (``.rtf``): its text without the marks (striprtf)."""

from collections.abc import Iterator
from typing import BinaryIO

from infra.sources.base import Parsed, ParseRequest
from infra.sources.decoding import clean
from memagent.errors import SourceError


def parse_rtf(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the document's text.

    Raises:
        SourceError: ``broken``, ``bomb``, ``too-large``.
    """
    from striprtf.striprtf import rtf_to_text

    source = stream.read().decode("latin-1")  # letters beyond ASCII are written as escapes
    if not source.lstrip().startswith("{\\rtf"):
        raise SourceError("broken", "it is no rich text; save it again as .rtf")
    try:
        text = rtf_to_text(source, errors="replace")
    except (ValueError, LookupError, IndexError, TypeError) as error:
        raise SourceError("broken", "its marks cannot be read; save it again as .rtf, or as .docx") from error
    request.allowance.check(len(text))
    yield Parsed(clean(text), "", "text/rtf")
