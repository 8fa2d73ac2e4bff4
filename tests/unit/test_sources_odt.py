"""OpenDocument texts: what a reader of the printed document sees."""

import io

import pytest

from infra.sources.base import Parsed, ParseRequest
from infra.sources.odt import parse_odt
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.office import odt


def parsed(data: bytes) -> Parsed:
    (document,) = parse_odt(io.BytesIO(data), ParseRequest("a.odt", IngestConfig()))
    return document


def text(body: str, **parts: str) -> str:
    return parsed(odt(body, **parts)).text


def p(inside: str) -> str:
    return f"<text:p>{inside}</text:p>"


def test_inserted_text_is_read_and_deleted_text_is_not():
    deleted = "<text:changed-region><text:deletion><text:p>900</text:p></text:deletion></text:changed-region>"
    body = f"<text:tracked-changes>{deleted}</text:tracked-changes>"
    body += p('Rent:<text:s/><text:change text:change-id="a"/><text:change-start/>1,275<text:change-end/> euros')
    assert text(body) == "Rent: 1,275 euros"


def test_blanks_tabs_and_line_breaks_are_characters():
    assert text(p('a<text:s text:c="3"/>b<text:tab/>c<text:line-break/>d\n  e')) == "a   b\tc\nd   e"


def test_a_row_of_a_table_is_one_line():
    cells = "".join(f"<table:table-cell>{p(inside)}</table:table-cell>" for inside in ("a<text:line-break/>b", "c"))
    assert text(f"<table:table><table:table-row>{cells}</table:table-row></table:table>") == "a b\tc"


def test_notes_and_comments_follow_their_paragraph():
    note = "<text:note text:note-class='{}'><text:note-citation>1</text:note-citation>"
    note += "<text:note-body>{}</text:note-body></text:note>"
    body = p("Payable monthly" + note.format("footnote", p("In advance.")) + "." + note.format("endnote", p("Later.")))
    body += p("Signed<office:annotation><dc:creator>Bo</dc:creator><text:p>By whom?</text:p></office:annotation>.")
    assert text(body).split("\n") == [
        "Payable monthly.",
        "Footnote: In advance.",
        "Endnote: Later.",
        "Signed.",
        "Comment: By whom?",
    ]


def test_headers_stand_before_the_body_and_text_boxes_after_their_paragraph():
    masters = "<style:master-page><style:header><text:p>Draft</text:p></style:header>"
    masters += "<style:footer><text:p>Page 1</text:p></style:footer></style:master-page>"
    box = "<draw:frame><draw:text-box><text:p>In the box</text:p></draw:text-box></draw:frame>"
    assert text(p(f"Body{box}"), styles=masters).split("\n") == ["Draft", "Body", "In the box", "Page 1"]


def style(name: str, look: str, family: str = "text", more: str = "") -> str:
    given = f'style:family="{family}" style:name="{name}" {more}'
    return f"<style:style {given}><style:text-properties {look}/></style:style>"


def span(name: str, words: str) -> str:
    return f'<text:span text:style-name="{name}">{words}</text:span>'


def test_powers_are_no_digits_of_their_number():
    raised = style("T1", 'style:text-position="super 58%"')
    assert text(p(f"10{span('T1', '6')} m"), automatic=raised) == "10^6 m"


def test_what_is_struck_through_is_marked():
    through, based = 'style:text-line-through-style="solid"', 'style:parent-style-name="T1"'
    styles = style("T1", through) + style("P1", through, "paragraph") + style("T1", "", "paragraph")
    assert text(p(f"pay {span('T1', '1')}2"), automatic=styles) == "pay ~~1~~2"
    styles += style("T3", "style:text-line-through-style='none'", more=based)
    styles += style("T4", "style:text-line-through-type='single'") + style(
        "T5", "style:text-line-through-type='none'", more=based
    )
    assert text(p(f"{span('T4', '5')} {span('T5', '6')}"), automatic=styles) == "~~5~~ 6", "the type alone is enough"
    styles += style("P2", "", "paragraph", 'style:parent-style-name="P1"')
    inside = f"a {span('T3', 'b')}<text:span>c</text:span>"
    body = f'<text:p text:style-name="P2">{inside}</text:p>' + p(span("T3", "d"))
    assert text(body, automatic=styles) == "~~a ~~b~~c~~\nd", "also by the style of a paragraph, and of one that it has"
    other = '<text:p text:style-name="T1">held</text:p>'
    assert text(other, automatic=styles) == "held", "a style of words of the same name is another one"


def test_letters_in_fonts_of_signs_are_signs():
    faces = '<style:font-face style:name="Symbol1" svg:font-family="Symbol"/>'
    styles = faces + style("T1", 'style:font-name="Symbol1"') + style("T2", 'style:font-name="Wingdings"')
    body = p(f"5 {span('T1', chr(0xF06D))}g, {span('T2', chr(0xF0FE))} yes {span('T2', chr(0xF0A8))} no")
    assert text(body, automatic=styles) == "5 μg, ☑ yes ☐ no"


