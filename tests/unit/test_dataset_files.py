"""Users' question files: each tool's columns give the same questions, and what is wrong is said with its place."""

import json
import tracemalloc
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.sources.dataset_files import DatasetFile, file_hash, split_rows
from memagent.errors import UsageError
from memagent.evaluation.records import columns_of
from memagent.records import text_hash

ROWS = [("Who sang?", "Ann sang.\nBob slept.", ("Ann", "ann")), ("Who fell?", "Nobody is named here.", ("",))]


def lines(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def parquet(path: Path, rows: list[dict[str, object]], **options: object) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return str(path)


def read(path: str, **options: object) -> list[tuple[str, str, tuple[str, ...]]]:
    file = DatasetFile(path, **options)
    return [(row.question, "\n\n".join(map(file.text, row.stream)), row.answers) for row in file.rows]


def gold(answers: tuple[str, ...]) -> list[str]:
    return [answer for answer in answers if answer]


def test_each_tools_columns_give_the_same_questions(tmp_path):
    own = [{"question": q, "documents": [t], "answers": gold(a)} for q, t, a in ROWS]
    verl = [
        {
            "prompt": [{"role": "user", "content": q}],
            "context": t,
            "reward_model": {"style": "rule", "ground_truth": list(a)},
            "extra_info": {"index": i, "question": q, "num_docs": 1},
        }
        for i, (q, t, a) in enumerate(ROWS)
    ]
    memagent = [{"index": i, "input": q, "context": t, "answers": list(a)} for i, (q, t, a) in enumerate(ROWS)]
    openrlhf = [{"prompt": f"{t}\n\nQuestion: {q}", "label": a[0]} for q, t, a in ROWS]
    for name, rows in {"own": own, "verl": verl, "memagent": memagent}.items():
        assert read(lines(tmp_path / f"{name}.jsonl", rows)) == ROWS
        assert read(parquet(tmp_path / f"{name}.parquet", rows)) == ROWS
    assert read(lines(tmp_path / "o.jsonl", openrlhf)) == [(q, t, (a[0],)) for q, t, a in ROWS]
    messages = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in openrlhf]
    assert read(lines(tmp_path / "m.jsonl", messages)) == [(q, t, (a[0],)) for q, t, a in ROWS]
    other = [{"ask": q, "body": t, "right": a[0]} for q, t, a in ROWS]
    named = columns_of(["question=ask", "text=body", "answers=right"])
    assert read(parquet(tmp_path / "x.parquet", other), columns=named) == [(q, t, (a[0],)) for q, t, a in ROWS]


def test_what_is_evaluated_on_can_be_trained_on(tmp_path):
    hop = {
        "_id": "h",
        "question": "Who is Bob's sister?",
        "answer": "Ann",
        "context": [["Ann", ["Ann is Bob's sister."]], ["Dan", ["Dan is not."]]],
        "supporting_facts": [["Ann", 0]],
    }
    answer = {"text": "Ann", "answer_start": 0}
    asked = {"id": "1", "question": "Who?", "answers": [answer]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "Ann is Bob's sister.", "qas": [asked]}]}]}
    for name, data in {"hotpot": [hop], "squad": squad}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
        file = DatasetFile(str(tmp_path / f"{name}.json"))
        (row,) = file.rows
        assert row.answers == ("Ann",) and "Ann is Bob's sister." in file.text(row.stream[0])


def test_columns_of_ones_own_that_resemble_a_benchmark_stay_ones_own(tmp_path):
    row = {"_id": "1", "question": "Who?", "context": "Ann did it.", "answer": "Ann"}  # all but HotpotQA's facts
    assert read(lines(tmp_path / "a.jsonl", [row])) == [("Who?", "Ann did it.", ("Ann",))]


def test_several_documents_stay_apart_and_numbers_are_texts(tmp_path):
    (row,) = DatasetFile(lines(tmp_path / "a.jsonl", [{"question": "q?", "text": ["a b", "c d"], "answer": 7}])).rows
    assert row.stream == (text_hash("a b"), text_hash("c d")) and row.answers == ("7",)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "q?", "text": "t", "answers": None}, r"a\.jsonl, line 2, field 'answers': null"),
        ({"question": "q?", "text": " ", "answers": "a"}, r"line 2, field 'text': blank"),
        ({"question": 3, "text": "t", "answers": "a"}, r"line 2, field 'question': a number; a text is needed"),
        ({"question": "q?", "documents": ["t", 3], "answers": "a"}, r"field 'documents\[1\]': a number"),
        ({"question": "q?", "documents": [], "answers": "a"}, r"field 'documents': an empty list"),
        ({"question": "q?", "text": "t", "answers": ["a", ""]}, r"field 'answers': a blank one among the answers"),
        ({"question": "q?", "text": "t", "answers": [True]}, r"field 'answers\[0\]': true or false; a text is needed"),
        (
            {"question": "first?", "text": "t", "answers": []},
            r"line 2: the question and text of .*line 1; one says that there is no answer",
        ),
        ([1], r"line 2: a list; a record"),
    ],
)
def test_a_malformed_record_is_named_by_file_line_and_field(tmp_path, record, message):
    first = {"question": "first?", "text": "t", "answers": "a"}
    with pytest.raises(UsageError, match=message):
        DatasetFile(lines(tmp_path / "a.jsonl", [first, record]))


