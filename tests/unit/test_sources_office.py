"""Mails, rich text and workbooks, and what is said of kinds that are not read."""

import io
from datetime import date, datetime
from email.message import EmailMessage

import openpyxl
import pytest

from infra.sources import parse
from infra.sources.mail import parse_eml
from memagent.config import IngestConfig
from memagent.errors import SourceError


def parsed(path, **options):
    return list(parse(str(path), path.name, IngestConfig(**options)))


def mail(html=False):
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <ann@example.org>", "b@example.org", "Kündigung"
    if html:
        message.set_content("<p>The notice period is <b>30 days</b>.</p>", subtype="html")
    else:
        message.set_content("The notice period is 30 days.\nGrüße\n")
    return message


def test_a_mail_is_its_headers_and_what_was_written(tmp_path):
    message = mail()
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="draft 2.pdf")
    (tmp_path / "a.eml").write_bytes(message.as_bytes())
    (document,) = parsed(tmp_path / "a.eml")
    assert document.title == "Kündigung" and document.media_type == "message/rfc822"
    assert document.text.startswith("From: Ann <ann@example.org>\nTo: b@example.org\nSubject: Kündigung\n\n")
    assert "The notice period is 30 days.\nGrüße" in document.text
    assert document.text.endswith("Attachment: draft 2.pdf") and "%PDF" not in document.text


def test_a_mail_of_html_alone_is_its_text(tmp_path):
    (tmp_path / "a.eml").write_bytes(mail(html=True).as_bytes())
    (document,) = parsed(tmp_path / "a.eml")
    assert "The notice period is 30 days." in document.text and "<b>" not in document.text


def test_what_is_no_mail_is_said():
    with pytest.raises(SourceError, match="no mail"):
        list(parse_eml(io.BytesIO(b"Some text.\n"), None))


def test_rich_text_is_its_text(tmp_path):
    (tmp_path / "a.rtf").write_bytes(
        rb"{\rtf1\ansi\ansicpg1252{\fonttbl\f0\fswiss Helvetica;}\f0\pard The term is \b 30\b0  days.\par F\'fcr alle.}"
    )
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.split() == "The term is 30 days. Für alle.".split() and document.media_type == "text/rtf"
    (tmp_path / "b.rtf").write_text("no")
    with pytest.raises(SourceError, match="no rich text"):
        parsed(tmp_path / "b.rtf")


def test_a_workbook_is_its_sheets_rows(tmp_path):
    book = openpyxl.Workbook()
    first, second = book.active, book.create_sheet("2026")
    first.title = "register"
    first.append(["party", "since", "amount"])
    first.append([])
    first.append(["Otter\nLtd", date(2026, 1, 31), 12.5])
    second.append([None, datetime(2026, 1, 31, 9, 30), None])
    book.properties.title = "Register of contracts"
    book.save(tmp_path / "register.xlsx")
    (document,) = parsed(tmp_path / "register.xlsx")
    assert document.title == "Register of contracts"
    assert document.text.splitlines() == [
        "register",
        "",
        "party\tsince\tamount",
        "Otter Ltd\t2026-01-31\t12.5",
        "",
        "2026",
        "",
        "\t2026-01-31 09:30:00",
    ]


