"""Presentations: slides in their order, with tables, comments and notes."""

import io
import zipfile

import pytest

from infra.sources.base import Parsed, ParseRequest
from infra.sources.pptx import parse_pptx
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.office import body, pptx, shape


def parsed(data: bytes) -> Parsed:
    (document,) = parse_pptx(io.BytesIO(data), ParseRequest("a.pptx", IngestConfig()))
    return document


def test_slides_are_pages_in_their_order_with_the_title_first():
    grouped = f"<p:grpSp>{shape('Grouped')}</p:grpSp>"
    slides = {
        "b": shape("Point", "Other") + grouped + shape("Terms", place="title") + shape("7", place="sldNum"),
        "a": shape("End"),
    }
    document = parsed(pptx(slides))
    assert document.text == "Terms\nPoint\nOther\nGrouped\n\nEnd"
    assert document.page_starts == [0, len("Terms\nPoint\nOther\nGrouped\n\n")] and document.warnings == ()


def test_a_slide_that_is_not_shown_says_so():
    data = io.BytesIO(pptx({"a": shape("Old terms"), "b": shape("New terms")}))
    with zipfile.ZipFile(data) as old, zipfile.ZipFile(out := io.BytesIO(), "w") as new:
        for name in old.namelist():
            part = old.read(name)
            new.writestr(name, part.replace(b"<p:sld ", b'<p:sld show="0" ') if b"Old terms" in part else part)
    assert parsed(out.getvalue()).text == "(hidden slide)\nOld terms\n\nNew terms"


def test_tables_have_rows():
    cells = [["Rent", "900"], ["Term", "two\tyears"]]
    rows = "".join(f"<a:tr>{''.join(f'<a:tc>{body(one)}</a:tc>' for one in row)}</a:tr>" for row in cells)
    document = parsed(pptx({"s": f"<p:graphicFrame><a:tbl>{rows}</a:tbl></p:graphicFrame>"}))
    assert document.text == "Rent\t900\nTerm\ttwo years"


def test_powers_are_no_digits_of_their_number():
    power = "<a:r><a:rPr baseline='30000'/><a:t>6</a:t></a:r>"
    document = parsed(pptx({"s": f"<p:sp><a:p><a:r><a:t>about 10</a:t></a:r>{power}</a:p></p:sp>"}))
    assert document.text == "about 10^6"


def test_what_is_struck_through_is_marked():
    old = "".join(f"<a:r><a:rPr strike='sngStrike'/><a:t>{words}</a:t></a:r>" for words in ("EUR ", "500"))
    document = parsed(
        pptx({"s": f"<p:sp><a:p>{old}<a:r><a:rPr strike='noStrike'/><a:t> EUR 900</a:t></a:r></a:p></p:sp>"})
    )
    assert document.text == "~~EUR 500~~ EUR 900"


def test_hidden_shapes_are_left_out_and_digits_of_another_height_kept_apart():
    hidden = "<p:sp><p:nvSpPr><p:cNvPr hidden='1'/></p:nvSpPr><a:p><a:r><a:t>secret</a:t></a:r></a:p></p:sp>"
    runs = (("1", 30000, ""), ("10 days, 10", 0, ""), ("6", 30000, "sngStrike"), (" log", 0, ""), ("2", -25000, ""))
    words = "".join(
        f"<a:r><a:rPr baseline='{shift}' strike='{strike}'/><a:t>{said}</a:t></a:r>" for said, shift, strike in runs
    )
    said = parsed(pptx({"s": f"{hidden}<p:sp><a:p>{words}<a:r><a:t>8</a:t></a:r></a:p></p:sp>"})).text
    assert said == "1 10 days, 10~~^6~~ log2 8"


def test_numbers_of_lists_are_written():
    def item(text: str, *, kind: str = "arabicPeriod", level: int = 0, start: str = "") -> str:
        number = f"<a:buAutoNum type='{kind}' {start}/>" if kind else ""
        return f"<a:p><a:pPr lvl='{level}'>{number}</a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>"

    first = [item("Rent"), item("net", kind="alphaLcParenR", level=1), item("gross", kind="alphaLcParenR", level=1)]
    first += [item(""), item("Term"), item("tax", kind="alphaLcParenR", level=1), item("Plain", kind="")]
    first += [item("Notice", kind="romanUcParenBoth", start="startAt='4'"), item("End", kind="ea1JpnKorPlain")]
    document = parsed(pptx({"s": f"<p:sp>{''.join(first)}</p:sp><p:sp>{item('Other')}</p:sp>"}))
    assert document.text.split("\n") == [
        *("1. Rent", "a) net", "b) gross", "2. Term", "a) tax", "Plain", "(IV) Notice", "1. End", "1. Other")
    ]


