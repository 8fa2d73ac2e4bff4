from datetime import date

import openpyxl
import pytest

from memagent.errors import UsageError
from memagent.questions import ask, load_questions
from pipelines.ask import read_questions


def load(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return load_questions(str(path))


def test_json_lines(tmp_path):
    one, two = load(
        tmp_path,
        "q.jsonl",
        '{"question": "Who?", "id": 7, "answers": ["A", "B"], "documents": "x*.txt"}\n\n'
        '{"question": "What?", "answers": []}\n',
    )
    assert (one.question_id, one.answers, one.documents) == ("7", ("A", "B"), ("x*.txt",))
    assert two.answers == ("",) and two.question_id == ask("What?").question_id


def test_csv_with_several_answers(tmp_path):
    one, two, three = load(
        tmp_path, "q.csv", 'question,answers,documents\n"Who, me?",A|B,x.txt|y.txt\nWhat?,,\nWhy?,|,\n'
    )
    assert (one.text, one.answers, one.documents) == ("Who, me?", ("A", "B"), ("x.txt", "y.txt"))
    assert two.answers is None and two.documents == () and three.answers == ("",)


def test_excel(tmp_path):
    book, path = openpyxl.Workbook(), tmp_path / "q.xlsx"
    book.active.append(["question", "id", "answers", "documents"])
    book.active.append(["Who, me?", 7, "A|B", "x.txt | y.txt"])
    book.active.append(["When?", None, date(2026, 3, 1)])
    book.save(path)
    one, two = read_questions(str(path))
    assert (one.question_id, one.answers, one.documents) == ("7", ("A", "B"), ("x.txt", "y.txt"))
    assert (two.answers, two.documents, two.question_id) == (("2026-03-01",), (), ask("When?").question_id)
    book.active["A4"] = "=A1"
    book.save(path)
    with pytest.raises(UsageError, match=r"q\.xlsx, row 4, field 'question': no value, but an uncomputed formula"):
        read_questions(str(path))
    book.active["A4"], book.active["E1"], book.active["E2"] = None, "why", "so"
    book.save(path)
    with pytest.raises(UsageError, match="row 2: unknown field 'why'"):
        read_questions(str(path))


def test_toml(tmp_path):
    (one,) = load(tmp_path, "q.toml", '[[question]]\nid = "law"\nquestion = "Which law?"\n')
    assert (one.question_id, one.text) == ("law", "Which law?")


@pytest.mark.parametrize(
    "text",
    [
        "question,answers,,\nWho?,Ida,,\n",
        "question,,answers\nWho?,,Ida\n",
        "sep=;\nquestion;answers\nWho?;Ida\n",
        '"sep=\t"\r\nquestion\tanswers\r\nWho?\tIda\r\n',
        "question, answers\nWho?,Ida\n",
        "question,answers\n,\nWho?,Ida\n\n , \n",
        "question,answers\nWho?,Ida,,\n",
    ],
)
def test_csv_as_spreadsheets_write_it(tmp_path, text):
    assert [(one.text, one.answers) for one in load(tmp_path, "q.csv", text)] == [("Who?", ("Ida",))]


def test_lines_are_counted_from_the_first_where_it_names_the_separator(tmp_path):
    with pytest.raises(UsageError, match="line 4: more fields than the header has"):
        load(tmp_path, "q.csv", "sep=;\nquestion;id\nWho?;1\nWhat?;2;3\n")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("q.jsonl", '{"question": "a"}\n{"question": \n', r"q\.jsonl, line 2, column 14: not JSON"),
        ("q.jsonl", "[1]\n", r"line 1: a list; a record \(JSON object\) is needed, with a field 'question'"),
        ("q.jsonl", '{"question": ""}\n', "line 1, field 'question': blank; a text is needed"),
        ("q.jsonl", '{"question": "a", "gold": "b"}\n', "unknown field 'gold'"),
        ("q.jsonl", '{"question": "a", "answers": {"x": 1}}\n', "field 'answers'"),
        (
            "q.jsonl",
            '{"question": "a", "id": "1"}\n{"question": "b", "id": "1"}\n',
            "line 2: the same id '1' as in .*line 1",
        ),
        ("q.jsonl", '{"question": "a"}\n\n{"question": "a "}\n', "line 3: the same question as in .*line 1"),
        ("q.jsonl", '{"question": "a", "id": true}\n', "field 'id'"),
        ("q.jsonl", '{"question": "a", "answers": [true]}\n', r"field 'answers\[0\]': true or false"),
        ("q.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("q.jsonl", "", "holds no questions"),
        ("q.csv", "text\nx\n", "no column 'question'"),
        ("q.csv", "question,id\na,b,c\n", "line 2: more fields"),
        ("q.csv", 'question,id\n"a,1\nb,2\n', "line 2: unexpected end of data"),
        ("q.csv", "question,question\na,b\n", "'question' twice"),
        ("q.toml", "question = 1", r"table \[\[question\]\]"),
        ("q.toml", '[[questions]]\nquestion = "a"\n', r"unknown key 'questions'.*\[\[question\]\]"),
        ("q.toml", "[[question]\n", r"q\.toml"),
        ("q.xml", "", r"\.jsonl, \.csv, \.xlsx or \.toml"),
    ],
)
def test_wrong_files_name_file_line_and_field(tmp_path, name, text, says):
    with pytest.raises(UsageError, match=says):
        load(tmp_path, name, text)


def test_missing_file_and_empty_question(tmp_path):
    with pytest.raises(UsageError, match="no questions file"):
        load_questions(str(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="empty"):
        ask("  ")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ('{"question": "Who is \\ud800?"}', "question"),
        ('{"question": "Who?", "id": "\\udc80"}', "id"),
        ('{"question": "Who?", "answers": ["yes", "\\udfff"]}', "answers"),
        ('{"question": "Who?", "answers": "\\ud83d"}', "answers"),
        ('{"question": "Who?", "documents": ["*\\ud800"]}', "documents"),
    ],
)
def test_half_a_character_is_refused_with_its_row_and_field(tmp_path, row, field):
    with pytest.raises(UsageError, match=rf"q\.jsonl, line 2, field '{field}(\[\d\])?': holds \\ud"):
        load(tmp_path, "q.jsonl", '{"question": "A pair is a character: \\ud83d\\ude42"}\n' + row + "\n")


def test_half_a_character_in_a_question_itself_is_refused():
    assert ask("🙂?").text == "🙂?"
    with pytest.raises(UsageError, match=r"questions\[1\] holds \\udce9, an unpaired surrogate"):
        ask("Who is Ren\udce9?", "questions[1]")