@pytest.mark.parametrize(
    ("name", "data", "reason", "says"),
    [
        ("a.xlsx", b"PK\x03\x04 broken", "broken", "save it again as .xlsx"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64), "encrypted", "old .xls format"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64), "binary", "save it as .xlsx or .csv"),
        ("a.ppt", b"\xd0\xcf\x11\xe0" + bytes(64), "binary", "save it as .pptx or .pdf"),
        ("a.doc", b"\xd0\xcf\x11\xe0" + bytes(64), "binary", "save it as .docx"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(64), "binary", "unpack it"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(64), "binary", "OCR"),
        ("a.bin", bytes(range(256)) * 4, "binary", "read are .md, .markdown"),
        ("Inbox", b"From a@b.c Mon Mar  4 10:00:00 2024\nFrom: a@b.c\n\nHi\n", "binary", "a mailbox, .*[.]mbox"),
        ("a.xls", b"<?xml version='1.0'?>\n<?mso-application progid='Excel.Sheet'?><a/>", "binary", "save it as .xlsx"),
    ],
)
def test_a_kind_that_is_not_read_says_what_to_do(tmp_path, name, data, reason, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=says) as caught:
        parsed(tmp_path / name)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.doc", b"{\\rtf1 The fee is 4{\\b 4}.}", "The fee is 44."),
        ("a.xls", b"\n<!DOCTYPE html><table><tr><td>M&uuml;ller<td>5 &euro;</table>", "Müller\t5 €"),
        ("a.txt", b"<html xmlns:x='y'><p>One", "One"),
        ("a.xls", b"<table border=1>\n<thead><td>5</table>", "5"),
        ("a.xml", b"<table name='x'><row>5</row></table>", "<table name='x'><row>5</row></table>"),
        ("a.shtml", b"<p>One", "One"),
        ("a.mht", b"MIME-Version: 1.0\nContent-Type: text/html\n\n<p>One", "One"),
        ("17.host_2,S", b"From: a@b.c\nTo: d,\n e\nMIME-Version: 1.0\n\nHi", "From: a@b.c\nTo: d, e\n\nHi"),
        ("17.host", b"Subject:\nX-1: a\nMIME-Version: 1.0\n\nHi", "Hi"),
        ("memo", b"From Ann Smith\nTo: Bob", "From Ann Smith\nTo: Bob"),
        ("a.txt", b"From: a@b.c\nTo: d\n\n{\\rtf1} <html>", "From: a@b.c\nTo: d\n\n{\\rtf1} <html>"),
    ],
)
def test_markup_is_known_by_its_beginning(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    (document,) = parsed(tmp_path / name)
    assert document.text.strip() == said


def test_a_workbook_that_would_inflate_beyond_all_limits_is_refused(tmp_path):
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for _ in range(3000):
        sheet.append(["x" * 10_000])
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(SourceError) as caught:
        parsed(tmp_path / "a.xlsx", max_bytes=2**20)
    assert caught.value.reason in ("bomb", "too-large")


def rtf(tmp_path, body: str):
    (tmp_path / "a.rtf").write_text("{\\rtf1\\ansi" + body + "}")
    (document,) = parsed(tmp_path / "a.rtf")
    return document


def test_rich_text_has_its_notes_headers_and_shapes_without_what_is_deleted_or_hidden(tmp_path):
    title = r"{\info{\title Lease of the mill}}"
    notes = r"{\header Ref KX-9\par}The mill is let.{\footnote\pard Except for the wheel.}"
    notes += r"{\shp{\*\shpinst{\shptxt Boxed.\par}}}"
    gone = r"{\deleted struck}{\v hidden}\v also hidden\v0  {\*\unknown SECRET}"
    document = rtf(tmp_path, title + notes + gone + r"The rent is {\deleted 900}{\revised 1,275} euros.")
    for said in ("Ref KX-9", "The mill is let.", "Except for the wheel.", "Boxed.", "The rent is 1,275 euros."):
        assert said in document.text
    for said in ("struck", "hidden", "SECRET", "900"):
        assert said not in document.text
    assert document.title == "Lease of the mill"


def test_pictures_of_rich_text_that_may_be_pages_are_said_once(tmp_path):
    scan = r"{\pict{\*\picprop{\sp}}\picscalex53\picscaley51\piccropl0\picwgoal18600\pichgoal26310\pngblip 89}"
    logo = r"{\pict\picwgoal2000\pichgoal1000\pngblip 89}"
    copied = rf"{{\*\shppict{scan}}}{{\nonshppict{scan}}}"
    for pictures, count in (
        (scan, 1),
        (logo, 0),
        (copied, 1),
        (copied + logo + scan.replace("scalex53", "scalex10"), 1),
    ):
        warnings = (f"part not read: {count} large picture",) if count else ()
        assert rtf(tmp_path, f"The fee. {pictures}").warnings == warnings


def test_watermarks_of_rich_text_are_read_and_moved_words_once(tmp_path):
    mark = r"{\header{\shp{\*\shpinst{\sp{\sn fLine}{\sv 0}}{\sp{\sn gtextUNICODE}{\sv DRAFT}}}}\par}"
    document = rtf(tmp_path, mark + r" One {\mvf gone} two {\mvt three}.")
    assert document.text.split() == ["DRAFT", "One", "two", "three."]


def test_form_controls_of_rich_text_are_said(tmp_path):
    box = r"{\field{\*\fldinst{FORMCHECKBOX}{\*\formfield{\fftype1\ffres1}}}{\fldrslt}}"
    field = r"{\field{\*\fldinst{FORMTEXT}{\*\formfield{\fftype0}}}{\fldrslt 100}}"
    document = rtf(tmp_path, f" Exclusive {box} Fee {field}")
    assert document.text.split() == ["Exclusive", "Fee", "100"]
    assert document.warnings == ("part not read: 1 form control",)


def test_a_row_of_rich_text_is_a_line_whatever_its_cells_have(tmp_path):
    row = r"\trowd\pard\intbl Fee\cell\pard\intbl 100\par 200\cell{\intbl days\par}\cell\row\pard After\par"
    assert rtf(tmp_path, row).text.split("\n")[:2] == ["Fee\t100 200\tdays\t", "After"]
    numbered = r"\trowd\pard\intbl {\listtext 1.\tab}Fee\cell\pard\intbl 100\cell\row\pard After\par"
    assert rtf(tmp_path, numbered).text.split("\n")[:2] == ["1. Fee\t100\t", "After"]


def test_a_merged_cell_of_rich_text_takes_as_many_columns_as_it_is_wide(tmp_path):
    def row(*cells: tuple[str, int], inner: str = "") -> str:
        edges = "".join(rf"\cellx{edge}" for _, edge in cells)
        return rf"\trowd{edges}" + "".join(rf"\pard\intbl {said}\cell" for said, _ in cells) + inner + r"\row"

    head = row(("Fund", 1000), ("Paid", 2000), ("Open", 3000))
    nested = r"{\*\nesttableprops\trowd\cellx500\cellx700\nestrow}"
    rows = head + row(("Beta", 2010), ("80", 3000)) + row(("All", 990), ("90", 3000), inner=nested)
    apart = rows + r"\pard Other\par" + row(("A", 1500), ("B", 3000))
    assert rtf(tmp_path, apart).text.split("\n")[:5] == [
        *("Fund\tPaid\tOpen\t", "Beta\t\t80\t", "All\t90\t\t", "Other", "A\tB\t"),
    ]


def test_headers_of_rich_text_that_no_page_has_are_not_read(tmp_path):
    heads = r"{\headerf First\par}{\headerl Left\par}{\header All\par}"
    assert rtf(tmp_path, f"{heads}Body").text.split() == ["All", "Body"]
    assert rtf(tmp_path, rf"\titlepg\facingp{heads}Body").text.split() == ["First", "Left", "All", "Body"]


def test_notes_of_rich_text_follow_their_paragraph(tmp_path):
    body = r" Pay 500{\footnote \pard\plain Not due\par in 2024} euros.\par "
    body += r"Cut by 5{\*\annotation Raise by 5}000.{\footnote No.}"
    said = ["Pay 500 euros.", "Footnote: Not due in 2024", "Cut by 5000.", "Comment: Raise by 5", "Footnote: No."]
    assert rtf(tmp_path, body).text.split("\n") == said


def test_rich_text_marks_what_is_struck_through(tmp_path):
    body = r" pay {\strike 1\u49?1} 222, {\striked1 EUR\par}{\strike 5}\strike 00\strike0  900 \strike a\plain b ~~"
    assert rtf(tmp_path, body).text == "pay ~~111~~ 222, ~~EUR~~\n~~500~~ 900 ~~a~~b ~~"


def test_rich_text_has_the_unicode_half_of_a_text_that_is_there_twice(tmp_path):
    twice = r"{\upr{Herr ?}{\*\ud{Herr \u321?}}}"
    document = rtf(tmp_path, rf" Signed by {twice}, {{\v in secret {twice}}}and {twice}.")
    assert document.text == "Signed by Herr Ł, and Herr Ł."


def test_rich_text_is_without_the_bytes_of_pictures_and_objects(tmp_path):
    picture = r"{\pict{\*\picprop{\sp a}}\bin4 }}}{}"
    document = rtf(tmp_path, rf" One \bin5 ab{{}}ctwo {picture}three C:\\bin5 \{{x\}}.")
    assert document.text == r"One two three C:\bin5 {x}."


def several(*parts: tuple[str, str], kind: str = "mixed") -> bytes:
    bodies = "".join(f"--b\nContent-Type: {given}; charset=utf-8\n\n{text}\n" for given, text in parts)
    return f'Subject: s\nMIME-Version: 1.0\nContent-Type: multipart/{kind}; boundary="b"\n\n{bodies}--b--\n'.encode()


@pytest.mark.parametrize(
    ("mail", "said", "unsaid"),
    [
        (several(("text/plain", "one"), ("image/png", "x"), ("text/plain", "two")), ["one", "two", "image/png"], []),
        (several(("text/plain", " \n"), ("text/html", "<p>offer</p>"), kind="alternative"), ["offer"], ["<p>"]),
        (several(("text/plain", "plain"), ("text/html", "<p>rich</p>"), kind="alternative"), ["plain"], ["rich"]),
        (several(("text/html", "<p>body</p>"), ("text/plain", "list footer")), ["body", "list footer"], ["<p>"]),
        (several(("text/calendar", "SUMMARY:Boiler\nLOCATION:Room 404\nUID:77")), ["Boiler", "Room 404"], ["77"]),
    ],
)
def test_all_texts_of_a_mail_are_read_and_of_several_forms_one(tmp_path, mail, said, unsaid):
    (tmp_path / "a.eml").write_bytes(mail)
    (document,) = parsed(tmp_path / "a.eml")
    assert all(one in document.text for one in said) and not any(one in document.text for one in unsaid)


_TABLE = rb"\deff1{\fonttbl{\f0 Arial;}{\f1\fswiss\fcharset204 Arial CYR;}{\f2\fcharset128 MS Mincho;}}"


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        (rb"\f2 \'83e\'83X\'83g \'93\'fa\'96{\b x}", "テスト 日�x"),
        (rb"\f2 \'83" + b"\n" + rb"e {\f0 \'e4}\'83\'65", "テ äテ"),
        (rb"\'cf\'f0 \f0\'e4 \plain\'cf", "Пр ä П"),
        ("Договор ".encode("cp1251") + b"\\f0 " + "“curly”".encode("cp1252"), "Договор “curly”"),
        (rb"\uc2\u1078\'e6e{\uc0\u1047 x}\u8364\'83e.", "жЗx€."),
        (rb"\f0 \u233?\'7b\~\{C:\\bin5\}\'5c", "é{\xa0{C:\\bin5}\\"),
        (rb'{\field{\*\fldinst{HYPERLINK "http://x.org"}}{\fldrslt { the site}}}', "the site"),
    ],
)
def test_letters_of_rich_text_are_those_of_the_font_in_force(tmp_path, marks, text):
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + _TABLE + b" " + marks + b"}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.strip() == text


