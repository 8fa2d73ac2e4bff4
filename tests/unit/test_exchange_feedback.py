"""Files of verdicts."""

import pyarrow as pa
import pytest

from memagent.errors import UsageError
from pipelines.io.feedback import load_verdicts
from pipelines.io.writer import TableLayout, write_file


@pytest.mark.parametrize("field", ["reading_id", "answer"])
def test_half_a_character_is_refused_with_its_row_and_field(tmp_path, field):
    row = {"reading_id": '"r2"', "verdict": '"corrected"', "answer": '"yes"', field: r'"\ud800"'}
    path = tmp_path / "verdicts.jsonl"
    good = '{"reading_id": "r1", "verdict": "accepted", "note": "\\ud83d\\ude42"}\n'
    path.write_text(good + "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}\n")
    with pytest.raises(UsageError, match=rf"verdicts\.jsonl, line 2: field '{field}' holds \\ud800"):
        load_verdicts(path)


def test_an_accepted_correction_needs_its_answer(tmp_path):
    path = tmp_path / "verdicts.csv"
    path.write_text("reading_id,verdict,review\nr1,accepted,corrected\n")
    with pytest.raises(UsageError, match="line 2: corrected to what"):
        load_verdicts(path)
    path.write_text("reading_id,verdict,review,answer\nr1,accepted,corrected,17\n")
    ((verdict,), _) = load_verdicts(path)
    assert (verdict.verdict, verdict.answer) == ("corrected", "17")


@pytest.mark.parametrize("kind", ["csv", "xlsx", "jsonl"])
@pytest.mark.parametrize("answer", ["-5", "=A1", "\tx", "'quoted'"])
def test_answers_come_back_as_they_were_written(tmp_path, kind, answer):
    path, names = tmp_path / f"verdicts.{kind}", ("reading_id", "verdict", "answer")
    layout = TableLayout(pa.schema([(name, pa.string()) for name in names]))
    write_file(path, [dict(zip(names, ("r1", "corrected", answer), strict=True))], kind, layout)
    ((verdict,), _) = load_verdicts(path)
    assert verdict.answer == answer.strip()


def test_only_in_csv_a_quote_before_a_sign_is_the_export_s(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    path.write_text('{"reading_id": "r1", "verdict": "corrected", "answer": "\'-5"}\n')
    ((verdict,), _) = load_verdicts(path)
    assert verdict.answer == "'-5"


def test_without_the_readers_column_the_answer_of_a_file_is_kept_to_be_compared_with_the_store(tmp_path):
    path = tmp_path / "verdicts.csv"
    path.write_text("reading_id,verdict,answer\nr1,accepted,17\nr2,rejected,none\nr3,corrected,18\n")
    assert [each.shown for each in load_verdicts(path)[0]] == ["17", None, None]
    path.write_text("reading_id,verdict\nr1,accepted\n")
    assert load_verdicts(path)[0][0].shown is None


@pytest.mark.parametrize("verdict", ["accepted", "rejected"])
def test_an_edited_answer_is_refused_where_the_verdict_is_not_corrected(tmp_path, verdict):
    path = tmp_path / "verdicts.csv"
    rows = [f'r1,{verdict},"447\n1902",,447 1902', f"r2,{verdict},4471903,,4471902", "r3,corrected,4471903,,4471902"]
    path.write_text("\n".join(["reading_id,verdict,answer,review,engine_answer", rows[0], rows[2]]))
    assert [each.answer for each in load_verdicts(path)[0]] == ["", "4471903"]
    path.write_text("\n".join(["reading_id,verdict,answer,review,engine_answer", *rows]))
    with pytest.raises(UsageError, match=r"csv, line 4: its answer .* set verdict to corrected"):
        load_verdicts(path)
    path.write_text("\n".join(["reading_id,verdict,answer,review,engine_answer", rows[0], "r2,,4471903,,4471902"]))
    with pytest.raises(UsageError, match=r"csv, line 4: its answer .* set verdict to corrected"):
        load_verdicts(path)
    path.write_text("\n".join(["reading_id,verdict,answer,review,engine_answer", "r2,,4471903,corrected,4471902"]))
    assert load_verdicts(path) == ([], 1)
