"""PDF: values of forms, pages in strips, and what is said of comments and attachments."""

import io

from infra.sources.base import Parsed, ParseRequest
from infra.sources.pdf import _Found, parse_pdf
from memagent.config import IngestConfig

_FONT = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
_STRIP = "<</Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8>>"


def stream(content: str, head: str = "<<>>") -> str:
    return f"{head[:-2]}/Length {len(content)}>>\nstream\n{content}\nendstream"


def written(content: str, page: str = "", catalog: str = "", *objects: str) -> bytes:
    """A first page of text and a second one of a content; objects are numbered from 8."""
    pages = "/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F 6 0 R>>/XObject<</I 7 0 R>>>>"
    parts = [
        f"<</Type/Catalog/Pages 2 0 R{catalog}>>",
        "<</Type/Pages/Kids[3 0 R 4 0 R]/Count 2>>",
        f"<</Type/Page{pages}/Contents 5 0 R>>",
        f"<</Type/Page{pages}/Contents {8 + len(objects)} 0 R{page}>>",
        stream("BT /F 12 Tf 50 700 Td (First page.) Tj ET"),
        _FONT,
        stream("x", _STRIP),
        *objects,
        stream(content),
    ]
    out, places = b"%PDF-1.7\n", []
    for number, one in enumerate(parts, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{one}\nendobj\n".encode()
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    out += f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{rows}trailer\n".encode()
    out += f"<</Size {len(parts) + 1}/Root 1 0 R>>\nstartxref\n{out.rindex(b'xref')}\n%%EOF".encode()
    return out


def parsed(content: str, page: str = "", catalog: str = "", *objects: str) -> Parsed:
    (document,) = parse_pdf(
        io.BytesIO(written(content, page, catalog, *objects)), ParseRequest("a.pdf", IngestConfig())
    )
    return document


def test_values_of_a_form_are_read_that_the_file_has_no_picture_of():
    field = "<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/V(Ann Smith)/DA(/F 12 Tf 0 g)/Rect[50 600 300 620]/F 4>>"
    form = "/AcroForm<</NeedAppearances true/Fields[8 0 R]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    document = parsed("BT /F 12 Tf 50 700 Td (Name:) Tj ET", "/Annots[8 0 R]", form, field)
    assert document.text.split() == "First page. Name: Ann Smith".split() and document.warnings == ()


def test_values_and_boxes_of_a_form_stand_where_its_fields_are():
    head = "<</Type/Annot/Subtype/Widget/F 4/DA(/F 12 Tf 0 g)"
    fields = [
        f"{head}/FT/Tx/T(a)/V(Ann Smith)/Rect[150 696 300 712]>>",
        f"{head}/FT/Tx/T(b)/V(5 May)/Rect[400 696 500 712]>>",
        f"{head}/FT/Btn/T(c)/V/On/AS/On/AP<</N<</On 7 0 R>>>>/Rect[50 668 60 678]>>",
        f"{head}/FT/Btn/T(d)/AS/Off/AP<</N<</On 7 0 R>>>>/Rect[150 668 160 678]>>",
        f"{head}/FT/Btn/T(h)/V/Yes/AS/Yes/AP<</N<</on 7 0 R>>>>/Rect[250 668 260 678]>>",
        f"{head}/FT/Tx/T(e)/V(Berlin)/Rect[50 610 90 625]>>",
        f"{head}/FT/Ch/Ff 131072/T(f)/V(Texas)/Opt[(Texas)(Ohio)]/Rect[200 610 300 625]>>",
        f"{head}/FT/Ch/T(i)/V(French)/I[1]/Opt[(German)(French)]/Rect[100 520 200 570]>>",
        f"{head}/FT/Tx/T(g)/V(none)/F 2/Rect[400 610 500 625]>>",
        "<</Type/Annot/Subtype/FreeText/F 4/DA(/F 12 Tf 0 g)/Contents(A note)/Rect[50 400 300 420]>>",
    ]
    numbers = " ".join(f"{number} 0 R" for number in range(8, 18))
    form = f"/AcroForm<</NeedAppearances true/Fields[{numbers}]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    said = (
        (50, 700, "Landlord:"),
        (350, 700, "Signed:"),
        (65, 670, "Pets"),
        (165, 670, "Children"),
        (265, 670, "Dogs"),
    )
    said += ((50, 628, "Place of birth"), (200, 628, "State"), (50, 580, "All is agreed."), (50, 540, "Language:"))
    text = " ".join(f"BT /F 12 Tf {x} {y} Td ({words}) Tj ET" for x, y, words in said)
    read = parsed(text, f"/Annots[{numbers}]", form, *fields).text.split("\n\n", 1)[1]
    lines = ["Landlord: Ann Smith Signed: 5 May", "☒ Pets ☐ Children ☒ Dogs", "Place of birth Berlin State Texas"]
    assert (
        read.splitlines()[:5] == [*lines, "All is agreed.", "Language: French"]
        and read.count("Smith") == 1
        and "none" not in read
        and "German" not in read
    )


