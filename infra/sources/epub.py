"""Books (.epub): the chapters in reading order (EPUB 3.3)."""

import posixpath
import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO
from urllib.parse import unquote

from infra.sources.base import Parsed, ParseRequest, within
from infra.sources.decoding import clean
from infra.sources.html import parse_html
from infra.sources.office import child, local_name, opened, xml
from memagent.errors import SourceError

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that only make fonts unusable elsewhere."""


def parse_epub(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the book's text, an empty line between chapters.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``, or as `infra.sources.html.parse_html`.
    """
    with opened(stream, request, "book", ".epub") as archive:
        if _ENCRYPTION in archive.namelist() and not _only_fonts(archive):
            raise SourceError("encrypted", "it is protected against copying; get it without protection")
        package = next(xml(archive.read(_CONTAINER)).iter("{*}rootfile")).get("full-path", "")
        book = xml(archive.read(package))
        title = next((one.text or "" for one in book.iter("{*}title")), "")
        text = "\n\n".join(within(request.allowance, _chapters(archive, book, posixpath.dirname(package), request)))
    yield Parsed(text, clean(title), "application/epub+zip")


def _chapters(archive: zipfile.ZipFile, book: object, folder: str, request: ParseRequest) -> Iterator[str]:
    items = {one.get("id"): one.get("href", "") for one in child(book, "manifest")}
    for one in child(book, "spine"):
        if local_name(one) == "itemref":
            path = posixpath.normpath(posixpath.join(folder, unquote(items[one.get("idref")])))
            (page,) = parse_html(BytesIO(archive.read(path)), request)
            if text := page.text.strip("\n"):
                yield text


def _only_fonts(archive: zipfile.ZipFile) -> bool:
    methods = xml(archive.read(_ENCRYPTION)).iter("{*}EncryptionMethod")
    return all(method.get("Algorithm") in _FONTS for method in methods)
