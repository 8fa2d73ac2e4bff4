"""Books: chapters in reading order."""

import io
import zipfile

import pytest

from infra.sources.base import Parsed, ParseRequest
from infra.sources.html import parse_epub
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.office import epub


def parsed(data: bytes) -> Parsed:
    (document,) = parse_epub(io.BytesIO(data), ParseRequest("a.epub", IngestConfig()))
    return document


def test_chapters_are_in_reading_order():
    document = parsed(epub(("two", "one")))
    assert document.title == "The Book"
    assert document.text.split() == ["two", "It", "rained.", "one", "It", "rained."]


def test_protection_is_said_and_that_of_fonts_is_none():
    assert parsed(epub(("one",), encrypted="http://www.idpf.org/2008/embedding")).text
    with pytest.raises(SourceError, match="encrypted"):
        parsed(epub(("one",), encrypted="http://www.w3.org/2001/04/xmlenc#aes128-cbc"))


@pytest.mark.parametrize("data", [b"no archive", epub(("three",)), epub(("one",), missing="one")])
def test_a_book_with_a_chapter_that_is_not_there_is_damaged(data: bytes):
    with pytest.raises(SourceError, match=r"broken.*\.epub"):
        parsed(data)


def test_names_may_have_prefixes():
    chapter = "<h:html xmlns:h='http://www.w3.org/1999/xhtml' xmlns:m='http://www.w3.org/1998/Math/MathML'><h:body>"
    chapter += "<h:p>10</h:p><h:p><m:math><m:mfrac><m:mn>1</m:mn><m:mn>2</m:mn></m:mfrac></m:math></h:p>"
    assert parsed(epub(("one",), chapter=f"{chapter}</h:body></h:html>")).text.split() == ["10", "1/2"]


def test_classes_of_the_style_sheet_raise_and_strike():
    sheet = "/* é */ .c1, span.c2 { vertical-align: super; font-size: 60% }\n.c3 { text-decoration: line-through }"
    chapter = "<html><head/><body><p>10<span class='c2'>6</span> <i class='c3'>60</i> days</p></body></html>"
    assert parsed(epub(("one",), chapter=chapter, sheet=sheet)).text == "10^6 ~~60~~ days"


def test_what_the_style_sheet_of_a_book_moves_up_or_hides_is_so():
    sheet = "SPAN.c2 { position: relative; top: -4pt } .c3 { display: none } .c4 { font-family: Wingdings }"
    chapter = (
        "<html><head/><body><p>10<span class='c2'>6</span> <i class='c3'>60</i><b class='c4'>þ</b></p></body></html>"
    )
    assert parsed(epub(("one",), chapter=chapter, sheet=sheet)).text.split() == ["10^6", "☑"]


def test_large_pictures_are_said_and_the_cover_is_not():
    pictures = {"table": 40_000, "cover-image": 40_000, "line": 100}
    items = "".join(f"<item id='{name}' href='{name}.png' media-type='image/png'/>" for name in pictures)
    book, whole = zipfile.ZipFile(io.BytesIO(epub(("one", "two")))), io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in book.namelist():
            archive.writestr(name, book.read(name).replace(b"</manifest>", f"{items}</manifest>".encode()))
        for name, size in pictures.items():
            archive.writestr(f"OEBPS/{name}.png", bytes(size))
    (document,) = parse_epub(io.BytesIO(whole.getvalue()), ParseRequest("a.epub", IngestConfig()))
    assert document.warnings == ("part not read: 1 large picture",)
