"""The commands on the real engine: vLLM with the bundled reader."""

import csv
import io
import json

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Memagent, needle_archive


@pytest.fixture(scope="module")
def answered(memagent, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    questions = needle_archive(folder / "archive", 12, 60)
    taken = memagent.json("ingest", "a", str(folder / "archive"))
    assert taken["new"] == 12
    said = memagent.json("ask", "a", "--questions", str(questions))
    return memagent, questions, said


def test_the_bundled_reader_answers_with_evidence(answered):
    _, _, said = answered
    scores = {score["metric"]: score for score in said["summary"]["scores"]}
    assert scores["exact match"]["n"] == 12 and scores["exact match"]["value"] >= 0.75
    for row in said["answers"]:
        if row["found"] and row["answer"] == row["gold"][0]:
            assert row["answer"] in row["evidence"][0]["quote"]
    assert all(0 < row["confidence"] <= 1 for row in said["answers"]), "the engine says how sure it is"
    assert said["summary"]["readings"]["failed"] == 0
    assert said["summary"]["engine"] == "vllm"


def test_a_folder_is_asked_in_one_command(memagent, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "monday.md").write_text("Visitors sign in. The access code of cedar-gate is 4471902. Doors close at six.")
    (folder / "tuesday.md").write_text("Costs are shared between the offices. The garden is open on weekdays.")
    said = memagent("ask", str(folder), "-q", "What is the access code of cedar-gate?")
    rows = [line.split("\t") for line in said.splitlines() if "\t" in line]
    assert sorted(row[0] for row in rows) == ["monday.md", "tuesday.md"]
    (monday,) = [row for row in rows if row[0] == "monday.md"]
    assert monday[2] == "4471902" and "4471902" in monday[3]
    again = memagent.json("ask", "notes", "What is the access code of cedar-gate?")
    assert again["summary"]["readings"]["answered_before"] == 2


def test_the_same_command_again_reads_nothing(answered):
    memagent, questions, said = answered
    again = memagent.json("ask", "a", "--questions", str(questions))
    assert again["summary"]["conversations"] == 0
    assert again["summary"]["readings"]["answered_before"] == 12
    assert again["summary"]["scores"] == said["summary"]["scores"]


def test_answers_in_every_format(answered, tmp_path):
    memagent, _, said = answered
    rows = list(csv.DictReader(io.StringIO(memagent("answers", "a", "--format", "csv"))))
    lines = [json.loads(line) for line in memagent("answers", "a", "--format", "jsonl").splitlines()]
    memagent("answers", "a", "--format", "parquet", "-o", str(tmp_path / "a.parquet"))
    table = pq.read_table(tmp_path / "a.parquet")
    expected = sorted(row["answer"] for row in said["answers"])
    assert sorted(row["answer"] for row in rows) == sorted(row["answer"] for row in lines) == expected
    assert sorted(table["answer"].to_pylist()) == expected
    assert "doc00.txt" in memagent("answers", "a", COLUMNS="200")


def test_report_status_quarantine_doctor(answered, tmp_path):
    memagent, _, said = answered
    memagent("report", "last", "-o", str(tmp_path / "r.html"))
    assert said["summary"]["run_id"] in (tmp_path / "r.html").read_text()
    state = memagent.json("status", "a")["corpora"][0]
    assert (state["documents"], state["answers"], state["quarantined"]) == (12, 12, 0)
    assert memagent.json("quarantine", "a")["quarantined"] == []
    checks = {check["check"]: check for check in memagent.json("doctor")["checks"]}
    assert {"engine", "ray", "store", "prefect", "memory", "cores"} <= set(checks)
    assert all(check["ok"] for check in checks.values())


def test_wrong_use_ends_with_2_and_says_what_to_do(tmp_path):
    memagent = Memagent(str(tmp_path / "none"))
    scripted = ["--engine", "scripted"]
    cases = {
        ("ask", "c"): "-q 'a question'",
        ("ask", "c", "-q", "x", *scripted): "memagent ingest c FOLDER",
        ("ask", "./no-such-folder", "-q", "x", *scripted): "no such file or folder",
        ("ask", "c", __file__, *scripted): "is taken for a question",
        ("ask", "c", "x", "--watch", *scripted): "memagent ingest c FOLDER",
        ("ask", str(tmp_path), "x", "--watch", "--json", *scripted): "--watch",
        ("ask", "c", "-q", "x", "--set", "engine.nope=1"): "engine.nope: no such key",
        ("ask", __file__, "x", "--model", "/nowhere"): "/nowhere",
        ("ask", "c", "--questions", "none.jsonl"): "no questions file",
        ("digest", "c", *scripted): "no corpus 'c'",
        ("report", "last"): "no run",
        ("answers", "c"): "memagent ingest c FOLDER",
        ("answers", "c", "--where", "document"): "field=pattern",
        ("status", "c"): "no corpus 'c'",
        ("ingest", "c", ""): "a source is empty",
        ("status", "--set", "store=''"): "store",
        ("status", "--store", __file__): "is a file",
        ("ingest", "c", str(tmp_path / "missing")): "missing",
        ("status", "--store", "ftp://x"): "s3://",
        ("ask", "c", "--engine", "magic", "-q", "x"): "engine.kind",
    }
    for argv, says in cases.items():
        assert says in memagent.local(*argv, status=2), argv
