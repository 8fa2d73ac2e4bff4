"""Mailboxes and Outlook mails."""

import io

import pytest

from infra.sources import parse
from infra.sources.base import Parsed, ParseRequest, Refused
from infra.sources.mail import parse_eml, parse_mbox, parse_msg
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.outlook import Letters, msg

REQUEST = ParseRequest("a", IngestConfig())
SUBJECT, BODY, HTML, HEADERS, FILE, RICH = 0x37, 0x1000, 0x1013, 0x7D, 0x3707, 0x1009


def outlook(data: bytes) -> Parsed:
    (document,) = parse_msg(io.BytesIO(data), REQUEST)
    return document


def test_an_outlook_mail_is_its_headers_body_and_attachments():
    heads = "From: Ann <ann@example.org>\r\nTo: b@example.org\r\nDate: Mon, 4 Mar 2024 10:00:00 +0100\r\n\r\n"
    document = outlook(
        msg({SUBJECT: "Kündigung", BODY: "The notice\r\nperiod", HEADERS: heads}, ({FILE: "draft.pdf"},))
    )
    assert document.title == "Kündigung"
    assert document.text == (
        "From: Ann <ann@example.org>\nTo: b@example.org\nDate: Mon, 4 Mar 2024 10:00:00 +0100\nSubject: Kündigung\n\n"
        "The notice\nperiod\n\nAttachment: draft.pdf"
    )
    assert document.warnings == ("part not read: 1 attachment",)


def test_people_of_an_outlook_mail_are_named_as_in_any_mail():
    heads = "From: =?utf-8?B?SsO8cmdlbg==?= <j@x.de>\r\nTo: =?iso-8859-1?Q?Andr=E9?= <a@y.fr>\r\n"
    said = "From: Jürgen <j@x.de>\nTo: André <a@y.fr>\nSubject: Offer\n\nFive"
    assert outlook(msg({SUBJECT: "Offer", BODY: "Five", HEADERS: heads})).text == said
    people = tuple({0x3001: name, 0x39FE: f"{name}@x.de", 0xC15: kind} for kind, name in enumerate(("a", "b", "c"), 1))
    said = "To: a <a@x.de>\nCc: b <b@x.de>\nBcc: c <c@x.de>\nSubject: Offer\n\nFive"
    assert outlook(msg({SUBJECT: "Offer", BODY: "Five"}, recipients=people)).text == said


def test_letters_of_windows_are_read_in_a_mail_that_says_latin_1():
    assert outlook(msg({SUBJECT: Letters(b"Offer \x96 \x80"), BODY: "Five"})).title == "Offer – €"


def test_a_mail_in_unicode_needs_no_code_page():
    assert outlook(msg({SUBJECT: "Offer", BODY: "Five \u20ac\x85", 0x3FDE: 38_598})).text.endswith("Five €\x85")


def test_a_body_of_one_byte_a_letter_is_in_the_code_page_of_the_mail():
    said = "Цена 200 – руб.".encode("cp1251")
    assert outlook(msg({BODY: Letters(said), 0x3FFD: 1251, 0x3FDE: 20_866})).text.endswith("Цена 200 – руб.")
    assert outlook(msg({BODY: Letters(b"\x80200 \x93final\x94"), 0x3FDE: 28_591})).text.endswith("€200 “final”")


def test_an_outlook_mail_with_endless_headers_is_refused(monkeypatch):
    monkeypatch.setattr("infra.sources.mail._HEAD_BYTES", 100)
    with pytest.raises(SourceError, match="its headers have more than") as caught:
        outlook(msg({SUBJECT: "Offer", BODY: "Five", HEADERS: "To: " + "a@b.c, " * 40}))
    assert caught.value.reason == "too-large"


def test_html_counts_where_the_plain_body_is_blank():
    page = "<html><head><meta charset='utf-8'></head><body><p>Für alle</p></body></html>".encode()
    assert "Für alle" in outlook(msg({SUBJECT: "s", BODY: " \r\n", HTML: page})).text


def test_rich_text_alone_is_said():
    with pytest.raises(SourceError, match=r"no-text.*\.eml or \.html"):
        outlook(msg({SUBJECT: "s", RICH: b"\0" * 5000}))