def test_fields_in_rows_stay_together_and_those_without_words_follow_the_field_above():
    rows = [("Rent", "12", "9,600"), ("Staff", "", "48,000"), ("Travel", "5", "1,250"), ("Print", "1", "480")]
    places = [
        (x, 640 - 20 * row, cell)
        for row, cells in enumerate(rows)
        for x, cell in zip((50, 200, 350), cells, strict=True)
    ]
    places += [(120, 696, "Ann Smith"), (120, 676, "1 Elm Street"), (350, 460, "Chair")]
    head = "<</Type/Annot/Subtype/Widget/F 4/FT/Tx/DA(/F 12 Tf 0 g)"
    fields = [f"{head}/T(f{x} {y})/V({said})/Rect[{x} {y} {x + 100} {y + 16}]>>" for x, y, said in places]
    numbers = " ".join(f"{8 + number} 0 R" for number in range(len(fields)))
    form = f"/AcroForm<</NeedAppearances true/Fields[{numbers}]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    said = ((50, 740, "A very long title of the whole form"), (50, 700, "To:"), (50, 662, "Item"), (200, 662, "Months"))
    said += ((350, 662, "Amount"), (50, 540, "All is agreed."), (350, 540, "Signed for us:"))
    text = " ".join(f"BT /F 12 Tf {x} {y} Td ({words}) Tj ET" for x, y, words in said)
    read = parsed(text, f"/Annots[{numbers}]", form, *fields).text.split("\n\n", 1)[1]
    assert read.splitlines() == [
        "A very long title of the whole form",
        "To: Ann Smith 1 Elm Street",
        "Item Months Amount",
        *(" ".join(filter(None, row)) for row in rows),
        "All is agreed. Signed for us: Chair",
    ]


def test_a_page_that_is_shown_turned_is_read_as_it_is_shown():
    field = "<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(Ann)/F 4/DA(/F 12 Tf 0 g)/Rect[{}]>>"
    form = "/AcroForm<</NeedAppearances true/Fields[8 0 R]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    text = "BT /F 12 Tf 50 500 Td (Fee 10) Tj 5 Ts /F 7 Tf (6) Tj 0 Ts ET BT /F 12 Tf 50 400 Td (Void) Tj ET"
    text += " 50 404 26 1 re f BT /F 12 Tf 50 300 Td (Name:) Tj 200 0 Td (of Rome) Tj ET"
    shown = "Fee 10^6\n~~Void~~\nName: Ann of Rome"
    turned = {
        90: ("0 1 -1 0 600 0", "284 100 304 190"),
        180: ("-1 0 0 -1 600 800", "410 484 500 504"),
        270: ("0 -1 1 0 0 800", "296 610 316 700"),
    }
    assert parsed(text, "/Annots[8 0 R]", form, field.format("100 296 190 316")).text.endswith(shown)
    level = parsed(text, "/Rotate 90/Annots[8 0 R]", form, field.format("100 296 190 316"))
    assert level.text.endswith(shown), "words that are shown upright on no page are read as they are written"
    for quarter, (matrix, place) in turned.items():
        page = f"/Rotate {quarter}/Annots[8 0 R]"
        assert parsed(f"{matrix} cm {text}", page, form, field.format(place)).text.endswith(shown)