def test_rich_text_has_the_signs_of_the_font_symbol(tmp_path):
    fonts = rb"{\fonttbl{\f0 Arial;}{\f3\froman\fcharset2\fprq2{\*\panose 05050102010706020507}Symbol;}}"
    field = rb'{\field{\*\fldinst {SYMBOL 179 \\f "Symbol" \\s 10}}{\fldrslt {\f3\fs20}}}'
    bullet = rb"{\listtext\f3\u-3913\'b7\tab}"
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + fonts + bullet + field + rb" 5 {\f3 m}g, {\f3\'b1}2}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.strip() == "•\t≥ 5 μg, ±2"


def test_rich_text_has_ticks_of_other_fonts_of_signs(tmp_path):
    fonts = rb"{\fonttbl{\f0 Arial;}{\f10\fnil\fcharset2 Wingdings;}{\f11\fnil\fcharset2 Wingdings 2;}}"
    field = rb'{\field{\*\fldinst SYMBOL %s \\f "Wingdings" \\s 11}{\fldrslt}}'
    words = rb"{\f10 \'fe} yes {\f10\'a8} no {\f11 P} " + field % b"254" + field % b"61608"
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + fonts + words + b"}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.strip() == "☑ yes ☐ no ✓ ☑☐" and document.warnings == ()