@pytest.mark.parametrize("data", [b"", b"no mail", msg({SUBJECT: "s"})[:900]])
def test_what_is_no_outlook_mail_is_said(data: bytes):
    with pytest.raises(SourceError, match="broken"):
        outlook(data)


MAIL = b"From ann@example.org Mon Mar  4 10:00:00 2024\nFrom: ann@example.org\nSubject: %s\n\n%s\n\n"


def test_each_mail_of_a_mailbox_is_a_document():
    data = MAIL % (b"one", b"First.\n>From here on\nFrom the start") + MAIL % (b"two", b"Second.")
    one, two = parse_mbox(io.BytesIO(data), REQUEST)
    assert isinstance(one, Parsed) and isinstance(two, Parsed)
    assert (one.row, one.title, two.row, two.title) == ("1", "one", "2", "two")
    assert "First.\nFrom here on\nFrom the start" in one.text and "Second." in two.text


def parts(kind: str, *bodies: str) -> str:
    mark = f"b{len(kind)}"
    inside = "".join(f"--{mark}\n{body}\n" for body in bodies)
    return f'Content-Type: multipart/{kind}; boundary="{mark}"\n\n{inside}--{mark}--\n'


def part(kind: str, text: str, name: str = "", how: str = "attachment") -> str:
    named = f'Content-Disposition: {how}; filename="{name}"\n' if name else ""
    return f"Content-Type: {kind}\n{named}\n{text}"


PLAIN, HTML_PART, PDF = (
    part("text/plain", "plain"),
    part("text/html", "<p>one</p>"),
    part("application/pdf", "x", "c.pdf"),
)


@pytest.mark.parametrize(
    ("body", "text", "warnings"),
    [
        (
            parts("alternative", PLAIN, parts("mixed", HTML_PART, PDF, part("text/html", "<p>two</p>"))),
            "plain\n\nAttachment: c.pdf",
            1,
        ),
        (
            parts("alternative", part("text/plain", "See https://example.org/a/b"), part("text/html", "<b>See</b> c")),
            "See c",
            0,
        ),
        (
            parts(
                "alternative", part("text/plain", "All is due: _soon_"), part("text/html", "All is due: soon, 5 EUR")
            ),
            "All is due: soon, 5 EUR",
            0,
        ),
        (
            parts("alternative", part("text/plain", "All is due now"), part("text/html", "All is due: 5 EUR")),
            "All is due now",
            1,
        ),
        (
            parts("alternative", part("text/plain", "> All?\n\nNo."), part("text/html", "<q>All?</q> No. By iOS")),
            "> All?\n\nNo.",
            0,
        ),
        (
            parts(
                "alternative",
                part("text/plain", "All is due"),
                part("text/html", "<style>.m{display:none}</style>All <i class=m>now</i> is due: 5"),
            ),
            "All is due: 5",
            0,
        ),
        (
            parts("alternative", parts("mixed", HTML_PART, PDF, part("text/html", "<p>two</p>"))),
            "one\n\ntwo\n\nAttachment: c.pdf",
            1,
        ),
        (parts("alternative", HTML_PART, part("text/html", "<p>two</p>"), HTML_PART), "one\n\ntwo", 0),
        (parts("alternative", PLAIN, part("text/x-amp-html", "<html amp>"), HTML_PART), "plain", 0),
        (
            parts("alternative", part("text/plain", "5 7 kg, 106"), part("text/html", "<s>5</s> 7, 10<sup>6</sup>")),
            "~~5~~ 7, 10^6",
            0,
        ),
        (
            parts(
                "alternative",
                part("text/plain", "5 are due. They lapse when the buyer pays before the end of the month of May"),
                part("text/html", "<s>5</s> are due, as your browser shows when you allow it to do so, here"),
            ),
            "5 are due. They lapse when the buyer pays before the end of the month of May",
            1,
        ),
        (
            parts(
                "alternative",
                part("text/plain", "Item\n\nRebate\n\nPrice\n\nHelp\n\n\n\n50\n"),
                part("text/html", "<table><tr><td>Item<td>Rebate<td>Price<tr><td>Help<td><td>50</table>"),
            ),
            "Item\tRebate\tPrice\nHelp\t\t50",
            0,
        ),
        (
            parts(
                "alternative",
                part("text/plain", "Order 4711. It cannot be cancelled."),
                part("text/html", "<table><tr><td>Order<td><td>4711.</table> Thanks"),
            ),
            "Order 4711. It cannot be cancelled.",
            0,
        ),
        (parts("alternative", PLAIN, part("text/html", "<p>All that was agreed.</p>")), "All that was agreed.", 0),
        (parts("alternative", part("text/plain", "~~~"), HTML_PART.replace("one", "All of it")), "All of it", 0),
        (
            parts("alternative", part("text/plain", "All that was said"), part("text/html", "<s>5</s>")),
            "All that was said",
            1,
        ),
        (
            parts("alternative", PLAIN, parts("related", HTML_PART, part("image/png", "x", "logo.png", "inline"))),
            "plain",
            0,
        ),
        (
            parts(
                "alternative", PLAIN, HTML_PART, part("text/calendar", "DTSTART;TZID=CET:2026\nLOCATION:Room 5\\, left")
            ),
            "plain\n\nDTSTART: 2026 (CET)\nLOCATION: Room 5, left",
            0,
        ),
        (parts("signed", PLAIN, part("application/pkcs7-signature", "x", "smime.p7s")), "plain", 0),
        (parts("alternative", part("application/pdf", "x")), "\n\nAttachment: application/pdf", 1),
    ],
)
def test_what_is_attached_to_any_form_of_a_body_is_named(tmp_path, body, text, warnings):
    (tmp_path / "a.eml").write_text(f"Subject: s\nMIME-Version: 1.0\n{body}")
    (document,) = parse(str(tmp_path / "a.eml"), "a.eml", IngestConfig())
    assert document.text == f"Subject: s\n\n{text}" and len(document.warnings) == warnings


