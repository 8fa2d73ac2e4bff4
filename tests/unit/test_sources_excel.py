"""Excel workbooks: cells as they are shown."""

import io
import zipfile
from datetime import datetime

import docx
import openpyxl
import openpyxl.chart
import openpyxl.comments
import PIL.Image
import pytest
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.drawing.image import Image

from infra.sources import parse
from infra.sources.excel import shown
from memagent.config import IngestConfig
from memagent.errors import SourceError, UsageError
from pipelines.io.writer import xlsx_rows

DAY_0 = datetime(1899, 12, 30)


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (0.075, "0.0%", "7.5%"),
        (501, "00000", "00501"),
        (0.1 + 0.2, "0.00", "0.30"),
        (0.1 + 0.2, "", "0.3"),
        (1234567.5, '"$"#,##0.00', "$1,234,567.50"),
        (1234567.5, "[$€-407]\\ #,##0", "€ 1,234,568"),
        (-1234.5, '"$"#,##0.00', "-$1,234.50"),
        (-7, "(000) 000-0000", "-(000) 000-0007"),
        (7, "0,000", "0,007"),
        (1234567, "0,000.0", "1,234,567.0"),
        (-0.01, "#", ""),
        (-5, '0;[Red]"minus "0', "minus 5"),
        (0, '0;-0;"none"', "none"),
        (-1234.5, "#,##0.0#", "-1,234.5"),
        (12.5, '0.0\\ "days"', "12.5 days"),
        (1500000, '#,##0.0,,"M"', "1.5M"),
        (12345, "0.00E+00", "1.23E+04"),
        (3.25, "# ?/?", "3.25"),
        (7, "General", "7"),
        (1e20, "General", "1E+20"),
        (7, "@", "7"),
        (46082, "yyyy\\-mm\\-dd", "2026-03-01"),
        (46082.75, "d/m/yyyy\\ h:mm", "2026-03-01 18:00"),
        (0.395833333333333, "hh:mm", "09:30"),
        (1.0625, "[h]:mm", "25:30"),
        (1.0625, "[h]:mm:ss", "25:30:00"),
        (1, "yyyy-mm-dd", "1900-01-01"),
        (1e12, "yyyy-mm-dd", "1000000000000"),
        (46082, '"m"0', "m46082"),
        (5, "[Red][<0]-0;[Blue][>=0]0", "5"),
        (-5, "[Red][<0]-0;[Blue][>=0]0", "-5"),
        (500, '[>=1000000]0.0,,"M";[>=1000]0.0,"K";0', "500"),
        (1500, '[>=1000000]0.0,,"M";[>=1000]0.0,"K";0', "1.5K"),
        (500, '[<100]"low "0;"high "0', "high 500"),
        (-5, "[>=0]+0.0;-0.0", "-5.0"),
        (-5, "[>0]0.0;(0.0)", "(5.0)"),
        (-5, "[>5]0.0;0.0", "-5.0"),
        (2, '[=1]"yes";[=0]"no";General', "2"),
        (123456789, "000-00-0000", "123-45-6789"),
        (7, "000-00-0000", "000-00-0007"),
        (5551234567, "(###) ###-####", "(555) 123-4567"),
        (1234567812345670, "0000 0000 0000 0000", "1234 5678 1234 5670"),
        (12.5, "0.0 0.0", "12.5"),  # a format that is not known shows the number
        (2.5, "0", "3"),
        (-2.5, "0", "-3"),
        (1.005, "0.00", "1.01"),
        (0.285, "0%", "29%"),
        (1234.5, "#,##0", "1,235"),
        (12.5, "000-00", "000-13"),
        (2.5, "0E+00", "3E+00"),
        (1e20, "0.00", "100000000000000000000.00"),
        (-0.0625, "[hh]:mm:ss", "-1:30:00"),
        (44561.9999999653, "dd/mm/yyyy", "2021-12-31"),
        (44561.9999999653, "dd/mm/yyyy hh:mm:ss", "2022-01-01 00:00:00"),
        (44561.9999999653, "dd/mm/yyyy hh:mm:ss.000", "2021-12-31 23:59:59.997"),
        (44561.999999999999, "dd/mm/yyyy", "2022-01-01"),
        (83.45 / 86_400, "mm:ss.00", "00:01:23.45"),
        (3723.1234 / 86_400, "[h]:mm:ss.000", "1:02:03.123"),
        (-12, '0;;"zero"', "-12"),
        (0, '0;;"zero"', "zero"),
        (5, ";-0;0", "5"),
        (5, '0"a;b";-0', "5a;b"),
        (-1234.5, "#,##0.00;[Red]#,##0.00", "-1,234.50"),
        (-1234.5, "#,##0.00_);[Red]\\(#,##0.00\\)", "(1,234.50)"),
        (-5, "[Red][<0]0;0", "-5"),
        (-5, "0;0", "5"),
        (5, '0"*"', "5*"),
        (5, '0"[Red]_x"', "5[Red]_x"),
        (5, 'General" kg"', "5 kg"),
        (-5, 'General;[Red]-General" kg"', "-5 kg"),
        (float("inf"), "0.0", "INF"),
        (0, '_(* #,##0_);_(* (#,##0);_(* "-"??_)', "-"),
    ],
)
def test_numbers_are_as_their_format_shows_them(value, code, text):
    assert shown(float(value), code, DAY_0) == text


