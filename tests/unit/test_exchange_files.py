"""Answers as files for spreadsheets, and back with verdicts."""

import csv
import io
import json
from datetime import UTC, date, datetime, time
from types import SimpleNamespace

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memagent.errors import UsageError
from memagent.quality.verdicts import Verdict
from memagent.records import TextSpan
from pipelines.io import writer as workbook
from pipelines.io.answers import _LAYOUT as ANSWERS
from pipelines.io.answers import COLUMNS, write_answers
from pipelines.io.feedback import load_verdicts
from pipelines.io.writer import Link, TableLayout, flat, write_file, write_xlsx, xlsx_rows
from pipelines.web.review import answer_pages
from tests.support.hostile import word

PLACE = {
    "content_hash": "h",
    "segment_index": 3,
    "char_start": 100,
    "char_end": 400,
    "quote": "the laws of Nevada",
    "quote_start": 150,
    "quote_end": 168,
    "verbatim": True,
}


def answer(reading="r1", text="Nevada", place=PLACE):
    return {
        "document": "a.pdf",
        "title": "=HYPERLINK(1)",
        "source": "s",
        "question_id": "law",
        "question": "Which law — für alle?",
        "answer": text,
        "engine_answer": text,
        "found": True,
        "evidence": [place] if place else [],
        "gold": ["Nevada", "NV"],
        "policy_id": "p",
        "reading_id": reading,
        "run_id": "run",
        "answered_at": datetime(2026, 11, 24, 9, 30, tzinfo=UTC),
    }