def mail(kind: str, content: bytes) -> str:
    head = f"From: a@example.org\r\nSubject: S\r\nContent-Type: {kind}\r\n\r\n"
    (document,) = parse_eml(io.BytesIO(head.encode() + content), REQUEST)
    return document.text.partition("\n\n")[2]


def test_long_lines_of_an_invitation_are_read_in_full():
    lines = b"BEGIN:VEVENT\r\nSUMMARY:Board\r\nDESCRIPTION:Bring the \r\n signed lea\r\n\tse\r\nLOCATION:Room 5\r\n"
    said = ["SUMMARY: Board", "DESCRIPTION: Bring the signed lease", "LOCATION: Room 5"]
    assert mail("text/calendar; charset=utf-8", lines).splitlines() == said


def test_an_invitation_says_when_how_often_and_whether_it_is_cancelled():
    lines = (
        "BEGIN:VCALENDAR\nMETHOD:CANCEL\nBEGIN:VTIMEZONE\nTZID:CET\nBEGIN:STANDARD\nDTSTART:16010101T030000\n"
        "RRULE:FREQ=YEARLY\nEND:STANDARD\nEND:VTIMEZONE\nBEGIN:VEVENT\nSUMMARY:Files in C:\\\\new\n"
        'DTSTART;X="a:b;c";TZID="CET":20260301T090000\nDURATION:PT1H\nRRULE:FREQ=WEEKLY\nSTATUS:CANCELLED\n'
        "BEGIN:VALARM\nDESCRIPTION:Reminder\nEND:VALARM\nDESCRIPTION:One\\nTwo\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    said = (
        "METHOD: CANCEL\nSUMMARY: Files in C:\\new\nDTSTART: 20260301T090000 (CET)\nDURATION: PT1H\n"
        "RRULE: FREQ=WEEKLY\nSTATUS: CANCELLED\nDESCRIPTION: One\nTwo"
    )
    assert mail("text/calendar", lines.replace("\n", "\r\n").encode()) == said


def test_letters_in_fonts_of_signs_are_signs(tmp_path):
    page = "<p>Phase 1 <font face=Wingdings>à</font> 2 <span style='font-family:Wingdings'>J</span> so</p>"
    head = "From: a@b.c\nContent-Type: text/html; charset=utf-8\n\n"
    for name, whole in (("a.eml", head + page), ("a.html", page)):
        (tmp_path / name).write_text(whole, encoding="utf-8")
        (document,) = parse(str(tmp_path / name), name, IngestConfig())
        assert document.text.rstrip().endswith("Phase 1 → 2 ☺ so")


