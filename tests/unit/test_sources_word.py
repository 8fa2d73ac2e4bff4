"""Word documents: what a reader of the printed document sees."""

import io
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.sources.base import ParseRequest
from infra.sources.word import parse_docx
from memagent.config import IngestConfig
from memagent.errors import SourceError

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
ALPHABET = st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\xa0")


def docx(body: str, parts: Mapping[str, str] | None = None, space: str = W) -> bytes:
    """A document of a body's XML and further parts by their kind, as ``footnotes``."""
    names = f'xmlns:w="{space}" xmlns:r="{KINDS}" xmlns:mc="{MC}" xmlns:m="math"'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("_rels/.rels", _relations({"main": ("officeDocument", "word/document.xml")}))
        archive.writestr("word/document.xml", f"<w:document {names}><w:body>{body}</w:body></w:document>")
        kinds = {kind: (kind.rstrip("0123456789"), f"{kind}.xml") for kind in parts or {}}
        archive.writestr("word/_rels/document.xml.rels", _relations(kinds))
        for kind, content in (parts or {}).items():
            archive.writestr(f"word/{kind}.xml", f"<w:{kind} {names}>{content}</w:{kind}>")
    return file.getvalue()


def _relations(parts: Mapping[str, tuple[str, str]]) -> str:
    rows = "".join(
        f'<Relationship Id="{name}" Type="{KINDS}/{kind}" Target="{target}"/>' for name, (kind, target) in parts.items()
    )
    return f"<Relationships>{rows}</Relationships>"


def text(body: str, parts: Mapping[str, str] | None = None, space: str = W) -> str:
    (document,) = parse_docx(io.BytesIO(docx(body, parts, space)), ParseRequest("a.docx", IngestConfig()))
    return document.text


def run(words: str) -> str:
    return f"<w:r><w:t>{words}</w:t></w:r>"


def paragraph(inside: str, settings: str = "") -> str:
    return f"<w:p><w:pPr>{settings}</w:pPr>{inside}</w:p>"


def test_tracked_insertions_are_read_and_deletions_are_not():
    removed = "<w:del><w:r><w:delText>900</w:delText></w:r></w:del>"
    moved = f"<w:moveFrom>{run('gone ')}</w:moveFrom><w:moveTo>{run('three ')}</w:moveTo>"
    body = paragraph(run("Rent: ") + removed + f"<w:ins>{run('1,275')}</w:ins>" + run(" for ") + moved + run("keys."))
    assert text(body) == "Rent: 1,275 for three keys."


def test_a_paragraph_whose_end_was_deleted_goes_on_in_the_next():
    assert text(paragraph(run("one "), "<w:rPr><w:del/></w:rPr>") + paragraph(run("line"))) == "one line"


def test_a_large_first_letter_is_part_of_its_word():
    large = paragraph(run("T"), '<w:framePr w:dropCap="drop"/>')
    assert text(large + paragraph(run("his lease"))) == "This lease"


def test_a_deleted_row_is_not_read():
    rows = [
        f"<w:tr>{extra}<w:tc>{paragraph(run(said))}</w:tc></w:tr>"
        for said, extra in (("kept", ""), ("gone", "<w:trPr><w:del/></w:trPr>"))
    ]
    assert text(f"<w:tbl>{''.join(rows)}</w:tbl>") == "kept"


@pytest.mark.parametrize("around", ["sdt", "customXml", "ins"])
def test_what_stands_in_controls_and_custom_xml_is_read_at_every_level(around):
    def wrapped(inside: str) -> str:
        held = f"<w:sdtPr><w:alias/></w:sdtPr><w:sdtContent>{inside}</w:sdtContent>" if around == "sdt" else inside
        return f"<w:{around}>{held}</w:{around}>"

    cell = f"<w:tc>{paragraph(run('cell'))}</w:tc>"
    body = paragraph(run("a ") + wrapped(run("b"))) + wrapped(paragraph(run("block")))
    body += f"<w:tbl>{wrapped(f'<w:tr>{cell}{wrapped(cell)}</w:tr>')}</w:tbl>"
    assert text(body) == "a b\nblock\ncell\tcell"


def test_notes_and_comments_follow_the_paragraph_of_their_mark():
    parts = {
        kind: f'<w:note w:id="2">{paragraph(run(f"text of {kind}"))}</w:note>'
        for kind in ("footnotes", "endnotes", "comments")
    }
    marks = "".join(f'<w:r><w:{kind}Reference w:id="2"/></w:r>' for kind in ("footnote", "endnote", "comment"))
    body = paragraph(run("Let") + marks + run(" unfurnished.")) + paragraph(run("Next."))
    assert text(body, parts).splitlines() == [
        "Let unfurnished.",
        "Footnote: text of footnotes",
        "Endnote: text of endnotes",
        "Comment: text of comments",
        "Next.",
    ]