def test_csv_in_a_file_is_what_a_spreadsheet_opens(tmp_path):
    write_answers([answer()], None, tmp_path / "a.csv")
    data = (tmp_path / "a.csv").read_bytes()
    assert data.startswith(b"\xef\xbb\xbfdocument,"), "the mark of UTF-8"
    (row,) = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
    assert (row["char_start"], row["char_end"]) == ("100", "400")
    assert (row["quote"], row["quote_start"], row["quote_end"]) == ("the laws of Nevada", "150", "168")
    assert row["verbatim"] == "True"
    assert (
        row["question"] == "Which law — für alle?" and row["title"] == "'=HYPERLINK(1)" and row["gold"] == "Nevada|NV"
    )
    without = PLACE | {"quote": "", "quote_start": -1, "quote_end": -1, "verbatim": False}
    write_answers([answer(place=without)], None, tmp_path / "b.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "b.csv").read_text("utf-8-sig")))
    assert (row["quote"], row["quote_start"], row["verbatim"], row["char_start"]) == ("", "", "", "100")


def test_the_command_and_the_review_pages_have_one_layout():
    mine, pages = list(ANSWERS.header), list(answer_pages.COLUMNS.names)
    assert mine[:5] == pages[:5] == ["document", "question", "answer", "quote", "review"]
    assert mine[-4:] == ["question_id", "policy_id", "run_id", "reading_id"]
    assert pages[-4:] == ["corpus", "question_id", "run_id", "reading_id"]
    assert [name for name in mine if name in pages] == [name for name in pages if name in mine], "in the same order"
    assert set(pages) - set(mine) == {"comments", "link", "corpus"}
    assert {*COLUMNS.names} - {"evidence"} <= set(mine), "a column that `_CELLS` lacks would be in no workbook"
    assert set(mine) >= {"source", "page", "gold", "segment", "char_start"} and len(mine) == len(set(mine))


@pytest.mark.parametrize(
    ("state", "right", "found", "quote"),
    [
        ("found", None, True, "so it says"),
        ("not found", "", False, ""),  # not in the document: the state is that of what people are shown
        ("found", "Utah", True, "Utah"),  # as a person marked it: no longer the reader's quote
        ("not found", None, False, "so it says"),
        ("failed", None, None, ""),
    ],
)
def test_a_correction_decides_what_is_found_and_whether_there_is_a_quote(monkeypatch, state, right, found, quote):
    texts = ("corpus", "doc_id", "title", "question_id", "question", "answer", "run_id", "reading_id", "review")
    more = {
        "right": right,
        "state": state,
        "quote": "so it says",
        "verbatim": 1,
        "confidence": 0.5,
        "level": "high",
        "warnings": "",
        "answered_at": None,
    }
    item = SimpleNamespace(**dict.fromkeys((*texts, "content_hash"), "x"), **more)
    monkeypatch.setattr(answer_pages.listing, "every", lambda *_: [item])
    monkeypatch.setattr(answer_pages, "link", lambda item: "/answers/x")
    monkeypatch.setattr(answer_pages, "question_ids", lambda corpus: {})
    names = {"copy.txt": 1, "one.txt": 1, "gone.txt": 0}
    known = [{"doc_id": name, "title": name, "warnings": "", "present": there} for name, there in names.items()]
    index = SimpleNamespace(execute=lambda *_: known)
    spans = (TextSpan("x", 6, 10),) if right else ()
    said = Verdict("x", "corrected", "x", right or "", datetime.now(UTC), "anna", spans=spans)
    service = SimpleNamespace(
        store=None,
        index=SimpleNamespace(read=lambda: index),
        verdicts=lambda item: [] if right is None else [said],
        texts=SimpleNamespace(get=lambda corpus, name: "It is Utah."),
        outdated=lambda item: [],
    )
    row, *copies = answer_pages.exported_rows(service, None, "anna", "http://here")
    named = [(each["document"], each["answer"]) for each in (row, *copies)]
    told = row["answer"]
    assert named == ([("x", told)] if state == "failed" else [("copy.txt", told), ("one.txt", told)])
    assert set(row) == set(answer_pages.COLUMNS.names)
    assert (row["found"], row["quote"], row["verbatim"]) == (found, quote, True if quote else None)
    assert row["warnings"] == (["failed: x"] if state == "failed" else [])


def test_csv_on_standard_output_has_no_mark(capfdbinary):
    write_answers([answer()], "csv", None)
    assert capfdbinary.readouterr().out.startswith(b"document,")


def test_evidence_without_a_quote_has_no_place(tmp_path):
    write_answers([answer(place={**PLACE, "quote": "", "quote_start": -1, "quote_end": -1})], None, tmp_path / "a.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text("utf-8-sig")))
    assert (row["quote"], row["quote_start"], row["quote_end"], row["segment"]) == ("", "", "", "3")


def test_a_workbook_has_texts_numbers_and_times_and_no_formula(tmp_path):
    path = tmp_path / "a.xlsx"
    write_answers([answer(text="=1+1\x0b")], None, path)
    sheet = openpyxl.load_workbook(path).active
    names = [cell.value for cell in sheet[1]]
    row = dict(zip(names, sheet[2], strict=True))
    assert row["answer"].value == "=1+1" and row["answer"].data_type == "s" and row["title"].data_type == "s"
    assert row["answer"].number_format == row["question"].number_format == "@", "Excel keeps a date typed here as typed"
    assert row["quote_start"].value == 150 and row["found"].value is True
    assert row["answered_at"].value == datetime(2026, 11, 24, 9, 30) and sheet.freeze_panes == "A2"


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
@example(["\ufffe5\uffff"])
def test_texts_come_back_from_a_workbook(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("x") / "a.xlsx"
    with path.open("wb") as file:
        write_xlsx(["reading_id", "text"], [(str(n), text) for n, text in enumerate(texts)], file)
    rows = {row.values["reading_id"]: row.values["text"] for row in xlsx_rows(path, ["reading_id"])}
    for number, text in enumerate(texts):
        clean = workbook_text(text)
        assert rows[str(number)] == clean


def test_what_excel_takes_for_the_number_of_a_character_is_escaped(tmp_path):
    with (tmp_path / "a.xlsx").open("wb") as file:
        write_xlsx(["name"], [["_x0041_ _x_ __xfFfF_"]], file)
    assert openpyxl.load_workbook(tmp_path / "a.xlsx").active["A2"].value == "_x005F_x0041_ _x_ __x005F_xfFfF_"
    assert [row.values for row in xlsx_rows(tmp_path / "a.xlsx", ["name"])] == [{"name": "_x0041_ _x_ __xfFfF_"}]


def workbook_text(text):
    return "".join(char for char in text if char in "\t\n\r" or (char >= " " and char not in "\ufffe\uffff"))


def test_a_full_sheet_is_followed_by_another_and_all_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(workbook, "_ROWS", 3)
    path = tmp_path / "a.xlsx"
    write_answers((answer(str(n)) for n in range(5)), None, path)
    book = openpyxl.load_workbook(path)
    assert [sheet.max_row for sheet in book.worksheets] == [3, 3, 2]
    rows = list(xlsx_rows(path, ["reading_id"]))
    assert [row.values["reading_id"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row.where for row in rows[:3]] == [f"{path}, row 2", f"{path}, row 3", f"{path}, answers1, row 2"]
    book.create_sheet("sums").append(["law", "count"])
    book.save(path)
    assert len(list(xlsx_rows(path, ["reading_id"]))) == 5, "a sheet of something else"


def test_links_can_be_clicked_as_far_as_a_sheet_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr(workbook, "_LINKS", 2)
    path = tmp_path / "a.xlsx"
    with path.open("wb") as file:
        write_xlsx(["link"], [[Link(f"http://127.0.0.1/{n}?a=b&c", "open")] for n in range(3)], file)
    cells = [row[0] for row in openpyxl.load_workbook(path).active.iter_rows(min_row=2)]
    assert [cell.value for cell in cells] == ["open", "open", "http://127.0.0.1/2?a=b&c"]
    assert [cell.hyperlink and cell.hyperlink.target for cell in cells[:2]] == [
        "http://127.0.0.1/0?a=b&c",
        "http://127.0.0.1/1?a=b&c",
    ]


def test_rows_become_files_of_every_kind(tmp_path):
    def cells(row):
        return [flat(row["tags"]), Link(row["name"], "open")]

    layout = TableLayout(pa.schema({"name": pa.string(), "tags": pa.list_(pa.string())}), ["tags", "name"], cells, 2)
    rows = [{"name": f"=n{n}", "tags": ["a", "b"] if n else None} for n in range(5)]
    for kind in ("csv", "xlsx", "jsonl", "parquet"):
        write_file(tmp_path / kind, iter(rows), kind, layout)
    assert (tmp_path / "csv").read_text("utf-8-sig").splitlines()[:3] == ["tags,name", ",=n0", "a|b,=n1"]
    assert [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()] == rows
    table = pq.ParquetFile(tmp_path / "parquet")
    assert table.read().to_pylist() == rows and table.num_row_groups == 3
    (tmp_path / "xlsx").rename(tmp_path / "a.xlsx")
    assert [row.values for row in xlsx_rows(tmp_path / "a.xlsx", ["name"])][1] == {"tags": "a|b", "name": "open"}
    whole = TableLayout(layout.schema)
    write_file(tmp_path / "csv", rows, "csv", whole)
    assert (tmp_path / "csv").read_text("utf-8-sig").splitlines()[:3] == ["name,tags", "'=n0,", "'=n1,a|b"]


def test_what_cannot_be_written_leaves_no_file(tmp_path):
    def broken():
        yield answer()
        raise UsageError("no more")

    with pytest.raises(UsageError, match="no more"):
        write_answers(broken(), None, tmp_path / "a.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_another_suffix_is_said(tmp_path):
    with pytest.raises(UsageError, match="xlsx, jsonl or parquet"):
        write_answers([], None, tmp_path / "a.ods")


def with_verdicts(path, delimiter=","):
    write_answers([answer("r1"), answer("r2"), answer("r3")], "csv", path)
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
    marks = ["accepted", "corrected", ""]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "verdict"], delimiter=delimiter)
        writer.writeheader()
        for row, verdict in zip(rows, marks, strict=True):
            said = "Delaware; or so" if verdict == "corrected" else row["answer"]
            writer.writerow({**row, "verdict": verdict, "answer": said})


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_file_that_a_spreadsheet_saved_comes_back(tmp_path, delimiter):
    path = tmp_path / "a.csv"
    with_verdicts(path, delimiter)
    verdicts, empty = load_verdicts(path)
    assert [(v.reading_id, v.verdict, v.answer) for v in verdicts] == [
        ("r1", "accepted", ""),
        ("r2", "corrected", "Delaware; or so"),
    ]
    assert empty == 1


def test_a_workbook_comes_back_with_verdicts(tmp_path):
    path = tmp_path / "a.xlsx"
    write_answers([answer("r1"), answer("r2"), answer("r3")], None, path)
    book = openpyxl.load_workbook(path)
    sheet = book.active
    column, correct = sheet.max_column + 1, [cell.value for cell in sheet[1]].index("answer") + 1
    sheet.cell(1, column, "verdict")
    sheet.cell(2, column, "Rejected")
    sheet.cell(3, column, "corrected")
    sheet.cell(3, correct, 4471902)
    book.save(path)
    verdicts, empty = load_verdicts(path)
    assert [(v.reading_id, v.verdict, v.answer) for v in verdicts] == [
        ("r1", "rejected", ""),
        ("r2", "corrected", "4471902"),
    ]
    assert empty == 1 and verdicts[1].where == f"{path}, row 3"


def verdicts_in(path, *answers, verdict="corrected", header=("reading_id", "verdict", "answer", "my notes")):
    """Write a workbook of verdicts; an answer is a value, or one with its number format."""
    book = openpyxl.Workbook()
    book.active.append(header)
    for number, item in enumerate(answers, 2):
        value, code = item if isinstance(item, tuple) else (item, None)
        book.active.append([f"r{number}", verdict, value])
        book.active.cell(number, 3).number_format = code or book.active.cell(number, 3).number_format
    book.active.cell(2, 4, "=1/0")  # not ours: it may hold anything
    book.save(path)
    return path


def test_a_correction_is_what_its_cell_shows(tmp_path):
    typed = [
        (date(2026, 3, 1), None),
        (46082, "mm-dd-yy"),
        (time(9, 30), "h:mm"),
        (0.05, "0%"),
        (1234.5, '"$"#,##0.00'),
    ]
    path = verdicts_in(tmp_path / "a.xlsx", *typed, True, 1e20, "as\ntyped ", 4471902)
    shown = ["2026-03-01", "2026-03-01", "09:30", "5%", "$1,234.50", "TRUE", "1E+20", "as\ntyped", "4471902"]
    assert [verdict.answer for verdict in load_verdicts(path)[0]] == shown


@pytest.mark.parametrize(("value", "fault"), [("=B2", "an uncomputed formula"), ("#N/A", "an error #N/A")])
def test_a_cell_without_a_value_is_refused_with_its_row_and_column(tmp_path, value, fault):
    path = verdicts_in(tmp_path / "a.xlsx", "yes", value)
    with pytest.raises(UsageError, match=f"a.xlsx, row 3, field 'answer': no value, but {fault}. Type the value"):
        load_verdicts(path)


def test_rows_are_found_below_empty_ones_by_their_numbers(tmp_path):
    book = openpyxl.Workbook()
    book.active["B2"], book.active["D2"], book.active["D7"], book.active["B7"] = (
        "reading_id",
        "verdict",
        "accepted",
        "r1",
    )
    book.save(tmp_path / "a.xlsx")
    ((verdict,), empty) = load_verdicts(tmp_path / "a.xlsx")
    assert (verdict.reading_id, verdict.where, empty) == ("r1", f"{tmp_path / 'a.xlsx'}, row 7", 0)


def test_what_is_no_workbook_or_lacks_a_column_is_said(tmp_path):
    (tmp_path / "a.xlsx").write_text("no")
    with pytest.raises(UsageError, match="no Excel workbook"):
        load_verdicts(tmp_path / "a.xlsx")
    (tmp_path / "a.xlsx").write_bytes(word("a document"))
    with pytest.raises(UsageError, match="no Excel workbook"):
        load_verdicts(tmp_path / "a.xlsx")
    write_answers([answer()], None, tmp_path / "b.xlsx")
    with pytest.raises(UsageError, match=r"no column 'verdict'.*accepted"):
        load_verdicts(tmp_path / "b.xlsx")
    with pytest.raises(UsageError, match="no file"):
        load_verdicts(tmp_path / "c.xlsx")