def test_headers_of_first_and_left_pages_are_read():
    kinds = ("header", "header-first", "footer-left")
    masters = "".join(f"<style:{kind}><text:p>{kind}</text:p></style:{kind}>" for kind in kinds)
    masters = f"<style:master-page>{masters}</style:master-page>"
    assert text(p("Body"), styles=masters).split("\n") == ["header", "header-first", "Body", "footer-left"]


def test_headers_that_are_off_and_those_of_unused_pages_are_left_out():
    off = "<style:header-left style:display='false'><text:p>OFF</text:p></style:header-left>"

    def page(name: str, inside: str = "", then: str = "") -> str:
        inside += f"<style:header><text:p>{name}</text:p></style:header>"
        return f"<style:master-page style:name='{name}' style:next-style-name='{then}'>{inside}</style:master-page>"

    masters = page("Standard", off) + page("HTML") + page("First", then="Next") + page("Next")
    style = '<style:style style:name="P1" style:master-page-name="First"/>'
    said = text('<text:p text:style-name="P1">Body</text:p>', styles=masters, automatic=style)
    assert said.split("\n") == ["Standard", "First", "Next", "Body"]


def test_what_forms_show_is_read():
    fields = "<form:text form:id='a' form:current-value='1,275 euros'/><form:password form:id='d' form:value='no'/>"
    fields += "<form:checkbox form:id='b' form:label='Agree' form:current-state='checked'/>"
    chosen = "<form:option form:label='Mai'/><form:option form:label='June' form:current-selected='true'/>"
    fields += f"<form:listbox form:id='c'>{chosen}</form:listbox>"
    body = f"<office:forms><form:form>{fields}</form:form></office:forms>"
    controls = " ".join(f"<draw:control draw:control='{name}'/>" for name in "abcd")
    assert text(body + p(f"Rent: {controls}.")) == "Rent: 1,275 euros ☒ Agree June ."
    beside = "<draw:control draw:control='a'/><draw:control draw:control='c'/>Rent:"
    assert text(body + p(beside)) == "1,275 euros June Rent:"


def test_form_fields_of_word_show_what_was_chosen():
    def field(kind: str, **given: str) -> str:
        inside = "".join(f"<text:param text:name='{name[:-1]}' text:value='{said}'/>" for name, said in given.items())
        return f"<text:fieldmark text:type='vnd.oasis.opendocument.field.{kind}'>{inside}</text:fieldmark>"

    law = field("FORMDROPDOWN", Dropdown_ListEntry1="Italy", Dropdown_ListEntry2="France", Dropdown_Selected1="1")
    boxes = field("FORMCHECKBOX", Checkbox_Checked1="true") + field("FORMCHECKBOX") + field("FORMDROPDOWN")
    assert text(p(f"Law: {law}. {boxes}")) == "Law: France. ☒☐"


def test_a_shape_stands_after_its_paragraph_without_what_says_what_is_drawn():
    shape = "<draw:custom-shape><svg:title>Box</svg:title><text:p>One</text:p><text:p>Two</text:p></draw:custom-shape>"
    picture = "<draw:frame><draw:image/><svg:title>T</svg:title><svg:desc>A tree</svg:desc></draw:frame>"
    line = "<draw:line><text:p>Three</text:p></draw:line>"
    assert text(p(f"Be{shape}fo{picture}r{line}e")).split("\n") == ["Before", "One", "Two", "Three"]


def test_hidden_text_is_left_out():
    hidden = 'text:display="none"'
    styles = style("H", hidden) + style("H", hidden, "paragraph")
    body = p('The term is <text:span text:style-name="H">two </text:span>three years.')
    body += f'<text:section text:display="none">{p("secret")}</text:section>'
    body += '<text:p text:style-name="H">secret</text:p>' + p('<text:hidden-paragraph text:is-hidden="true"/>secret')
    body += f'<text:section text:display="condition" text:is-hidden="true">{p("secret")}</text:section>'
    assert text(body, automatic=styles) == "The term is three years."


LEVELS = (
    '<text:list-style style:name="L"><text:list-level-style-number text:level="1" style:num-format="1"'
    ' style:num-suffix="."/><text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"'
    ' text:display-levels="2"/></text:list-style>'
)


def test_formats_of_numbers_are_no_text_of_the_document():
    date = '<number:date-style style:name="D"><number:year/><number:text>-</number:text></number:date-style>'
    assert text(p("Berlin, 2026-03-02"), automatic=date) == "Berlin, 2026-03-02"