def test_words_that_readers_struck_on_a_turned_page_are_marked():
    text = "0 1 -1 0 600 0 cm BT /F 12 Tf 50 500 Td (Fee is void) Tj ET"
    corners = "91 50 91 106 104 50 104 106"  # of the words, as the page is written
    note = f"<</Type/Annot/Subtype/StrikeOut/F 4/QuadPoints[{corners}]/Rect[88 48 106 108]>>"
    assert parsed(text, "/Rotate 90/Annots[8 0 R]", "", note).text.endswith("~~Fee is void~~")


def test_a_value_that_is_drawn_over_others_on_a_turned_page_is_read_whole():
    head = "<</Type/Annot/Subtype/Widget/FT/Tx/F 4/MK<</R 90>>/DA(/F 10 Tf 0 g)"
    fields = [f"{head}/T(a)/V(1,200)/Rect[88 130 104 250]>>", f"{head}/T(b)/V(5,000)/Rect[118 130 134 250]>>"]
    form = "/AcroForm<</NeedAppearances true/Fields[8 0 R 9 0 R]/DA(/F 10 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    text = "0 1 -1 0 600 0 cm BT /F 12 Tf 50 500 Td (Rent:) Tj 0 -30 Td (Deposit:) Tj ET"
    read = parsed(text, "/Rotate 90/Annots[8 0 R 9 0 R]", form, *fields).text.split("\n\n", 1)[1]
    assert read.split() == "Rent: 1,200 Deposit: 5,000".split()


def test_a_printed_word_beside_a_field_is_said_once():
    look = "<</Type/XObject/Subtype/Form/BBox[0 0 150 16]/Resources<</Font<</F 6 0 R>>>>>>"
    head = "<</Type/Annot/Subtype/Widget/FT/Tx/F 4/DA(/F 12 Tf 0 g)"
    fields = [
        f"{head}/T(a)/V(Ann)/Rect[150 696 300 712]/AP<</N 9 0 R>>>>",
        stream("BT /F 12 Tf 2 4 Td (Ann) Tj ET", look),
        f"{head}/T(b)/V(5,000)/Rect[150 666 300 682]/AP<</N 11 0 R>>>>",
        stream("BT /F 12 Tf 2 4 Td (5,000) Tj ET", look),
    ]
    form = "/AcroForm<</Fields[8 0 R 10 0 R]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    text = "BT /F 12 Tf 50 700 Td (Tenant:) Tj 0 -30 Td (Rent:) Tj 300 30 Td (Form 12) Tj ET"
    read = parsed(text, "/Annots[8 0 R 10 0 R]", form, *fields).text.split("\n\n", 1)[1]
    assert read.splitlines() == ["Tenant: Ann", "Rent: 5,000", "Form 12"]
    text = "BT /F 12 Tf 50 700 Td (Pays) Tj 260 0 Td (EUR a year.) Tj -260 -30 Td (Rent:) Tj ET"
    read = parsed(text, "/Annots[8 0 R 10 0 R]", form, *fields).text.split("\n\n", 1)[1]
    assert read.splitlines() == ["Pays Ann EUR a year.", "Rent: 5,000"]