def test_headers_stand_before_the_body_and_footers_after_it_each_once():
    marks = '<w:headerReference r:id="header1"/><w:footerReference r:id="footer1"/>'
    parts = {"header1": paragraph(run("Ref KX-5501")), "footer1": paragraph(run("Leeds"))}
    body = paragraph(run("Dear all,"), f"<w:sectPr>{marks}</w:sectPr>") + f"<w:sectPr>{marks}</w:sectPr>"
    assert text(body, parts).splitlines() == ["Ref KX-5501", "Dear all,", "Leeds"]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((("1", "superscript"), ("10 days", "")), "1 10 days"),
        ((("log", ""), ("2", "subscript"), ("8", "")), "log2 8"),
        ((("10", ""), ("2", "subscript"), (", H", ""), ("2", "subscript"), ("O", "")), "10_2, H2O"),
        ((("10", ""), ("", ""), ("", ""), ("6", "superscript"), (" m", "")), "10^6 m"),
        ((("5", ""), ("1", "superscript"), ("/", ""), ("2", "subscript"), (" kg", "")), "5 1/2 kg"),
    ],
)
def test_digits_of_another_height_are_not_digits_of_the_number_beside_them(runs, said):
    words = "".join(
        f'<w:r><w:rPr><w:vertAlign w:val="{place}"/></w:rPr><w:t xml:space="preserve">{part}</w:t></w:r>'
        for part, place in runs
    )
    assert text(paragraph(words)) == said
    old = "<w:r><w:rPr><w:strike/></w:rPr><w:t>1.</w:t><w:br/><w:t>2.</w:t></w:r>"
    assert text(paragraph(old + run("3."))) == "~~1.~~\n~~2.~~3."
    picture = "<w:r><w:drawing><w:inline/></w:drawing></w:r>"
    assert text(paragraph(run("100") + picture + run("200"))) == "100 200"
    lifted = '<w:r><w:rPr><w:position w:val="6"/></w:rPr><w:t>6</w:t></w:r>'
    assert text(paragraph(run("10") + lifted)) == "10^6"


def test_headers_that_are_switched_off_are_not_read():
    parts = {f"header{n}": paragraph(run(f"H{n}")) for n in range(1, 6)}
    marks = "".join(
        f'<w:headerReference r:id="header{n}" w:type="{kind}"/>'
        for n, kind in enumerate(("default", "first", "even"), 1)
    )
    first = paragraph(run("one"), f"<w:sectPr>{marks}</w:sectPr>")
    assert text(first, parts) == "H1\none"
    own = '<w:headerReference r:id="header4" w:type="default"/>'
    last = f"<w:sectPr>{own}<w:titlePg/></w:sectPr>"
    assert text(first + last, parts) == "H1\nH4\nH2\none", "the second section has the first one's first page"
    settings = {"settings": "<w:evenAndOddHeaders/>"}
    assert text(first, parts | settings) == "H1\nH3\none"


def test_a_text_box_that_is_there_in_two_forms_is_read_once_after_its_paragraph():
    box = f"<w:txbxContent>{paragraph(run('boxed'))}</w:txbxContent>"
    both = f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    assert text(paragraph(run("before") + f"<w:r>{both}</w:r>")) == "before\nboxed"
    old = f"<mc:AlternateContent><mc:Choice/><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    assert text(paragraph(f"<w:r>{old}</w:r>")) == "\nboxed"


def mark(kind: str, inside: str = "") -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}">{inside}</w:fldChar></w:r>'


def test_fields_have_their_result_and_not_their_code():
    code = "<w:r><w:instrText>REF x</w:instrText></w:r>" + run("code too")
    nested = mark("begin") + code + mark("separate") + run("4.2") + mark("end")
    assert text(paragraph(run("clause ") + nested + run(" holds"))) == "clause 4.2 holds"
    assert text(paragraph(f'<w:fldSimple w:instr="DATE">{run("12 May 2031")}</w:fldSimple>')) == "12 May 2031"
    wrapped = mark("begin") + code + f"<w:ins>{mark('separate')}</w:ins>" + run("4.2") + mark("end") + run(" holds")
    assert text(paragraph(wrapped)) == "4.2 holds"


