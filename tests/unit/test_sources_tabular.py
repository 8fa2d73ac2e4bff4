"""Tables whose bytes do not go on as they began."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.sources import Parsed, Refused, parse
from memagent.config import IngestConfig
from memagent.errors import SourceError


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_table_that_breaks_its_encoding_keeps_the_rows_before_and_says_so(tmp_path: Path, suffix: str) -> None:
    rows = {".jsonl": '{"text": "good one"}\n' * 9_000, ".csv": "text\n" + "good one\n" * 9_000}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(rows.encode("utf-16") + b"\x0a")  # unpaired surrogate
    found = []
    with pytest.raises(SourceError, match="it starts as utf-16 and does not go on so") as raised:
        for record in parse(str(path), path.name, IngestConfig()):
            found.append(record)
    assert raised.value.reason == "encoding" and len(found) > 1_000


@pytest.mark.parametrize("options", [IngestConfig(), IngestConfig(text_column="te\nxt", id_column="id")])
def test_a_message_on_columns_is_one_line_whatever_their_names_are(tmp_path: Path, options: IngestConfig) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"te\nxt": ["one"]}), path)
    with pytest.raises(SourceError, match="no-column") as raised:
        list(parse(str(path), path.name, options))
    assert "among te xt;" in raised.value.detail and "\n" not in raised.value.detail


@pytest.mark.parametrize(
    "head",
    ["sep=;\nid;text\n1;", "\n \nid,text\n1,", '"number\nof row",text\n1,', "\ufeffsep=,\r\nid,text\r\n1,", "text\n"],
)
def test_what_stands_above_a_header_is_passed_over(tmp_path, head):
    (tmp_path / "a.csv").write_text(f"{head}The fox sleeps.\n", encoding="utf-8")
    (row,) = parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig())
    assert row.text == "The fox sleeps."


def test_an_object_that_has_more_than_a_row_is_read_whole(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"title": "Lease", "text": "Short summary.", "clauses": ["The rent is 5,000 EUR."]}')
    (document,) = parse(str(path), path.name, IngestConfig())
    assert "The rent is 5,000 EUR." in document.text
    path.write_text('{"text": "Loan \\ud800", "principal": 1250000}')
    (document,) = parse(str(path), path.name, IngestConfig())
    assert "1250000" in document.text and document.warnings == ("part not read: 1 unreadable letter",)
    path.write_text('{"id": 1, "title": "Lease", "text": "Short summary."}')
    assert [one.text for one in parse(str(path), path.name, IngestConfig())] == ["Short summary."]


def test_a_json_text_has_its_letters_and_else_stays_as_it_is(tmp_path):
    source = '{"a": "Gr\\u00f6\\u00dfe \\ud83d\\ude00", "b": "\\u0022\\\\u00e8\\n", "b": 1.0e5}'
    (tmp_path / "a.json").write_text(source)
    (document,) = parse(str(tmp_path / "a.json"), "a.json", IngestConfig())
    assert document.text == '{"a": "Größe 😀", "b": "\\u0022\\\\u00e8\\n", "b": 1.0e5}'


def test_no_row_is_lost_of_a_table_that_begins_with_many_bad_ones(tmp_path):
    broken, lacking, good = "{\n" * 99, '{"other": "one"}\n' * 2, '{"text": "The fox sleeps."}\n'
    (tmp_path / "a.jsonl").write_text(broken + lacking + good)
    found = list(parse(str(tmp_path / "a.jsonl"), "a.jsonl", IngestConfig()))
    assert [getattr(record, "reason", "") for record in found] == ["broken-row"] * 99 + ["no-column"] * 2 + [""]
    (tmp_path / "b.jsonl").write_text('{"other": "one"}\n' * 200)
    with pytest.raises(SourceError, match="no row has the column; the first one: it has no 'text'"):
        list(parse(str(tmp_path / "b.jsonl"), "b.jsonl", IngestConfig()))


def test_a_quote_too_many_costs_its_row_alone(tmp_path):
    lines = ["id,text", *(f"{number},document number {number}" for number in range(1, 2001))]
    lines[5], lines[1500] = '5,"document number 5', '1500,"document number 1500'
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    found = list(parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig()))
    assert [record.row for record in found] == [str(number) for number in range(1, 2001)]
    refused = [record for record in found if isinstance(record, Refused)]
    assert [(record.row, record.reason) for record in refused] == [("5", "broken-row"), ("1500", "broken-row")]
    assert refused[0].detail.startswith("line 6: a quote is not closed") and "line 1,501: " in refused[1].detail


def test_a_text_of_many_lines_that_ends_wrongly_is_one_refusal_that_names_them(tmp_path):
    (tmp_path / "a.csv").write_text(
        'id,text,by\n1,"one\ntwo, with\na comma" more,Ann\n\n2,"two\nlines",Bo\n3,"x\ny"\n4,"four\nmore\n'
    )
    found = list(parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig()))
    assert [record.text for record in found if isinstance(record, Parsed)] == ["two\nlines"]
    details = [record.detail.partition(":")[0] for record in found if isinstance(record, Refused)]
    assert details == ["lines 2 to 4", "lines 8 to 9", "lines 10 to 11"]


def test_quotes_that_open_and_close_on_each_line_take_no_square_of_the_lines(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n" + '"b","c\n' * 20_000 + 'b","c\n' * 20_000)
    begun = time.process_time()
    found = list(parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig()))
    assert all(isinstance(record, Refused) for record in found) and time.process_time() - begun < 5


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,text,text\n1,The fox sleeps.,The owl wakes.\n")
    with pytest.raises(SourceError, match="several columns are called 'text': rename all but one"):
        list(parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig()))


def test_a_row_with_bytes_of_another_encoding_is_named_by_its_line(tmp_path):
    good = 'text\n"Caf\xe9\nis open"\n'.encode() + b"good\n" * 5
    (tmp_path / "a.csv").write_bytes(good + b"bad \xff\xfe\n" + "Gr\xfc\xdfe aus K\xf6ln\n".encode() * 40)
    refused = [row for row in parse(str(tmp_path / "a.csv"), "a.csv", IngestConfig()) if isinstance(row, Refused)]
    assert [row.detail for row in refused] == ["line 9: it has bytes that are not utf-8"]