def test_a_box_before_the_first_words_stands_before_them():
    box = "<</Type/Annot/Subtype/Widget/F 4/FT/Btn/T(a)/V/On/AS/On/AP<</N<</On 7 0 R>>>>/Rect[50 698 60 708]>>"
    form = "/AcroForm<</Fields[8 0 R]/DA(/F 12 Tf 0 g)/DR<</Font<</F 6 0 R>>>>>>"
    text = "BT /F 12 Tf 65 700 Td (I do not consent.) Tj ET"
    assert parsed(text, "/Annots[8 0 R]", form, box).text.endswith("\n\n☒ I do not consent.")


def test_small_digits_above_the_line_are_no_digits_of_their_number():
    power = "/F 7 Tf 5 Ts ({}) Tj 0 Ts /F 12 Tf"
    text = f"(10) Tj {power.format('-6')} ( m, 1,000) Tj {power.format('12')} ( to \\(5\\)) Tj {power.format('3')}"
    text += " ( of 2020-21) Tj"
    words = parsed(f"BT /F 12 Tf 50 700 Td {text} ET").text.split("First page.")[1].split()
    scaled = "/F 1 Tf 12 0 0 12 50 700 Tm (Fee 10) Tj 7 0 0 7 87.4 705 Tm (6) Tj"
    places = zip((12, 7, 12, 7, 12), (50, 63.3, 67.2, 84.6, 88.5), ("10", "3", "-10", "4", "-20"), strict=True)
    several = " ".join(f"{size} 0 0 {size} {x} {700 if size == 12 else 703} Tm ({said}) Tj" for size, x, said in places)
    assert "10^3-10^4-20" in parsed(f"BT /F 1 Tf {several} ET").text
    assert "10^6" in parsed(f"BT {scaled} ET").text
    note = "/F 7 Tf 5 Ts (1) Tj 0 Ts /F 12 Tf (10 days) Tj"
    assert "1 10 days" in parsed(f"BT /F 12 Tf 50 700 Td {note} ET").text
    assert words == "10^-6 m, 1,000^12 to (5)^3 of 2020-21".split()


def test_words_that_a_line_goes_through_are_marked():
    text = "BT /F 12 Tf 50 700 Td (Fee of sixty 60 days is due) Tj ET"
    over, under, rules = (
        "50 703.5 40 1 re f 90 703.5 42 1 re f",
        "50 698 m 190 698 l S",
        "0 712 600 1 re f 0 690 600 1 re f",
    )
    assert parsed(f"{text} {under} {rules}").text.endswith("\n\nFee of sixty 60 days is due")
    assert parsed(f"{text} {over}").text.endswith("\n\n~~Fee of sixty 60~~ days is due")
    assert parsed(f"{text} {over.replace('703', '704')} {over}").text.endswith("\n\n~~Fee of sixty 60~~ days is due")
    assert parsed(f"{text} 200 703.5 300 1 re f").text.endswith("\n\nFee of sixty 60 days is due"), "a line beside it"
    corners = "90 712 132 712 90 697 132 697"
    note = f"<</Type/Annot/Subtype/StrikeOut/F 4/C[1 0 0]/Rect[90 695 132 712]/QuadPoints[{corners}]>>"
    assert parsed(text, "/Annots[8 0 R]", "", note).text.endswith("\n\nFee of ~~sixty 60~~ days is due")


def test_large_words_are_struck_by_thick_lines():
    text = "BT /F 40 Tf 50 700 Td (Budget 500) Tj ET"
    assert parsed(f"{text} 50 710 200 5 re f").text.endswith("\n\n~~Budget 500~~")
    assert parsed(f"{text} 50 706 200 9 re f").text.endswith("\n\nBudget 500"), "a bar is no line"


def test_letters_of_signs_are_shown_and_those_without_a_meaning_counted():
    def font(name: str, code: str) -> tuple[str, str]:
        words = (
            f"begincmap 1 begincodespacerange <00> <ff> endcodespacerange 1 beginbfchar <41> <{code}> endbfchar endcmap"
        )
        return f"<</Type/Font/Subtype/TrueType/BaseFont/{name}/ToUnicode 9 0 R>>", stream(words)

    page = "/Resources<</Font<</F 8 0 R>>>>"
    said = "BT /F 12 Tf 50 700 Td (A) Tj ET"
    assert parsed(said, page, "", *font("ABCDEF+Wingdings-Regular", "f0fe")).text.endswith("☑")
    assert parsed(said, page, "", *font("ABCDEF+SymbolMT", "f0b3")).text.endswith("≥")
    assert parsed(said, page, "", *font("Own", "e001")).warnings == ("part not read: 1 unreadable letter",)