def test_what_is_struck_through_is_marked():
    def struck(words: str, kind: str = "strike") -> str:
        return f'<w:r><w:rPr><w:{kind}/></w:rPr><w:t xml:space="preserve">{words}</w:t></w:r>'

    assert text(paragraph(run("pay ") + struck("1") + struck("11 ", "dstrike") + run("222"))) == "pay ~~111 ~~222"
    assert (
        text(
            paragraph(
                struck(" ") + struck("a") + run("b").replace("<w:t>", '<w:rPr><w:strike w:val="0"/></w:rPr><w:t>')
            )
        )
        == " ~~a~~b"
    )


def test_numbers_that_only_word_knows_are_a_warning():
    split = "<w:r><w:instrText>AUTO</w:instrText></w:r><w:r><w:instrText>NUMLGL</w:instrText></w:r>"
    simple = '<w:fldSimple w:instr=" LISTNUM "/>'
    body = paragraph(mark("begin") + split + mark("end") + simple + run("Term"))
    (document,) = parse_docx(io.BytesIO(docx(body)), ParseRequest("a.docx", IngestConfig()))
    assert document.text == "Term" and document.warnings == ("part not read: 2 automatic numbers",)


def test_a_field_that_never_ends_does_not_swallow_the_document():
    assert text(paragraph(mark("begin") + run("lost")) + paragraph(run("the rest"))) == "\nthe rest"


def test_form_fields_show_what_was_chosen():
    box = "<w:ffData><w:checkBox><w:default w:val='0'/>{}</w:checkBox></w:ffData>"
    ticked, empty = mark("begin", box.format("<w:checked/>")), mark("begin", box.format(""))
    assert text(paragraph(ticked + mark("end") + run(" yes ") + empty + mark("end") + run(" no"))) == "☒ yes ☐ no"
    entries = "".join(f'<w:listEntry w:val="{name}"/>' for name in ("red", "green"))
    chosen = mark("begin", f'<w:ffData><w:ddList><w:result w:val="1"/>{entries}</w:ddList></w:ffData>')
    assert text(paragraph(chosen + mark("end"))) == "green"


def test_special_characters_are_characters():
    signs = "<w:tab/><w:noBreakHyphen/><w:softHyphen/><w:br/>" + '<w:sym w:font="Wingdings" w:char="F0FE"/>'
    assert text(paragraph(run("a") + f"<w:r>{signs}</w:r>" + run("b"))) == "a\t-\n☑b"
    hidden = f"<w:r><w:rPr><w:vanish/></w:rPr><w:t>{'secret'}</w:t></w:r>"
    assert text(paragraph(run("seen") + hidden)) == "seen"


@pytest.mark.parametrize(("switch", "lines"), [("vanish", ["A  C ", "C "]), ("strike", ["A ~~B~~ C ", "C ~~D~~"])])
def test_letters_may_be_hidden_or_struck_through_by_a_style(switch, lines):
    styles = (
        f'<w:style w:styleId="S"><w:rPr><w:{switch}/></w:rPr></w:style>'
        '<w:style w:styleId="T"><w:basedOn w:val="S"/></w:style>'
    )
    off = f'<w:r><w:rPr><w:{switch} w:val="0"/></w:rPr><w:t>C </w:t></w:r>'
    of_style = '<w:r><w:rPr><w:rStyle w:val="T"/></w:rPr><w:t>B</w:t></w:r>'
    body = paragraph(run("A ") + of_style + run(" ") + off) + paragraph(off + run("D"), '<w:pStyle w:val="T"/>')
    assert text(body, {"styles": styles}).splitlines() == lines