def test_a_parquet_file_with_damaged_names_or_values_is_refused(tmp_path):
    path = Path(parquet(tmp_path / "a.parquet", [{"question": "q?", "text": "one a", "answers": ["a"]}]))
    whole = path.read_bytes()
    for damaged in (b"question", b"one a"):
        path.write_bytes(whole.replace(damaged, b"\xff" * len(damaged)))
        with pytest.raises(UsageError, match="is not a readable Parquet file"):
            DatasetFile(str(path))


@pytest.mark.parametrize("value", [b"a", date(2026, 11, 25), Decimal("1.5")])
def test_a_parquet_column_of_another_type_is_named(tmp_path, value):
    path = parquet(tmp_path / "a.parquet", [{"question": "q?", "text": value, "answers": ["a"]}])
    with pytest.raises(UsageError, match=rf"row 1.*text.*a value of type {type(value).__name__}; a text is needed"):
        DatasetFile(path)


def test_files_that_are_no_data_set_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.parquet cannot be read: No such file"):
        DatasetFile(str(tmp_path / "gone.parquet"))
    with pytest.raises(UsageError, match=r"gone\.jsonl cannot be read: No such file"):
        DatasetFile(str(tmp_path / "gone.jsonl"))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="is not a readable Parquet file"):
        DatasetFile(str(tmp_path / "a.parquet"))
    with pytest.raises(UsageError, match=r"has the columns who, what, .*--columns question=NAME"):
        DatasetFile(lines(tmp_path / "b.jsonl", [{"who": "a", "what": "b"}]))
    (tmp_path / "a.csv").write_text("question,text,answers")
    with pytest.raises(UsageError, match=r"a data set file is \.parquet or \.jsonl"):
        DatasetFile(str(tmp_path / "a.csv"))
    with pytest.raises(UsageError, match=r"row 2, field 'reward_model\.ground_truth'"):
        rows = [{"prompt": "t\nq?", "reward_model": {"ground_truth": gold}} for gold in ("a", None)]
        DatasetFile(parquet(tmp_path / "c.parquet", rows))
    for given in (["question"], ["question=a"], ["text=a", "text=b"]):
        with pytest.raises(UsageError, match="columns"):
            columns_of(given)


def test_texts_are_kept_once_and_not_in_memory(tmp_path):
    big = [f"{i} " + "word " * 40_000 for i in range(100)]  # 20 MB, one row group
    rows = [{"question": f"{j}?", "text": text, "answers": "w"} for text in big for j in range(2)]
    path = parquet(tmp_path / "a.parquet", rows, row_group_size=1_000_000)
    rows.clear()
    tracemalloc.start()
    held = pa.total_allocated_bytes()
    file = DatasetFile(path)
    grown = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - held
    tracemalloc.stop()
    assert len(file.rows) == 200 and grown < 4e6
    assert all(file.text(text_hash(text)) == text for text in big[::7])


def test_a_split_keeps_a_text_on_one_side_and_repeated_records_count_once(tmp_path):
    rows = [{"question": f"{j}?", "text": f"text {i}", "answers": "a"} for i in range(60) for j in range(3)]
    file = DatasetFile(lines(tmp_path / "a.jsonl", [*rows, rows[0]]))
    assert len(file.rows) == 180
    twice = [{"question": "q?", "text": "t", "answers": answer} for answer in ("a", "b")]
    assert DatasetFile(lines(tmp_path / "d.jsonl", twice)).rows[0].answers == ("a", "b"), "both are right"
    train, validation = split_rows(file.rows)
    assert not {row.stream for row in train} & {row.stream for row in validation}
    assert len(train) + len(validation) == 180 and 0 < len(validation) < 60
    lists = [{"question": "q?", "documents": [f"{i}", f"{i + 1}"], "answers": "a"} for i in range(0, 60, 2)]
    train, validation = split_rows(DatasetFile(lines(tmp_path / "b.jsonl", lists)).rows)
    assert not {name for row in train for name in row.stream} & {name for row in validation for name in row.stream}
    with pytest.raises(UsageError, match="--validation FILE"):
        split_rows(DatasetFile(lines(tmp_path / "c.jsonl", rows[:3])).rows)


def test_a_file_is_known_by_its_content(tmp_path):
    first, second = (
        lines(tmp_path / name, [{"question": "q?", "text": "t", "answers": "a"}]) for name in ("a.jsonl", "b.jsonl")
    )
    assert file_hash(first) == file_hash(second) == DatasetFile(first).content_hash
    with pytest.raises(UsageError, match="cannot be read"):
        file_hash(str(tmp_path / "gone.jsonl"))