def item(inside: str, start: str = "") -> str:
    return f"<text:list-item{start}>{inside}</text:list-item>"


def test_a_list_goes_on_with_the_one_that_it_names():
    lists = [('xml:id="a"', "Scope"), ('xml:id="b"', "Annex"), ('xml:id="c" text:continue-list="a"', "Breach")]
    body = "".join(f'<text:list text:style-name="L" {of}>{item(p(said))}</text:list>' for of, said in lists)
    body += f'<text:list text:style-name="L" text:continue-list="c">{item(p("End"))}</text:list>'
    assert text(body, automatic=LEVELS).split("\n") == ["1. Scope", "1. Annex", "2. Breach", "3. End"]


def test_a_list_in_another_counts_with_it_whatever_its_style_and_an_item_may_have_its_own():
    other = LEVELS.replace('style:name="L"', 'style:name="M"').replace('num-suffix="."', 'num-suffix=":"')
    inner = f'<text:list text:style-name="M">{item(p("Rent"))}</text:list>'
    body = f'<text:list text:style-name="L">{item(p("Duties") + inner)}</text:list>'
    deeper = item(f"<text:list>{item(p('Deposit'))}</text:list>")
    body += f'<text:list text:style-name="L" text:continue-numbering="true">{deeper}</text:list>'
    of_m = ' text:style-override="M"'
    body += f'<text:list text:style-name="L" text:continue-numbering="true">{item(p("End"), of_m)}</text:list>'
    body += f"<text:list>{item(p('plain'))}</text:list>"
    assert text(body, automatic=LEVELS + other).split("\n") == [
        "1. Duties",
        "1.a) Rent",
        "1.b) Deposit",
        "2: End",
        "plain",
    ]


def test_numbers_under_bullets_begin_anew_and_zeros_stay():
    dot = '<text:list-level-style-bullet text:level="1" text:bullet-char="•"/>'
    zeros = '<text:list-level-style-number text:level="2" style:num-format="001, 002" style:num-suffix="."/>'
    style = f'<text:list-style style:name="L">{dot}{zeros}</text:list-style>'
    rooms = (("Kitchen", "sink", "oven"), ("Bath", "tub"))
    inner = ["".join(item(p(one)) for one in things) for _, *things in rooms]
    items = (item(p(name) + f"<text:list>{of}</text:list>") for (name, *_), of in zip(rooms, inner, strict=True))
    body = f'<text:list text:style-name="L">{"".join(items)}</text:list>'
    assert text(body, automatic=style).split("\n") == ["• Kitchen", "001. sink", "002. oven", "• Bath", "001. tub"]


def test_numbers_of_lists_are_computed():
    inner = f"<text:list>{item(p('Rent') + p('more of it'))}{item(p('Deposit'))}</text:list>"
    body = f'<text:list text:style-name="L">{item(p("Parties"))}{item(p("Duties") + inner)}</text:list>' + p("between")
    body += f'<text:list text:style-name="L" text:continue-numbering="true">{item(p("End"))}</text:list>'
    body += f'<text:list text:style-name="L">{item(p("Anew"))}</text:list>'
    five = ' text:start-value="5"'
    body += f'<text:list text:style-name="L" text:continue-numbering="true">{item(p("Fifth"), five)}</text:list>'
    assert text(body, automatic=LEVELS).split("\n") == [
        "1. Parties",
        "2. Duties",
        "2.a) Rent",
        "more of it",
        "2.b) Deposit",
        "between",
        "3. End",
        "1. Anew",
        "5. Fifth",
    ]


def test_a_paragraph_that_its_style_hides_is_counted():
    hidden = item('<text:p text:style-name="H">secret</text:p>')
    body = f'<text:list text:style-name="L">{item(p("one"))}{hidden}{item(p("three"))}</text:list>'
    styles = LEVELS + style("H", 'text:display="none"', "paragraph")
    assert text(body, automatic=styles).split("\n") == ["1. one", "3. three"]


def test_headings_are_numbered_by_their_outline():
    outline = '<text:outline-style><text:outline-level-style text:level="1" style:num-format="I" style:num-suffix="."/>'
    outline += '<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/>'
    body = "".join(
        f'<text:h text:outline-level="{level}">{words}</text:h>'
        for level, words in ((1, "A"), (2, "B"), (2, "C"), (1, "D"))
    )
    lines = text(body, styles=f"{outline}</text:outline-style>").split("\n")
    assert lines == ["I. A", "I.1 B", "I.2 C", "II. D"]


P_NONE = '<text:p text:style-name="N">x</text:p>'