def test_powers_are_no_digits_of_their_number():
    power = "<w:r><w:rPr><w:vertAlign w:val='superscript'/></w:rPr><w:t>{}</w:t></w:r>"
    body = run("10") + power.format("-") + power.format("6") + run(" m") + power.format("2") + run(" on the 1")
    assert text(paragraph(body + power.format("st"))) == "10^-6 m2 on the 1st"
    assert text(paragraph(run("10") + power.format("1") + power.format("2"))) == "10^12"
    marks = run("1,200") + power.format("1)") + run(" in 2019") + power.format("3–5,7")
    assert text(paragraph(marks)) == "1,200^1) in 2019^3–5,7", "marks of notes are no digits"
    assert (
        text(paragraph(run("(1.05)") + power.format("1/12") + run(" (1 + r)") + power.format("n")))
        == "(1.05)^(1/12) (1 + r)^n"
    )
    old = "<w:r><w:rPr><w:strike/>{}</w:rPr><w:t>{}</w:t></w:r>"
    body = old.format("", "10") + old.format('<w:vertAlign w:val="superscript"/>', "6 ") + old.format("", "EUR")
    assert text(paragraph(body)) == "~~10^6 EUR~~"
    below = "<w:r><w:rPr><w:vertAlign w:val='subscript'/></w:rPr><w:t>2</w:t></w:r>"
    assert text(paragraph(run("5") + power.format("1") + run("/") + below + run("%"))) == "5 1/2%"
    style = {"styles": '<w:style w:styleId="U"><w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>'}
    raised = '<w:r><w:rPr><w:rStyle w:val="U"/></w:rPr><w:t>6</w:t></w:r>'
    assert text(paragraph(run("10") + raised), style) == "10^6"


def test_a_cell_is_one_cell_whatever_breaks_its_lines():
    def table(*cells: str) -> str:
        return f"<w:tbl><w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in cells)}</w:tr></w:tbl>"

    broken = paragraph(run("Amount") + "<w:r><w:br/></w:r>" + run("USD"))
    inner = table(paragraph(run("1")), paragraph(run("2")))
    assert text(table(paragraph(run("A")), broken, inner, paragraph(run("Z")))) == "A\tAmount USD\t1 2\tZ"


def test_fields_that_word_draws_itself_are_said_to_be_missing():
    code = f"{mark('begin')}<w:r><w:instrText> EQ \\f(1,2)</w:instrText></w:r>{mark('end')}"
    (document,) = parse_docx(io.BytesIO(docx(paragraph(run("5") + code))), ParseRequest("a.docx", IngestConfig()))
    assert document.warnings == ("part not read: 1 formula",)


def test_equations_are_said_on_a_line():
    def part(name: str, inside: str) -> str:
        return f"<m:{name}>{inside if '<' in inside else f'<m:r><m:t>{inside}</m:t></m:r>'}</m:{name}>"

    half = part("f", part("num", "1") + part("den", "2"))
    power = part("sSup", part("e", "10") + part("sup", "-6"))
    both = part("d", part("e", "a+b")) + part("rad", "<m:deg/>" + part("e", "c"))
    bare = '<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val=""/></m:dPr>' + part("e", "d") + "</m:d>"
    total = '<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr>' + part("sub", "i=1") + "</m:nary>"
    assert text(paragraph(run("x = 1") + half + power + both + bare)) == "x = 1(1/2)10^(-6)(a+b)√c[d"
    assert text(paragraph(total + part("nary", part("e", "x")))) == "∑_(i=1)∫x"
    sum_of = part("nary", part("sup", "12") + part("e", "100"))
    assert text(paragraph(sum_of)) == "∫^12 100", "a limit is no digit of what follows"
    root = part("rad", part("deg", "3") + part("e", "8"))
    rows = part("m", part("mr", part("e", "1") + part("e", "2")) + part("mr", part("e", "3") + part("e", "4")))
    assert text(paragraph(root + part("d", part("e", rows)))) == "√(3&8)(1&2@3&4)"


def test_marks_on_letters_of_equations_are_kept():
    def part(name: str, inside: str, settings: str = "") -> str:
        return f"<m:{name}>{settings and f'<m:{name}Pr>{settings}</m:{name}Pr>'}{inside}</m:{name}>"

    letter = [f"<m:e><m:r><m:t>{one}</m:t></m:r></m:e>" for one in "ABn"]
    given = part("d", letter[0] + letter[1])
    of = "<m:num><m:r><m:t>n</m:t></m:r></m:num><m:den><m:r><m:t>k</m:t></m:r></m:den>"
    chosen = part("f", of, '<m:type m:val="noBar"/>')
    over = part("bar", letter[0], '<m:pos m:val="top"/>') + part("acc", letter[2], '<m:chr m:val="¯"/>')
    body = run("P") + given + chosen + over + part("acc", letter[1]) + part("bar", letter[1])
    assert text(paragraph(body)) == "P(A|B)(n choose k)A\u0305n\u0304B\u0302B\u0332"


def test_a_watermark_is_read_with_its_header():
    mark = '<w:r><w:pict><w:textpath string="CONFIDENTIAL"/></w:pict></w:r>'
    body = paragraph(run("Dear all")) + '<w:sectPr><w:headerReference r:id="header1"/></w:sectPr>'
    assert text(body, {"header1": paragraph(mark)}).splitlines() == ["CONFIDENTIAL", "Dear all"]