def test_days_may_count_from_1904():
    assert shown(44620.0, "yyyy-mm-dd", datetime(1904, 1, 1)) == "2026-03-01"


def test_a_workbook_is_its_sheets_with_cells_in_their_columns(tmp_path):
    book = openpyxl.Workbook()
    book.properties.title = "Rates"
    sheet = book.active
    sheet.title = "One"
    sheet["A1"], sheet["C1"], sheet["A3"] = "rate", 0.075, True
    sheet["C1"].number_format = "0.0%"
    book.create_sheet("Two")["B2"] = "line\nbreak"
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.title == "Rates"
    assert document.text.splitlines() == ["One", "", "rate\t\t7.5%", "TRUE", "", "Two", "", "\tline break"]


def test_headers_and_footers_are_read_without_their_codes(tmp_path):
    book = openpyxl.Workbook()
    book.active["A1"] = "Price"
    book.active.oddHeader.center.text = "Offer of A && B"
    book.active.oddHeader.center.size = 14
    book.active.oddFooter.left.text, book.active.oddFooter.right.text = "Net of VAT", "&P of &N"
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text.splitlines() == ["Price", "Offer of A & B", "Net of VAT of"]


def test_powers_are_no_digits_of_their_number(tmp_path):
    book = openpyxl.Workbook()
    book.active["A1"] = CellRichText("10", TextBlock(InlineFont(vertAlign="superscript"), "6"), " units")
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text == "10^6 units"


def test_letters_in_fonts_of_signs_are_signs(tmp_path):
    book = openpyxl.Workbook()
    sheet, greek = book.active, InlineFont(rFont="Symbol")
    sheet["A1"] = CellRichText("5 ", TextBlock(greek, "m"), TextBlock(InlineFont(rFont="Calibri"), "g"))
    for cell, value, font in (("B1", "þ", "Wingdings"), ("C1", "P", "Wingdings 2"), ("D1", "Z", "Webdings")):
        sheet[cell], sheet[cell].font = value, openpyxl.styles.Font(name=font)
    sheet["E1"] = CellRichText("\xa0", TextBlock(greek, "\xa0•–b"))  # typed signs and blanks stay
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text == "5 μg\t☑\t✓\t\ufffd\t•–β" and document.warnings == ("part not read: 1 unreadable letter",)