def test_numbers_begin_anew_with_another_kind_and_bullets_that_say_something_are_read():
    def item(text: str, mark: str) -> str:
        return f"<a:p><a:pPr>{mark}</a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>"

    kinds = ("arabicPeriod", "alphaLcParenR", "arabicPeriod")
    items = [item("x", f"<a:buAutoNum type='{kind}'/>") for kind in kinds for _ in range(2)]
    items += [
        item("is in", "<a:buFont typeface='Wingdings'/><a:buChar char='ü'/>"),
        item("is out", "<a:buChar char='✗'/>"),
    ]
    items += [item("plain", "<a:buChar char='•'/>")]
    document = parsed(pptx({"s": f"<p:sp>{''.join(items)}</p:sp>"}))
    numbers = ["1. x", "2. x", "a) x", "b) x", "1. x", "2. x"]
    assert document.text.split("\n") == [*numbers, "✓ is in", "✗ is out", "plain"]


def test_numbers_begin_anew_where_a_list_starts_at_another_number():
    starts = ("", "", "startAt='5'", "startAt='5'", "")
    items = "".join(
        f"<a:p><a:pPr><a:buAutoNum type='arabicPeriod' {start}/></a:pPr><a:r><a:t>x</a:t></a:r></a:p>"
        for start in starts
    )
    assert parsed(pptx({"s": f"<p:sp>{items}</p:sp>"})).text.split() == "1. x 2. x 5. x 6. x 1. x".split()


def test_letters_in_fonts_of_signs_are_signs():
    runs = (("latin", "Symbol", "m"), ("sym", "Wingdings", "g \uf0e8"))
    said = "".join(
        f"<a:r><a:rPr><a:{kind} typeface='{font}'/></a:rPr><a:t>{text}</a:t></a:r>" for kind, font, text in runs
    )
    assert parsed(pptx({"s": f"<p:sp><a:p>{said}</a:p></p:sp>"})).text == "μg ➔"


def test_comments_notes_and_diagrams_follow_their_slide():
    notes = f"<p:cSld><p:spTree>{shape('3', place='sldNum')}{shape('Say this', place='body')}</p:spTree></p:cSld>"
    beside = {
        "s": {
            "d1": ("diagramData", "<a:p><a:r><a:t>Step one</a:t></a:r></a:p>"),
            "c1": ("comments", "<p:cm><p:text>Really?</p:text></p:cm>"),
            "n1": ("notesSlide", notes),
        }
    }
    diagram = '<p:graphicFrame><a:graphicData uri="http://x/diagram"/></p:graphicFrame>'
    document = parsed(pptx({"s": shape("Slide") + diagram}, beside))
    assert document.text == "Slide\nStep one\nComment: Really?\nNotes:\nSay this" and document.warnings == ()


def test_charts_and_pictures_of_a_tenth_of_a_slide_are_said():
    chart = '<p:graphicFrame><a:graphicData uri="http://x/chart"/></p:graphicFrame>'
    picture = '<p:pic><p:spPr><a:xfrm><a:ext cx="{}" cy="6858000"/></a:xfrm></p:spPr></p:pic>'
    document = parsed(pptx({"s": shape("S") + chart + picture.format(914400) + picture.format(1000)}))
    assert document.warnings == ("part not read: 1 chart; 1 large picture",)
    document = parsed(pptx({"s": shape("S") + "<p:pic><p:spPr/></p:pic>"}))
    assert document.warnings == ("part not read: 1 large picture",), "it is as large as its placeholder"


def test_an_equation_is_said():
    half = '<a:p><m:oMath xmlns:m="m"><m:f><m:num><m:t>1</m:t></m:num><m:den><m:t>2</m:t></m:den></m:f></m:oMath></a:p>'
    assert parsed(pptx({"s": shape("S").replace("<a:p>", f"{half}<a:p>", 1)})).warnings == (
        "part not read: 1 equation",
    )


@pytest.mark.parametrize("data", [b"no archive", pptx({"s": "<cut>"})])
def test_what_is_none_is_said(data: bytes):
    with pytest.raises(SourceError, match=r"broken.*\.pptx"):
        parsed(data)


def test_a_diagram_that_no_slide_shows_takes_nothing_from_what_is_said():
    beside = {"s": {"d1": ("diagramData", "<a:p><a:r><a:t>Step</a:t></a:r></a:p>")}}
    assert parsed(pptx({"s": shape("S")}, beside)).warnings == ()


def test_what_a_layout_shows_is_said_with_its_first_slide():
    def tree(*shapes: str) -> str:
        return f"<p:cSld><p:spTree>{''.join(shapes)}</p:spTree></p:cSld>"

    layout = ("slideLayout", tree(shape("Confidential"), shape("Click to edit", place="title")))
    slides = {"a": shape("One"), "b": shape("Two")}
    document = parsed(pptx(slides, {"a": {"layout1": layout}}))
    assert document.text == "One\nConfidential\n\nTwo"