def test_signs_of_the_font_symbol_are_what_it_shows():
    signs = "".join(f'<w:r><w:sym w:font="Symbol" w:char="{code}"/></w:r>' for code in ("F0B3", "00B1"))
    typed = '<w:r><w:rPr><w:rFonts w:ascii="Symbol"/></w:rPr><w:t>{}</w:t></w:r>'
    body = run("dose ") + signs + run("5 ") + typed.format("m") + run("g at ") + typed.format("\uf044") + run("T")
    assert text(paragraph(body)) == "dose ≥±5 μg at ΔT"


def test_a_style_may_set_a_font_of_signs():
    look = '<w:style w:styleId="{}"><w:rPr><w:rFonts w:ascii="{}"/></w:rPr></w:style>'
    styles = look.format("S", "Symbol") + look.format("B", "Wingdings")
    letter = '<w:r><w:rPr><w:rStyle w:val="S"/><w:rFonts w:hint="eastAsia"/></w:rPr><w:t>m</w:t></w:r>'
    box = paragraph(
        run("þ") + '<w:r><w:rPr><w:rFonts w:ascii="Arial"/></w:rPr><w:t> yes</w:t></w:r>', '<w:pStyle w:val="B"/>'
    )
    assert text(paragraph(run("5 ") + letter + run("g")) + box, {"styles": styles}).splitlines() == ["5 μg", "☑ yes"]


def test_an_equation_has_letters_of_its_own():
    styles = '<w:style w:styleId="S"><w:rPr><w:rFonts w:ascii="Symbol"/></w:rPr></w:style>'
    body = paragraph("<m:oMath><m:r><m:t>a=b</m:t></m:r></m:oMath>", '<w:pStyle w:val="S"/>')
    assert text(body, {"styles": styles}) == "a=b"


def test_a_sign_that_is_not_known_is_said():
    body = paragraph('<w:r><w:sym w:font="Webdings" w:char="F021"/><w:sym w:font="MS Gothic" w:char="2612"/></w:r>')
    (document,) = parse_docx(io.BytesIO(docx(body)), ParseRequest("a.docx", IngestConfig()))
    assert document.text == "\ufffd☒" and document.warnings == ("part not read: 1 unreadable letter",)


def level(depth: int, look: str, style: str = "decimal", more: str = "") -> str:
    shape = f'<w:start w:val="1"/><w:numFmt w:val="{style}"/><w:lvlText w:val="{look}"/>{more}'
    return f'<w:lvl w:ilvl="{depth}">{shape}</w:lvl>'


def numbering(levels: str, more: str = "") -> dict[str, str]:
    return {
        "numbering": f'<w:abstractNum w:abstractNumId="0">{levels}</w:abstractNum>'
        f'<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>{more}'
    }


def item(said: str, depth: int = 0, number: int = 1) -> str:
    settings = f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>'
    return paragraph(run(said), settings)


def test_paragraphs_of_lists_have_their_numbers():
    parts = numbering(level(0, "%1.") + level(1, "%1.%2") + level(2, "(%3)", "lowerLetter"))
    body = item("A") + item("B") + item("C", 1) + item("D", 1) + item("E", 2) + item("F", 2) + item("G", 1) + item("H")
    said = ["1. A", "2. B", "2.1 C", "2.2 D", "(a) E", "(b) F", "2.3 G", "3. H"]
    assert text(body, parts).splitlines() == said


def test_zeros_before_numbers_stay():
    legal = level(0, "Article %1.", "upperRoman") + level(1, "Section %1.%2", "decimalZero", "<w:isLgl/>")
    body = item("Terms") + item("Price", 1)
    assert text(body, numbering(legal)).splitlines() == ["Article I. Terms", "Section 1.01 Price"]
    choice = '<mc:Choice Requires="w14"><w:numFmt w:val="custom" w:format="0001, 0002, ..."/></mc:Choice>'
    later = f'<mc:AlternateContent>{choice}<mc:Fallback><w:numFmt w:val="decimal"/></mc:Fallback></mc:AlternateContent>'
    patent = level(0, "[%1]").replace('<w:numFmt w:val="decimal"/>', later)
    assert text(item("A") + item("B"), numbering(patent)).splitlines() == ["[0001] A", "[0002] B"]