def test_headings_begin_anew_and_go_without_a_number_where_they_say_so():
    outline = '<text:outline-style><text:outline-level-style text:level="1" style:num-format="1"/></text:outline-style>'
    heads = [("", "A"), ('text:is-list-header="true"', "B"), ('text:style-name="N"', "C"), ("", "D")]
    heads += [('text:restart-numbering="true" text:start-value="10"', "E"), ("", "F")]
    body = "".join(f'<text:h text:outline-level="1" {more}>{said}</text:h>' for more, said in heads)
    none = style("N", "", "paragraph", 'style:list-style-name=""')
    named = f"{outline}{none.replace('N', 'S')}"
    assert text('<text:h text:outline-level="1" text:style-name="S">A</text:h>', styles=named) == "1 A"
    listed = f'<text:list text:style-name="L">{item(P_NONE)}</text:list>'
    assert text(listed, automatic=LEVELS + none) == "1. x", "in a list it has its number"
    assert text(body, styles=outline, automatic=none).split("\n") == ["1 A", "B", "C", "2 D", "10 E", "11 F"]


@pytest.mark.parametrize(
    ("look", "numbers"),
    [
        ('style:num-format="01, 02, 03, ..." style:num-prefix="§ "', ["§ 01", "§ 02"]),
        ('style:num-format="" style:num-prefix="Recital:"', ["Recital:", "Recital:"]),
        ('style:num-format=""', ["", ""]),
        ('style:num-format="一, 二, 三, ..." style:num-prefix="第" style:num-suffix="条"', ["第1条", "第2条"]),
        ('style:num-format="1" loext:num-list-format="%1%/a"', ["1/a", "2/a"]),
        ('style:num-format="a" text:start-value="27"', ["aa", "ab"]),
        ('style:num-format="a" style:num-letter-sync="true" text:start-value="27"', ["aa", "bb"]),
    ],
)
def test_numbers_look_as_their_format_says(look, numbers):
    space = 'xmlns:loext="urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0"'
    level = f'<text:list-level-style-number {space} text:level="1" {look}/>'
    styles = f'<text:list-style style:name="L">{level}</text:list-style>'
    body = f'<text:list text:style-name="L">{item(p("x"))}{item(p("x"))}</text:list>'
    assert [line.removesuffix("x").strip() for line in text(body, automatic=styles).split("\n")] == numbers


def test_bullets_that_say_something_are_read():
    levels = "".join(
        f'<text:list-style style:name="{name}"><text:list-level-style-bullet text:level="1" text:bullet-char="{sign}"/>'
        "</text:list-style>"
        for name, sign in (("A", "☒"), ("B", "✗"), ("C", "●"))
    )
    body = "".join(f'<text:list text:style-name="{name}">{item(p(name))}</text:list>' for name in "ABC")
    assert text(body, automatic=levels).split("\n") == ["☒ A", "✗ B", "• C"]


def test_merged_and_repeated_cells_leave_their_columns():
    def cell(words: str, **options: int) -> str:
        given = "".join(f' table:number-{name.replace("_", "-")}="{value}"' for name, value in options.items())
        return f"<table:table-cell{given}>{p(words) if words else ''}</table:table-cell>"

    covered = "<table:covered-table-cell/>"
    inner = f"<table:table><table:table-row>{cell('IBAN')}{cell('500')}</table:table-row></table:table>"
    outer = f"<table:table-row><table:table-cell>{inner}</table:table-cell>{cell('1,000')}</table:table-row>"
    assert text(f"<table:table>{outer}</table:table>") == "IBAN 500\t1,000"
    rows = (
        cell("Item") + cell("Price", columns_spanned=2) + covered,
        cell("Flat", rows_spanned=2) + cell("900") + cell("1"),
        covered + cell("x", columns_repeated=2),
    )
    body = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    assert text(f"<table:table>{body}</table:table>").split("\n") == ["Item\tPrice", "Flat\t900\t1", "Flat\tx\tx"]


def test_title_and_what_is_not_read():
    frames = "<draw:frame><draw:object/></draw:frame>"
    frames += '<draw:frame svg:width="18cm" svg:height="24cm"><draw:image/></draw:frame>'
    small = '<draw:frame svg:width="30mm" svg:height="1in"><draw:image/></draw:frame>'
    document = parsed(odt(p(f"See {frames}{small}"), title="Lease"))
    assert document.title == "Lease"
    assert document.warnings == ("part not read: 1 embedded object; 1 large picture",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no archive", "broken"),
        (odt("<text:p>cut"), "broken"),
        (odt(p("x"), manifest="<manifest:encryption-data/>"), "encrypted"),
    ],
)
def test_what_is_none_is_said(data: bytes, reason: str):
    with pytest.raises(SourceError) as caught:
        parsed(data)
    assert caught.value.reason == reason


def test_no_entity_is_resolved(tmp_path):
    (tmp_path / "secret").write_text("secret")
    entity = f'<!DOCTYPE c [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]>'
    assert "secret" not in parsed(odt(p("see &x;"), doctype=entity)).text