def test_a_font_of_signs_ends_where_another_one_begins(tmp_path):
    blank = "<span style='font:7.0pt \"Times New Roman\"'>&nbsp;&nbsp; </span>"
    page = f"<p><span style='font-family:Symbol'><span>·{blank}</span></span>Rent is 500 EUR</p>"
    page += "<p style='font-family:Wingdings'>ü<font face=Arial> Approved</font> •</p>"
    head = "From: a@b.c\nContent-Type: text/html; charset=utf-8\n\n"
    (tmp_path / "a.eml").write_text(head + page, encoding="utf-8")
    (document,) = parse(str(tmp_path / "a.eml"), "a.eml", IngestConfig())
    assert document.text.split()[-8:] == ["•", "Rent", "is", "500", "EUR", "✓", "Approved", "•"]


def test_a_style_sheet_sets_a_font_of_signs_and_only_its_first_font_counts(tmp_path):
    sheet = (
        "body{font-family:-apple-system,'Segoe UI','Segoe UI Symbol'} .b{font:10pt Wingdings} .s{font-family:Symbol}"
    )
    sheet += ".m{font:bold medium/normal Wingdings-Regular}"
    page = "<p>5 <span class=s>m</span>g</p><p><span class=b>þ</span><span class=m>þ</span> yes</p>"
    page += "<p style='font-family:\"Segoe UI Symbol\",serif'>clause B</p>"
    mail = f"From: a@b.c\nContent-Type: text/html; charset=utf-8\n\n<style>{sheet}</style>{page}"
    (tmp_path / "a.eml").write_text(mail, encoding="utf-8")
    (document,) = parse(str(tmp_path / "a.eml"), "a.eml", IngestConfig())
    assert document.text.split()[-6:] == ["5", "μg", "☑☑", "yes", "clause", "B"]


def test_what_a_mail_hides_and_shows_again_is_read(tmp_path):
    sheet = ".desktop{display:none} .body .desktop{display:block} td .m{display:none} td span.on{display:inline}"
    sheet += " .k{display:block !important}"
    page = "<div class=body><p class=desktop>order 4711</p></div><p class=desktop>gone</p>"
    page += "<table><tr><td><span class='m on'>code 1234</span><span class=m>no</span></td></tr></table>"
    page += "<p class=m style='display:none'>none</p><p class=k style='display:none'>kept</p>"
    mail = f"From: a@b.c\nContent-Type: text/html\n\n<style>{sheet}</style>{page}"
    (tmp_path / "a.eml").write_text(mail)
    (document,) = parse(str(tmp_path / "a.eml"), "a.eml", IngestConfig())
    assert document.text.split()[-5:] == ["order", "4711", "code", "1234", "kept"]


@pytest.mark.parametrize(
    "sheet",
    [
        "@supports (-webkit-touch-callout:none) {.d{display:none}}",
        "@media only screen and (max-width:600px) {@keyframes a{from{opacity:0}to{opacity:1}} .d{display:none}}",
        "@media only screen and (max-width:600px) {.d{display:none}",
        ".d{display:none} @media only screen and (min-width:600px) {.e{color:red} .d{display:table !important}}",
    ],
)
def test_what_only_some_screens_hide_of_a_mail_is_read(sheet):
    mail = f"From: a@b.c\nContent-Type: text/html\n\n<style>.x{{display:none}} {sheet}</style>"
    mail += "<p class=d>Pay by 5 May.</p><p class=x>gone</p>"
    (document,) = parse_eml(io.BytesIO(mail.encode()), REQUEST)
    assert document.text.strip().endswith("Pay by 5 May.")


def test_what_small_screens_and_printers_show_again_of_a_mail_is_read_once():
    sheet = ".p{display:none} @media only screen and (max-width:600px) {.p{display:table !important}}"
    sheet += " @media print {.p{display:block}}"
    mail = f"From: a@b.c\nContent-Type: text/html\n\n<style>{sheet}</style><p>Rent 500</p><p class=p>Rent 500</p>"
    (document,) = parse_eml(io.BytesIO(mail.encode()), REQUEST)
    assert document.text.count("Rent 500") == 1