def test_bullets_that_say_something_are_read():
    wingdings = '<w:rPr><w:rFonts w:ascii="Wingdings"/></w:rPr>'
    looks = [("☒", ""), ("\uf0fc", wingdings), ("\uf0b7", '<w:rPr><w:rFonts w:ascii="Symbol"/></w:rPr>')]
    parts = numbering("".join(level(depth, look, "bullet", more) for depth, (look, more) in enumerate(looks)))
    assert text(item("A") + item("B", 1) + item("C", 2), parts).splitlines() == ["☒ A", "✓ B", "• C"]


def test_letters_after_z_are_doubled():
    start = level(0, "%1)", "lowerLetter").replace('start w:val="1"', 'start w:val="27"')
    assert text(item("A") + item("B"), numbering(start)).splitlines() == ["aa) A", "bb) B"]


def test_a_list_begins_anew_where_it_says_so_and_goes_on_otherwise():
    again = (
        '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/>'
        '</w:lvlOverride></w:num><w:num w:numId="3"><w:abstractNumId w:val="0"/></w:num>'
    )
    body = item("a") + item("b", number=2) + item("c", number=2) + item("d", number=3)
    assert text(body, numbering(level(0, "%1)"), again)).splitlines() == ["1) a", "5) b", "6) c", "7) d"]


@pytest.mark.parametrize(
    ("words", "mark"),
    [
        ("<w:del><w:r><w:delText>B</w:delText></w:r></w:del>", "<w:del/>"),
        (f"<w:moveFrom>{run('B')}</w:moveFrom>", "<w:moveFrom/>"),
        ("<w:r><w:rPr><w:vanish/></w:rPr><w:t>B</w:t></w:r>", "<w:vanish/>"),
    ],
)
def test_a_paragraph_of_a_list_that_is_gone_has_no_number(words, mark):
    gone = paragraph(words, f'<w:numPr><w:numId w:val="1"/></w:numPr><w:rPr>{mark}</w:rPr>')
    assert text(item("A") + gone + item("C") + item("D"), numbering(level(0, "%1."))).splitlines() == [
        "1. A",
        "2. C",
        "3. D",
    ]


def test_a_list_may_define_levels_for_itself():
    own = f'<w:lvlOverride w:ilvl="0">{level(0, "Article %1", "upperRoman")}</w:lvlOverride>'
    own = f'<w:num w:numId="2"><w:abstractNumId w:val="0"/>{own}</w:num>'
    parts = numbering(level(0, "%1.") + level(1, "%1.%2"), own)
    body = item("A", number=2) + item("B", number=2) + item("C", 1, 2) + item("D")
    assert text(body, parts).splitlines() == ["Article I A", "Article II B", "II.1 C", "3. D"]


@pytest.mark.parametrize(("after", "numbers"), [("0", "3 4"), ("1", "1 2"), ("2", "1 1")])
def test_a_level_begins_anew_after_the_levels_that_it_names(after, numbers):
    section = level(2, "Section %3", more=f'<w:lvlRestart w:val="{after}"/>')
    parts = numbering(level(0, "Article %1") + level(1, "(%2)", "lowerLetter") + section)
    body = item("A") + item("a", 2) + item("b", 2) + item("B") + item("c", 2) + item("C", 1) + item("d", 2)
    found = [line.split()[1] for line in text(body, parts).splitlines() if line.startswith("Section")]
    assert found == ["1", "2", *numbers.split()]


def test_a_paragraph_or_style_may_change_the_level_of_the_style_that_it_has_its_list_from():
    styles = '<w:style w:styleId="{}"><w:basedOn w:val="{}"/><w:pPr><w:numPr>{}</w:numPr></w:pPr></w:style>'
    styles = styles.format("H", "", '<w:numId w:val="1"/>') + styles.format("K", "H", '<w:ilvl w:val="1"/>')
    body = paragraph(run("A"), '<w:pStyle w:val="H"/>') + paragraph(run("B"), '<w:pStyle w:val="K"/>')
    body += paragraph(run("C"), '<w:pStyle w:val="H"/><w:numPr><w:ilvl w:val="1"/></w:numPr>')
    parts = {**numbering(level(0, "%1.", more='<w:pStyle w:val="H"/>') + level(1, "%1.%2")), "styles": styles}
    assert text(body, parts).splitlines() == ["1. A", "1.1 B", "1.2 C"]