def test_what_is_struck_through_is_marked(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    old = InlineFont(strike=True)
    sheet["A1"] = CellRichText("pay ", TextBlock(old, "1"), TextBlock(old, "11"), TextBlock(InlineFont(), "222"))
    for cell, value in (("B1", 500), ("C1", 900), ("D1", "~~~~"), ("E1", None)):
        sheet[cell] = value
    for cell in ("B1", "E1"):
        sheet[cell].font = openpyxl.styles.Font(strike=True)
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text == "pay ~~111~~222\t~~500~~\t900\t~~~~"


def test_comments_are_read_and_charts_are_said(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet["A1"] = 3
    sheet["A1"].comment = openpyxl.comments.Comment("Net of tax?", "Bo")
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(sheet, min_col=1, min_row=1))
    sheet.add_chart(chart, "C3")
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text.splitlines() == ["3", "Comment on A1: Net of tax?"]
    assert document.warnings == ("part not read: 1 chart",)


def test_boxes_to_tick_are_said(tmp_path):
    book, path = openpyxl.Workbook(), tmp_path / "a.xlsx"
    book.active["A1"] = "Paid"
    book.save(path)
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/ctrlProp"
    with zipfile.ZipFile(path, "a") as archive:
        rows = "".join(f'<Relationship Id="r{n}" Type="{kind}" Target="../ctrlProps/{n}.xml"/>' for n in range(2))
        archive.writestr("xl/worksheets/_rels/sheet1.xml.rels", f"<Relationships>{rows}</Relationships>")
        for number, control in enumerate(("CheckBox", "Button")):
            archive.writestr(f"xl/ctrlProps/{number}.xml", f'<formControlPr objectType="{control}" checked="Checked"/>')
    (document,) = parse(str(path), "a.xlsx", IngestConfig())
    assert document.warnings == ("part not read: 1 form control",)


def without(path, part: str) -> None:
    """Take a part out of an archive."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name != part}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def test_sheets_that_are_charts_or_lost_are_said(tmp_path):
    book, path = openpyxl.Workbook(), tmp_path / "a.xlsx"
    book.active.append(["question"])
    book.active.append(["Who?"])
    book.create_sheet("Two").append(["lost"])
    book.create_chartsheet("Chart").add_chart(openpyxl.chart.BarChart())
    book.save(path)
    (document,) = parse(str(path), "a.xlsx", IngestConfig())
    assert document.warnings == ("part not read: 1 chart sheet",)
    assert len(list(xlsx_rows(path, ["question"]))) == 1
    without(path, "xl/worksheets/sheet2.xml")
    (document,) = parse(str(path), "a.xlsx", IngestConfig())
    assert document.warnings == ("part not read: 1 missing sheet; 1 chart sheet",)
    with pytest.raises(UsageError, match="a damaged one"):
        list(xlsx_rows(path, ["question"]))
    without(path, "xl/worksheets/sheet1.xml")
    with pytest.raises(SourceError, match="broken"):
        list(parse(str(path), "a.xlsx", IngestConfig()))


def test_a_word_document_without_its_header_part_says_so(tmp_path):
    document, path = docx.Document(), tmp_path / "a.docx"
    document.add_paragraph("The term is two years.")
    document.sections[0].header.paragraphs[0].text = "Draft"
    document.save(path)
    without(path, "word/header1.xml")
    (read,) = parse(str(path), "a.docx", IngestConfig())
    assert read.text.strip() == "The term is two years."
    assert read.warnings == ("part not read: 1 missing header",)


def test_formulas_that_were_never_computed_are_a_warning(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["rent", "=B2", "=C2", 5])
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text == "rent\t\t\t5" and document.warnings == ("part not read: 2 uncomputed formulas",)


def test_a_formula_with_an_empty_text_or_an_error_was_computed(tmp_path):
    cells = (
        '<c r="A1" t="str"><f>""</f><v></v></c><c r="B1" t="e"><f>NA()</f><v>#N/A</v></c><c r="C1"><f>1</f><v>1</v></c>'
    )
    for anew, warnings in ((False, ()), (True, ("part not read: 2 uncomputed formulas",))):
        made = openpyxl.Workbook()
        made.calculation.fullCalcOnLoad = anew  # some writers put 0 for each value, and leave it to Excel
        made.save(tmp_path / "a.xlsx")
        with zipfile.ZipFile(tmp_path / "a.xlsx") as empty, zipfile.ZipFile(tmp_path / "b.xlsx", "w") as book:
            for name in empty.namelist():
                part = empty.read(name).decode()
                rows = f"<sheetData><row>{cells}</row></sheetData>"
                book.writestr(name, part.replace("<sheetData></sheetData>", rows))
        (document,) = parse(str(tmp_path / "b.xlsx"), "b.xlsx", IngestConfig())
        assert document.text == "\t#N/A\t1" and document.warnings == warnings


def test_a_hidden_sheet_says_so(tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "Prices"
    book.active["A1"] = "EUR 900"
    for name, state in (("Old", "hidden"), ("Older", "veryHidden")):
        sheet = book.create_sheet(name)
        sheet["A1"], sheet.sheet_state = "EUR 500", state
    book.save(tmp_path / "a.xlsx")
    (document,) = parse(str(tmp_path / "a.xlsx"), "a.xlsx", IngestConfig())
    assert document.text.strip().split("\n") == [
        *("Prices", "", "EUR 900", "", "Old (hidden sheet)", "", "EUR 500", "", "Older (hidden sheet)", "", "EUR 500")
    ]


def test_a_workbook_of_one_picture_has_no_text_and_says_why(tmp_path):
    PIL.Image.new("1", (800, 1100)).save(picture := io.BytesIO(), "PNG")
    made = openpyxl.Workbook()
    made.active.add_image(Image(picture), "A1")  # the anchor alone has its size
    made.save(path := tmp_path / "scan.xlsx")
    with pytest.raises(SourceError, match=r"no-text.*1 large picture"):
        list(parse(str(path), path.name, IngestConfig()))


def test_objects_and_pictures_in_cells_are_said(tmp_path):
    made = openpyxl.Workbook()
    made.active.append(["Signed:", "#VALUE!"])
    made.save(path := tmp_path / "a.xlsx")
    beside = "<Relationships><Relationship Id='r1' Type='http://x/package' Target='../media/a.docx'/></Relationships>"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "b.xlsx", "w") as new:
        for name in old.namelist():
            cell = old.read(name).replace(b'<c r="B1" t="e"', b'<c r="B1" vm="1" t="e"')
            new.writestr(name, cell)
        new.writestr("xl/worksheets/_rels/sheet1.xml.rels", beside)
        new.writestr("xl/media/a.docx", "")
    (document,) = parse(str(tmp_path / "b.xlsx"), "b.xlsx", IngestConfig())
    assert document.warnings == ("part not read: 1 picture or linked cell; 1 embedded object",)
