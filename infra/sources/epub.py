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
from infra.sources.listing import seekable
from infra.sources.office import check_archive, child, local_name, xml
from memagent.errors import SourceError

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that only make fonts unusable elsewhere."""


def parse_epub(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the book's text, an empty line between chapters.

    Raises:
        SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``, or as `infra.sources.html.parse_html`.
    """
    file = seekable(stream)
    check_archive(file, request, "book", ".epub")
    try:
        with zipfile.ZipFile(file) as archive:
            if _ENCRYPTION in archive.namelist() and not _only_fonts(archive):
                raise SourceError("encrypted", "it is protected against copying; get it without protection")
            root = xml(archive.read(_CONTAINER))
            package = next(root.iter("{*}rootfile")).get("full-path", "")
            book = xml(archive.read(package))
            title = next((one.text or "" for one in book.iter("{*}title")), "")
            chapters = _chapters(archive, book, posixpath.dirname(package), request)
            text = "\n\n".join(within(request.allowance, chapters))
    except (KeyError, ValueError, StopIteration, SyntaxError, RuntimeError, zipfile.BadZipFile) as error:
        raise SourceError("broken", "it is no book, or a damaged one; save it again as .epub") from error
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