def test_headings_have_the_numbers_of_their_style():
    styles = (
        '<w:style w:styleId="H"><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:styleId="H2"><w:basedOn w:val="H"/></w:style>'
    )
    levels = level(0, "%1", "upperRoman", '<w:pStyle w:val="H"/>') + level(
        1, "%1.%2", more='<w:isLgl/><w:pStyle w:val="H2"/>'
    )
    heads = [
        paragraph(run(said), f'<w:pStyle w:val="{style}"/>')
        for said, style in (("One", "H"), ("Two", "H"), ("Sub", "H2"))
    ]
    assert text("".join(heads), {**numbering(levels), "styles": styles}).splitlines() == ["I One", "II Two", "2.1 Sub"]
    none = paragraph(run("Plain"), '<w:pStyle w:val="H"/><w:numPr><w:numId w:val="0"/></w:numPr>')
    assert text(none, {**numbering(levels), "styles": styles}) == "Plain"


def test_the_strict_variant_is_read():
    assert text(paragraph(run("The warden is Tomas.")), space=STRICT) == "The warden is Tomas."


def test_merged_cells_stand_in_each_row_and_leave_their_columns():
    def cell(said: str, shape: str = "") -> str:
        return f"<w:tc><w:tcPr>{shape}</w:tcPr>{paragraph(run(said))}</w:tc>"

    tall, below = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    rows = [
        cell("wide", '<w:gridSpan w:val="2"/>') + cell("c"),
        cell("tall", tall) + cell("b") + cell("c"),
        cell("", below) + cell("b2") + cell("c2"),
    ]
    body = "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"
    assert text(body).splitlines() == ["wide\t\tc", "tall\tb\tc", "tall\tb2\tc2"]


@given(st.lists(st.text(ALPHABET, min_size=1), min_size=1, max_size=5))
def test_every_character_of_every_run_is_in_the_text(words):
    from xml.sax.saxutils import escape

    assert "".join(words).split() == text(paragraph("".join(run(escape(word)) for word in words))).split()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04no", docx("<w:p>"), docx("")[:-30], b"PK\x05\x06" + bytes(18)])
def test_what_is_no_document_is_refused(data):
    with pytest.raises(SourceError, match="no Word document"):
        list(parse_docx(io.BytesIO(data), ParseRequest("a.docx", IngestConfig())))


def test_entities_and_other_files_are_not_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")
    data = docx(paragraph(run("seen&x;")))
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "word/document.xml":
                content = f'<!DOCTYPE d [<!ENTITY x SYSTEM "{secret.as_uri()}">]>'.encode() + content
            new.writestr(name, content)
    (document,) = parse_docx(io.BytesIO(file.getvalue()), ParseRequest("a.docx", IngestConfig()))
    assert document.text == "seen"


def test_a_deleted_end_of_the_last_paragraph_loses_nothing():
    assert text(paragraph(run("the end"), "<w:rPr><w:del/></w:rPr>")) == "the end"


def drawn(kind: str, size: tuple[int, int] = (1, 1)) -> str:
    picture = f'<w:pic><w:ext cx="{size[0]}" cy="{size[1]}"/></w:pic>' if kind == "picture" else ""
    return f'<w:r><w:drawing><w:graphicData uri="http://x/{kind}">{picture}</w:graphicData></w:drawing></w:r>'


def test_what_is_drawn_and_embedded_is_said():
    page = drawn("picture", (9 * 360_000, 7 * 360_000))
    body = paragraph(
        drawn("chart") + drawn("chartex") + drawn("picture", (10, 10)) + page + "<w:object><w:OLEObject/></w:object>"
    )
    parts = {"control1": "", "control2": ""}
    (document,) = parse_docx(io.BytesIO(docx(body, parts)), ParseRequest("a.docx", IngestConfig()))
    assert document.warnings == ("part not read: 2 charts; 1 embedded object; 1 large picture; 2 form controls",)
    (plain,) = parse_docx(io.BytesIO(docx(paragraph(run("x")))), ParseRequest("a.docx", IngestConfig()))
    assert plain.warnings == ()
    old = "<w:pict><w:shape style='width:468pt;margin:0;height:{}'><w:imagedata/></w:shape></w:pict>"
    scans = old.format("8.5in") + old.format("20pt") + old.format("100%")
    scans += f"<w:object>{old.format('8in')}</w:object>"  # the preview of an object
    scans += "<w:subDoc/>"
    (document,) = parse_docx(io.BytesIO(docx(paragraph(f"<w:r>{scans}</w:r>"))), ParseRequest("a.docx", IngestConfig()))
    assert document.warnings == ("part not read: 1 embedded document; 1 large picture",)
    body = paragraph(run("x")) + '<w:sectPr><w:headerReference r:id="header1"/></w:sectPr>'
    header = docx(body, {"header1": paragraph(drawn("chart") + page)})
    (document,) = parse_docx(io.BytesIO(header), ParseRequest("a.docx", IngestConfig()))
    assert document.warnings == ("part not read: 1 chart; 1 large picture",)