def test_cells_of_a_table_in_a_cell_of_rich_text_are_none_of_the_outer_row(tmp_path):
    inner = rb"\itap2 IBAN\nestcell Limit\nestcell{\*\nesttableprops\trowd\nestrow}"
    row = rb"\trowd\pard\intbl Party\cell\pard\intbl" + inner + rb"\pard\intbl\cell\pard\intbl 1,000\cell\row"
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + row + b"}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert [" ".join(cell.split()) for cell in document.text.split("\t")][:3] == ["Party", "IBAN Limit", "1,000"]


def test_numbers_and_lines_of_a_cell_of_rich_text_stay_in_its_column(tmp_path):
    edges = r"\trowd\cellx2000\cellx6000\cellx9000"
    number = r"{\listtext\pard\plain 1.\tab}\pard\plain\intbl\ls1 {\cell}"
    lines = r"\pard\plain\intbl Net 100\par \u8722\'2d20 due\cell not\par \ldblquote final\rdblquote\cell\row"
    document = rtf(tmp_path, f"{edges}{number}{lines}{edges}\\pard\\intbl 2.\\cell b\\cell c\\cell\\row\\pard\\par")
    rows = [line.rstrip("\t").split("\t") for line in document.text.split("\n") if line.strip()]
    assert rows == [["1.", "Net 100 −20 due", "not “final”"], ["2.", "b", "c"]]