def test_a_sheet_may_show_on_large_screens_what_another_one_hides():
    sheets = "<style>.d{display:none}</style><style>@media (min-width:600px) {.d{display:block}}</style>"
    mail = f"From: a@b.c\nContent-Type: text/html\n\n{sheets}<p class=d>Pay by 5 May.</p>"
    (document,) = parse_eml(io.BytesIO(mail.encode()), REQUEST)
    assert "Pay by 5 May." in document.text


def test_a_saved_page_has_what_a_click_may_show():
    saved = b"From: a\nMIME-Version: 1.0\nContent-Type: text/html\n\n<style>.x{display:none}</style>a <i class=x>b</i>"
    for name, words in (("a.eml", "a"), ("a.mhtml", "a b"), ("A.MHT", "a b")):
        (document,) = parse_eml(io.BytesIO(saved), ParseRequest(name, IngestConfig()))
        assert document.text.split("\n\n")[1].strip() == words, name


def test_headers_may_be_in_the_encoding_of_the_text():
    head = "From: Jörg <a@b.de>\nSubject: Größe: 5 m²\nContent-Type: text/plain; charset=iso-8859-1\n\nFläche"
    (document,) = parse_eml(io.BytesIO(head.encode("latin-1")), REQUEST)
    assert document.text == "From: Jörg <a@b.de>\nSubject: Größe: 5 m²\n\nFläche"


def test_headers_may_be_in_the_encoding_of_the_first_part():
    head = "Subject: charset=greek, Дом\nMIME-Version: 1.0\n" + parts(
        "mixed", part("text/plain;\n charset=koi8-r", "Да"), part("text/plain; charset=iso-8859-1", "No")
    )
    (document,) = parse_eml(io.BytesIO(head.encode("koi8-r")), REQUEST)
    assert document.text == "Subject: charset=greek, Дом\n\nДа\n\nNo"


def test_a_body_that_is_cut_off_is_read_up_to_there():
    kind = "text/plain\r\nContent-Transfer-Encoding: base64"
    assert mail(kind, b"VGhlIGZlZSBp\r\ncyA1IEVVUg") == "The fee is 5 EUR"
    assert mail(kind, b"VGhlIGZlZSBp\r\ncyA1I\r\n\r\n-- \r\nlist@b.c") == "The fee is 5\n\n--\nlist@b.c"


def test_a_page_says_its_own_encoding_where_the_mail_does_not():
    page = b"<meta charset=koi8-r><p>" + "Да".encode("koi8-r")
    assert mail("text/html", page) == "Да"


def test_a_mail_that_is_none_is_a_row_that_failed(tmp_path):
    (tmp_path / "a.mbox").write_bytes(
        MAIL % (b"one", b"First.") + b"From x\nno header\n\n" + MAIL % (b"three", b"Third.")
    )
    one, two, three = parse(str(tmp_path / "a.mbox"), "a.mbox", IngestConfig())
    assert isinstance(two, Refused) and (two.row, two.reason) == ("2", "broken")
    assert [record.row for record in (one, three)] == ["1", "3"]


def test_what_is_no_mailbox_is_said():
    with pytest.raises(SourceError, match="no mailbox"):
        list(parse_mbox(io.BytesIO(b"Some text.\n"), REQUEST))
    assert list(parse_mbox(io.BytesIO(b"\n"), REQUEST)) == []


def test_headers_without_an_end_are_refused_before_they_are_parsed(tmp_path):
    (tmp_path / "a.eml").write_bytes(b"Subject: " + b"=?utf-8?q?a?= " * 200_000 + b"\n\nHello")
    with pytest.raises(SourceError, match="its headers have more than"):
        list(parse(str(tmp_path / "a.eml"), "a.eml", IngestConfig()))