def test_a_line_is_judged_by_the_largest_words_over_it():
    under = "BT /F 12 Tf 50 700 Td (H) Tj -3 Ts /F 8 Tf (2) Tj 0 Ts /F 12 Tf (O) Tj ET 50 698.5 12 .5 re f"
    assert parsed(f"{under} 62 698.5 8 .5 re f").text.endswith("\n\nH2O")
    over = "BT /F 12 Tf 50 700 Td (Fee) Tj 3 Ts /F 8 Tf (a) Tj 0 Ts /F 6 Tf ( due....) Tj ET 50 703.2 21 .5 re f"
    assert parsed(f"{over} 71.5 703.3 30 .5 re f").text.endswith("\n\n~~Feea due....~~")


def test_what_is_not_seen_strikes_nothing():
    text, over = "BT /F 12 Tf 50 700 Td (Fee of sixty) Tj ET", "50 703.5 60 1 re"
    assert parsed(f"{text} {over} f").text.endswith("\n\n~~Fee of sixty~~")
    assert parsed(f"{text} 1 g {over} f 1 G 50 704 m 110 704 l S {over} n").text.endswith("\n\nFee of sixty")
    note = "<</Type/Annot/Subtype/StrikeOut/F 2/Rect[50 695 110 712]/QuadPoints[50 712 110 712 50 697 110 697]>>"
    assert parsed(text, "/Annots[8 0 R]", "", note).text.endswith("\n\nFee of sixty")


def test_lines_of_an_embedded_figure_stand_where_it_stands():
    head = "<</Type/XObject/Subtype/Form/Matrix[.5 0 0 .5 10 10]/BBox[0 0 900 900]/Resources<</Font<</F 6 0 R>>>>>>"
    figure = stream("BT /F 20 Tf 50 680 Td (Fee of sixty) Tj ET 50 686 40 1 re f", head)
    page = "/Resources<</Font<</F 6 0 R>>/XObject<</X 8 0 R>>>>"
    text = "BT /F 12 Tf 50 {} Td (Due) Tj ET q 1.5 0 0 1.5 5 5 cm /X Do Q"
    for place in (682, 200):
        assert parsed(text.format(place), page, "", figure).text.endswith("\n\nDue\n~~Fee~~ of sixty")


def test_a_page_that_a_scanner_cut_into_strips_is_a_picture(monkeypatch):
    monkeypatch.setattr("infra.sources.pdf._ocr_is_there", lambda: False)
    strips = " ".join(f"q 600 0 0 80 0 {80 * row} cm /I Do Q" for row in range(10))
    assert parsed(strips).warnings == ("part not read: page 2 (a picture)",)
    words = "BT /F 12 Tf 50 700 Td (Fee) Tj ET"
    assert parsed(f"{words} q 600 0 0 40 0 0 cm /I Do Q").warnings == ()


def test_a_large_picture_beside_text_is_said_unless_the_text_stands_on_it():
    picture, words = "q 300 0 0 300 50 50 cm /I Do Q ", "BT /F 12 Tf 60 {} Td (Exhibit B: the invoice.) Tj ET"
    assert parsed(picture + words.format(700)).warnings == ("part not read: 1 large picture",)
    assert parsed(picture + words.format(100)).warnings == ("part not read: 1 large picture",), "it may be a stamp"
    layer = " ".join(words.format(height) for height in range(60, 160, 20))
    assert parsed(picture + layer).warnings == (), "a scan with its text"
    tiles = " ".join(f"q 150 0 0 30 {x} {y} cm /I Do Q" for x in (50, 200) for y in range(50, 350, 30))
    assert parsed(tiles + words.format(700)).warnings == ("part not read: 1 large picture",)