STORE = "{11111111-2222-3333-4444-555555555555}"


def bound(path: str, shown: str, kind: str = "<w:text/>", store: str = STORE) -> str:
    names = "xmlns:d='lease' xmlns:dc=&quot;http://purl.org/dc/elements/1.1/&quot;"
    binding = f'<w:dataBinding w:prefixMappings="{names}" w:xpath="{path}" w:storeItemID="{store}"/>'
    return f"<w:sdt><w:sdtPr>{kind}{binding}</w:sdtPr><w:sdtContent>{shown}</w:sdtContent></w:sdt>"


def test_a_bound_control_says_what_its_data_says():
    data = "<d:lease xmlns:d='lease' rent='900'><d:price>NEW 200</d:price><d:day>2026-05-06T00:00:00</d:day><d:none/>"
    data += "<d:kind>b</d:kind><d:yes>true</d:yes><d:two>one\ntwo</d:two></d:lease>"
    core = "<c><dc:title xmlns:dc='http://purl.org/dc/elements/1.1/'>Lease of the mill</dc:title></c>"
    choices = (
        "<w:dropDownList><w:listItem w:value='a' w:displayText='monthly'/><w:listItem w:value='b'/></w:dropDownList>"
    )
    of_core = "{6c3c8bc8-f283-45ae-878a-bab7291924a1}"
    day, box = "<w:date w:fullDate='{}'/>", "<w:checkbox><w:checked w:val='0'/></w:checkbox>"
    hint = "<w:showingPlcHdr/>"
    root = "/d:lease[1]/d:"
    parts = [
        (bound(f"{root}price[1]", run("OLD ") + run("100")), "NEW 200"),
        (bound("/d:lease/@rent", run("800"), ""), "900"),
        (bound(f"{root}day", run("May 6"), day.format("2026-05-06T00:00:00Z")), "May 6"),
        (bound(f"{root}day", run("May 5"), day.format("2026-05-05T00:00:00Z")), "2026-05-06"),
        (bound(f"{root}kind", run("monthly"), choices), "b"),
        (bound(f"{root}kind", run("monthly"), choices.replace("'b'", "'b' w:displayText='yearly'")), "yearly"),
        (bound(f"{root}yes", run("☐"), box), "☒"),
        (bound(f"{root}two", run("one") + "<w:r><w:br/></w:r>" + run("two")), "one\ntwo"),
        (bound(f"{root}none", run("kept")), "kept"),
        (bound("/d:lease", run("kept")), "kept"),
        (bound(f"{root}price", run("A") + "<w:r><w:noBreakHyphen/></w:r>" + run("1")), "NEW 200"),
        (bound(f"{root}none", run("Click here"), hint), "Click here"),
        (bound(f"{root}price", "", hint), "NEW 200"),
        (bound("//d:gone", run("kept")), "kept"),
        (bound("][", run("kept")), "kept"),
        (bound("count(//d:price)", run("kept")), "kept"),
        (bound(f"{root}price", run("kept"), store="{0}"), "kept"),
        (bound(f"{root}price", run("kept") + "<w:del><w:r><w:delText>x</w:delText></w:r></w:del>"), "kept"),
        (bound("//dc:title", run("Draft"), store=of_core), "Lease of the mill"),
        (bound(f"{root}price", paragraph(run("OLD")) + paragraph(run("more"))), "NEW 200\n"),
    ]
    body = "".join(part if "<w:p>" in part else paragraph(part) for part, _ in parts)
    top = {"main": ("officeDocument", "word/document.xml"), "core": ("core-properties", "docProps/core.xml")}
    files = {
        "_rels/.rels": _relations(top),
        "docProps/core.xml": core,
        "word/customXml.xml": data,
        "word/_rels/customXml.xml.rels": _relations({"a": ("customXmlProps", "props.xml")}),
        "word/props.xml": f"<p itemID='{STORE}'/>",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx(body, {"customXml": ""}))) as old, zipfile.ZipFile(file, "w") as new:
        for name, content in ({name: old.read(name) for name in old.namelist()} | files).items():
            new.writestr(name, content)
    (document,) = parse_docx(file, ParseRequest("a.docx", IngestConfig()))
    assert document.text == "\n".join(said for _, said in parts)