@pytest.mark.parametrize(
    "head",
    [
        "From: guido at example.org (Guido van Rossum)",
        "To: Bob <bob@example.org>; Carol Chief <carol@example.org>",
        "Cc: Smith, John <j@example.org>; Doe, Jane <d@example.org>",
        "Date: Mon, 3 Jun 2024 10:00:00 CEST",
        "Date: Monday, June 3, 2024 2:30 PM",
    ],
)
def test_headers_say_what_they_say_even_if_they_break_the_rules(head):
    (mail,) = parse_eml(io.BytesIO(f"{head}\nSubject: Offer\n\nFive".encode()), REQUEST)
    assert mail.text == f"{head}\nSubject: Offer\n\nFive"


def test_names_of_people_are_decoded_and_each_header_of_a_kind_counts():
    heads = '=?utf-8?Q?J=C3=B6rg_Gro=C3=9F?= <j@x.de>, "=?utf-8?Q?M=C3=BCller=2C_Ann?=" <m@x.de>\nTo: b@x.de'
    (mail,) = parse_eml(io.BytesIO(f"To: {heads}\n\nFive".encode()), REQUEST)
    assert mail.text == 'To: Jörg Groß <j@x.de>, "Müller, Ann" <m@x.de>, b@x.de\n\nFive'


def test_links_and_pictures_of_a_plain_form_are_no_words_of_its_own():
    table = "<table><tr><td>Item<td>Rebate<td>Price<tr><td>Help<td><td>50</table>"
    for plain, page, said in (
        ("Item\n\nRebate\n\nPrice\n\nHelp\n\n\n\n50\n\nAnn<mailto:a@x.de> {}", f"{table}Ann", "Help\t\t50"),
        ("OK, 1,000 800. {}", "OK, <s>1,000</s> 800.", "~~1,000~~ 800"),
    ):
        icons = "[cid:image001.png@01DA5C3E]<https://x.com/> [image: logo of all.png] <tel:+4930> " * 4
        body = parts("alternative", part("text/plain", plain.format(icons)), part("text/html", page))
        (mail,) = parse_eml(io.BytesIO(f"From: a@x.de\n{body}".encode()), REQUEST)
        assert said in mail.text and not mail.warnings


@pytest.mark.parametrize(
    ("plain", "page"),
    [
        (
            "1,000 800 EUR. [A black and white logo, described by a program] [A black and white square]",
            "<s>1,000</s> 800 EUR.",
        ),
        (
            "Item Rebate Price\nHelp 50\n> Send it.",
            "<table><tr><td>Item<td>Rebate<td>Price<tr><td>Help<td><td>50</table>Send it.",
        ),
        ("[A logo of ten words that a program has found in it] The rent is 900.1", "The rent is 900.<sup>1</sup>"),
    ],
)
def test_a_plain_form_without_the_marks_or_cells_of_the_other_is_said(plain, page):
    body = parts("alternative", part("text/plain", plain), part("text/html", page))
    (mail,) = parse_eml(io.BytesIO(f"From: a@x.de\n{body}".encode()), REQUEST)
    assert mail.text.endswith(plain) and mail.warnings == ("part not read: 1 another form of the text that says more",)


def test_a_plain_form_that_says_another_thing_is_said():
    head = 'From: a@x.de\nContent-Type: multipart/alternative; boundary="b"\n\n--b\n\n'
    forms = "Your program shows no pages.\n--b\nContent-Type: text/html\n\n<p>We do not agree to it.</p>\n--b--\n"
    (mail,) = parse_eml(io.BytesIO((head + forms).encode()), REQUEST)
    assert mail.warnings == ("part not read: 1 another form of the text that says more",)


def test_an_encoding_with_a_blank_behind_it_is_decoded():
    (mail,) = parse_eml(io.BytesIO(b"From: a@x.de\nContent-Transfer-Encoding: base64 \n\nRml2ZQ==\n"), REQUEST)
    assert mail.text.endswith("Five")


def test_letters_that_cannot_be_read_are_said(tmp_path):
    said = "Gebühr: 500 €. ".encode() * 9 + "für Müller".encode("cp1252")
    head = b"From: a@x.de\nContent-Type: text/plain; charset=utf-8\n\n"
    for name, data in (("a.txt", said), ("a.md", said), ("a.eml", head + said)):
        (tmp_path / name).write_bytes(data)
        (document,) = parse(str(tmp_path / name), name, IngestConfig())
        assert document.warnings == ("part not read: 2 unreadable letters",), name