def test_a_page_of_letters_that_are_drawn_as_outlines_is_a_picture(monkeypatch):
    monkeypatch.setattr("infra.sources.pdf._ocr_is_there", lambda: True)
    found = _Found(["ACME-17", "No", "Fee of sixty"], ["ACME-17"], 0)
    monkeypatch.setattr("infra.sources.pdf._by_ocr", lambda page, gets_on: found)
    stamp, letter = (
        "BT /F 12 Tf 50 40 Td (No. 5) Tj 0 -20 Td (ACME-17) Tj ET",
        "{0} 700 m {0} 710 {1} 710 {1} 700 c {1} 705 {0} 705 {0} 700 c {1} 700 l {0} 702 l {1} 704 l h f ",
    )
    letters = "".join(letter.format(x, x + 2) for x in range(50, 550, 3))
    assert parsed(stamp + letters).text.endswith("No. 5\nACME-17\nNo\nFee of sixty"), "words are not said twice"
    assert parsed(stamp + letters[: len(letters) // 3]).text.endswith("ACME-17"), "it may be a coat of arms"


def test_signs_that_are_drawn_after_their_line_stand_in_their_places():
    words, signs = "[(Cover: )-1300(fire )-1300(flood)] TJ", "[(4)-2000(8)] TJ"
    line = f"BT /F 12 Tf 50 700 Td {words} ET BT /Z 12 Tf 88 700 Td {signs} ET"
    fonts = "/Resources<</Font<</F 6 0 R/Z 8 0 R>>>>"
    zapf = "<</Type/Font/Subtype/Type1/BaseFont/ZapfDingbats>>"
    assert parsed(line, fonts, "", zapf).text.endswith("Cover: ✔ fire ✘ flood")
    struck = parsed(f"{line} 105 703.6 21 0.7 re f", fonts, "", zapf).text
    assert struck.endswith("Cover: ✔ ~~fire~~ ✘ flood")
    raised = line.replace("flood)] TJ", "flood)] TJ /F 7 Tf 5 Ts (1) Tj 0 Ts")
    assert parsed(raised, fonts, "", zapf).text.endswith("Cover: ✔ fire ✘ flood1")


def test_small_numbers_that_are_drawn_before_or_after_their_line_stand_behind_their_letters():
    line, other = (
        "BT /F 12 Tf 50 700 Td [(Of 10)-500( kg and)-5000( is due to CO)] TJ ET",
        "BT /F 12 Tf 50 650 Td (Next) Tj ET",
    )
    late = "BT /F 7 Tf 81.7 705 Td (-6) Tj 57 -5 Td (EUR 4,500) Tj ET"
    for drawn in (f"{line} {other} {late}", f"{late} {other} {line}"):
        assert sorted(parsed(drawn).text.split("\n")[2:]) == ["EUR 4,500", "Next", "Of 10^-6 kg and is due to CO"]
    columns = "BT /F 12 Tf 50 700 Td (Left) Tj 200 0 Td (Right) Tj -100 0 Td (Middle) Tj ET"
    assert set(parsed(columns).text.split()) >= {"Left", "Right", "Middle"}
    rows = "BT /F 12 Tf 50 700 Td (3 x 10) Tj 100 0 Td (18) Tj ET BT /F 12 Tf 50 670 Td (m) Tj 100 0 Td (5 x 10) Tj ET"
    late = "BT /F 7 Tf 60.5 675 Td (2) Tj 123 0 Td (6) Tj -100 30 Td (4) Tj ET"
    assert parsed(f"{rows} {late}").text.split("\n")[2:] == ["3 x 10^4 18", "m2 5 x 10^6"], "each has its own place"
    base, small = "BT /F 12 Tf 50 700 Td (a x) Tj ET", "BT /F 9 Tf 66.5 704 Td (k3) Tj ET"
    smaller = "BT /F 5 Tf 76.5 707 Td (2) Tj ET"
    said = parsed(f"{base} {other} {small} BT /F 12 Tf 50 600 Td (Last) Tj ET {smaller}").text
    assert said.endswith("a xk3^2\nNext\nLast"), "a small one may have a smaller one"
    note = parsed(f"{base} {other} BT /F 7 Tf 68 705 Td (It stands) Tj ET").text
    assert note.endswith("Next\nIt stands"), "words stay where they are"
    amounts = "BT /F 7 Tf 93 704 Td (228.00) Tj ET"
    assert parsed(f"{base.replace('a x', 'Total 9')} {other} {amounts}").text.endswith("Next\n228.00"), "amounts, too"
    beside = "BT /F 7 Tf 68 700 Td (12) Tj ET"
    assert parsed(f"{base} {other} {beside}").text.endswith("Next\n12"), "as those on the same level"
    notes = "BT /F 7 Tf 46 705 Td (1) Tj ET"
    assert parsed(f"{other} {base} {notes}").text.endswith("Next\n1 a x"), "a note has its mark before it"


def test_a_line_that_is_broken_at_a_small_number_goes_on():
    raised = "/F 8 Tf 4 Ts (6) Tj 0 Ts"
    for apart in ("", "ET BT /F 12 Tf 82 700 Td"):
        drawn = f"BT /F 12 Tf 50 700 Td (Of 10) Tj {raised} {apart} /F 12 Tf ( kg is due) Tj ET"
        assert parsed(drawn).text.endswith("Of 10^6 kg is due")


def test_a_line_that_ends_with_a_small_number_does_not_go_on_in_the_next_one():
    struck = "BT /F 12 Tf 50 700 Td (Due 5,000) Tj 55.4 0 Td (.) Tj ET BT /F 8 Tf 108.8 706 Td (a) Tj ET"
    drawn = f"{struck} BT /F 12 Tf 50 684 Td (12,000 EUR are due) Tj ET 50 703.6 63 0.7 re f"
    assert parsed(drawn).text.split("\n")[2:] == ["~~Due 5,000.a~~", "12,000 EUR are due"]


def test_backgrounds_of_words_are_no_part_of_the_line_through_some_of_them():
    words = "BT /F 10 Tf 50 700 Td (The fee is EUR 900 EUR 800 net) Tj ET"
    line, shade = "1 1 0 rg {} 698.5 {} 9 re f 0 g", "97 702.8 44 0.7 re f"
    one, both = line.format(97, 44), line.format(50, 200)
    for drawn in (f"{one} {words} {shade}", f"{both} {words} {shade}", f"{words} {shade} {line.format(138, 60)}"):
        assert parsed(drawn).text.strip().endswith("The fee is ~~EUR 900~~ EUR 800 net")


def test_the_line_above_is_not_looked_at_where_small_numbers_are_drawn_last():
    words = "BT /F 12 Tf 50 700 Td (The fee is) Tj 0 -13 Td (The rent) Tj 60 0 Td (is 90) Tj ET"
    marks = "BT /F 7 Tf 98 692 Td (1) Tj ET BT /F 7 Tf 150 692 Td (2) Tj ET 110 690.6 30 0.7 re f"
    assert parsed(f"{words} {marks}").text.endswith("The fee is\nThe rent 1 ~~is 90^2~~")


def test_lines_of_a_cell_beside_rows_stay_together():
    cell = "BT /F 12 Tf 150 706 Td (may not raise) Tj 0 -12 Td (the fee) Tj ET"
    rows = "BT /F 12 Tf 50 700 Td (Account) Tj 220 0 Td (4.90) Tj ET"
    assert "may not raise\nthe fee" in parsed(f"{rows} {cell}").text


def test_struck_words_around_a_small_number_that_is_drawn_last_are_struck_as_one():
    words = "BT /F 12 Tf 50 700 Td [(Of 12 m)-500( and 80 EUR)] TJ ET BT /F 7 Tf 93 705 Td (2) Tj ET"
    lines = "50 703.6 43 0.7 re f 98 703.6 70 0.7 re f"
    assert parsed(f"{words} {lines}").text.strip().endswith("~~Of 12 m2 and 80 EUR~~")


def test_letters_of_another_font_stand_in_their_words():
    words = "BT /F 12 Tf 50 700 Td [(Nguy)-570(n Van Th)-285(nh 5)] TJ ET"
    late = "BT /F 12 Tf 78.1 700 Td [(\\351)-4070(\\355)] TJ ET"
    assert parsed(f"{words} {late}").text.endswith("Nguyén Van Thính 5")


def test_a_value_that_is_printed_over_the_line_of_a_form_stays_in_one_piece():
    form = "BT /F 12 Tf 50 700 Td (Due: ____________ by ________) Tj ET BT /F 12 Tf 90 700 Td (\\243 1,250.00) Tj ET"
    assert parsed(form).text.endswith("£ 1,250.00")


def test_what_is_drawn_on_a_page_without_text_may_be_words(monkeypatch):
    curves = "50 700 m 60 720 70 720 80 700 c f"
    head = "<</Type/XObject/Subtype/Form/Matrix[600 0 0 800 0 0]/BBox[0 0 1 1]/Resources<</XObject<</I 7 0 R>>>>>>"
    scaled = stream("/I Do", head)
    form = "/Resources<</Font<</F 6 0 R>>/XObject<</X 8 0 R>>>>"
    monkeypatch.setattr("infra.sources.pdf._by_ocr", lambda page, gets_on: _Found([], [], 0))
    for there in (False, True):
        monkeypatch.setattr("infra.sources.pdf._ocr_is_there", lambda there=there: there)
        assert parsed("/X Do", form, "", scaled).warnings == ("part not read: page 2 (a picture)",)
        assert parsed("").warnings == ()
        assert parsed(curves).warnings == (() if there else ("part not read: page 2 (a picture)",))
    monkeypatch.setattr("infra.sources.pdf._by_ocr", lambda page, gets_on: _Found(["Fee of sixty"], [], 2))
    assert parsed(curves).text.endswith("Fee of sixty") and parsed(curves).warnings == (
        "read by OCR (compare numbers; no accents, €, ticks): page 2",
        "part not read: 2 unreadable lines",
    )


def test_comments_and_attachments_are_said():
    note = "<</Type/Annot/Subtype/{}/Rect[10 10 30 30]/Contents({})/QuadPoints[10 30 30 30 10 10 30 10]>>"
    notes = [note.format("Text", "Reject this"), note.format("Highlight", "Why?"), note.format("Highlight", "")]
    notes += [note.format("Square", "Not this box"), note.format("FileAttachment", "")]
    notes.append(note.format("FreeText", "Drawn by no program").replace("/Contents", "/AP<<>>/Contents"))
    notes.append(note.format("Link", "To the site"))
    file = "<</Type/Filespec/F(a.txt)/EF<</F 7 0 R>>>>"
    names = "/Names<</EmbeddedFiles<</Names[(a.txt) 14 0 R]>>>>"
    there = " ".join(f"{8 + number} 0 R" for number in range(len(notes)))
    document = parsed("BT /F 12 Tf 50 700 Td (Fee) Tj ET", f"/Annots[{there}]", names, *notes, file)
    assert document.warnings == ("part not read: 4 comments; 2 attachments",)


def test_each_page_says_that_the_parser_gets_on():
    calls = []
    request = ParseRequest("a.pdf", IngestConfig())
    request.allowance.gets_on = lambda: calls.append(1)
    list(parse_pdf(io.BytesIO(written("")), request))
    assert len(calls) == 2