def test_lines_of_cells_of_rich_text_are_known_however_they_are_written(tmp_path):
    edges, end = r"\trowd\cellx4000\cellx9000\pard\intbl ", r"\pard after\par"
    for cell, said in (
        ("Bob\\\nStreet 5", "Bob Street 5"),
        ("{\\listtext\t1.\t}Rent", "1. Rent"),
        (r"Net 1,000\par{\footnote x}200 due", "Net 1,000 200 due"),
    ):
        lines = rtf(tmp_path, f"{edges}{cell}\\cell 20\\cell\\row{end}").text.split("\n")
        assert [" ".join(one.split()) for one in lines[0].split("\t")][:2] == [said, "20"]
        assert "after" in lines
    plain = rtf(tmp_path, r"\trowd\cellx4000 a\cell\row One.\par Two.\par").text
    assert plain.split("\n")[1:3] == ["One.", "Two."], "what follows a table is not in it"


def test_powers_in_rich_text_are_no_digits_of_their_number(tmp_path):
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi 10{\super 6}, 10\super -3{}\super 4\nosupersub 1, H{\sub 2}O}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.strip() == "10^6, 10^-34 1, H2O"


def test_the_first_font_of_rich_text_is_the_default_one_where_none_is_named(tmp_path):
    fonts = rb"{\fonttbl{\f0\fcharset204 Arial CYR;}{\f1 Arial;}}"
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + fonts + rb" \f1\'e9 \plain\'e9}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert document.text.strip() == "é й"


@pytest.mark.parametrize(
    ("page", "text", "warnings"),
    [
        (rb"\ansicpg10000", "Cafä", ()),
        (rb"\mac", "Cafä", ()),
        (rb"\ansicpg0", "CafŠ", ()),
        (rb"\ansicpg12345", "Caf�", ("part not read: 1 unreadable letter",)),
    ],
)
def test_a_code_page_of_rich_text_that_is_not_known_is_said(tmp_path, page, text, warnings):
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi" + page + rb"{\info{\title Caf\'8a}}" + b" Caf\x8a}")
    (document,) = parsed(tmp_path / "a.rtf")
    assert (document.text.strip(), document.title, document.warnings) == (text, text, warnings)


_CUT, _AFTER = "the file is cut off: its end is missing", "what stands after the end of the text is not read"


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (b"{\\rtf1\\ansi {\\b The fee} is 17.\\par The term is two years.}\r\n\0", ()),
        (b"{\\rtf1\\ansi {\\b The fee} is 17.\\par The", (_CUT,)),
        (b"{\\rtf1\\ansi {\\b The fee} is 17.\\par {\\b The}", (_CUT,)),
        (b"{\\rtf1\\ansi {\\b The fee} is 17.\\bin50 ab} The term is two years.}", (_CUT,)),
        (b"{\\rtf1\\ansi {\\b The fee} is 17.} The term is two years.}", (_AFTER,)),
        (b"{\\rtf1\\ansi {\\b The fee} is 17.\\}\\{}}", ()),
    ],
)
def test_rich_text_that_is_cut_off_or_ends_early_says_so(tmp_path, text, warnings):
    (tmp_path / "a.rtf").write_bytes(text)
    (read,) = parsed(tmp_path / "a.rtf")
    assert read.warnings == warnings and "The fee is 17." in read.text
