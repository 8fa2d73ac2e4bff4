"""What people do from their first command on: an analyst, a data engineer, a developer, a researcher.

A model of one's own is trained in test_own_model, the notebooks of the documentation are in test_notebooks.
"""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pytest
from playwright.sync_api import Browser, expect

from infra.store.location import Store
from tests.e2e.conftest import Memagent
from tests.e2e.test_own_model import make_model
from tests.support.browsing import Visit
from tests.support.hostile import pdf
from tests.support.pages import HERE
from tests.support.texts import filler

QUESTION = "What is the access code of cedar-gate?"
OTHER = "What is the access code of birch-hall?"


def note(gate: str, hall: str) -> str:
    codes = f"The access code of cedar-gate is {gate}. The access code of birch-hall is {hall}."
    return f"Visitors sign in. {codes} We close at six."


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_analyst_asks_checks_and_hands_on(tmp_path: Path, visit: Visit) -> None:
    memagent, notes = Memagent(str(tmp_path / "store")), tmp_path / "notes"
    notes.mkdir()
    for day, codes in {"monday": ("4471902", "8810233"), "tuesday": ("5512380", "9021177")}.items():
        (notes / f"{day}.md").write_text(note(*codes))
    (notes / "scan.pdf").write_bytes(b"%PDF-1.7 cut off")
    said = memagent("ask", str(notes), QUESTION, status=5)  # there is a file that cannot be read
    rows = {line.split("\t")[0]: line.split("\t")[2] for line in said.splitlines() if line.count("\t") == 3}
    assert rows == {"monday.md": "4471902", "tuesday.md": "5512380"}
    (refused,) = memagent.json("quarantine", "notes")["quarantined"]
    assert refused["item"].endswith("scan.pdf")

    memagent("answers", "notes", "-o", str(tmp_path / "answers.xlsx"))
    book = openpyxl.load_workbook(tmp_path / "answers.xlsx")
    sheet = book.worksheets[0]
    head = [cell.value for cell in sheet[1]]
    column = sheet.max_column + 1
    sheet.cell(1, column, "verdict")
    for row in range(2, sheet.max_row + 1):
        monday = sheet.cell(row, head.index("document") + 1).value == "monday.md"
        sheet.cell(row, column, "accepted" if monday else "corrected")
        if not monday:
            sheet.cell(row, head.index("answer") + 1, "5512381")
    book.save(tmp_path / "checked.xlsx")
    memagent("feedback", str(tmp_path / "checked.xlsx"))

    shown = {row["document"]: row for row in lines(memagent("answers", "notes", "--format", "jsonl"))}
    assert shown["tuesday.md"]["answer"] == "5512381", "the correction is what everybody sees"
    assert (shown["monday.md"]["review"], shown["tuesday.md"]["review"]) == ("accepted", "corrected")
    memagent("report", "last", "-o", str(tmp_path / "report.html"))
    page = visit.open(tmp_path / "report.html")
    expect(page.get_by_text("5512381").first).to_be_visible()
    expect(page.get_by_text("The access code of cedar-gate is 4471902.").first).to_be_visible()


def test_a_data_engineer_keeps_a_bucket_up_to_date(tmp_path: Path, s3_bucket: str) -> None:
    place = f"{s3_bucket}/walk"
    bucket = Store(f"{place}/archive")
    memagent = Memagent(f"{place}/store")
    for day, codes in {"monday": ("4471902", "8810233"), "tuesday": ("5512380", "9021177")}.items():
        bucket.write_bytes(note(*codes).encode(), f"{day}.md")
    taken = memagent.json("ingest", "notes", f"{place}/archive")
    assert (taken["new"], taken["quarantined"]) == (2, {})
    defaults = tmp_path / "standing.csv"
    with defaults.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "question"], ["gate", QUESTION], ["hall", OTHER]])

    first = memagent.json("digest", "notes", "--questions", str(defaults))["summary"]
    assert first["readings"]["read_now"] == 4 and first["readings"]["failed"] == 0
    assert memagent.json("digest", "notes")["summary"]["conversations"] == 0, "a night in which nothing changed"

    bucket.write_bytes(note("6620417", "8810233").encode(), "monday.md")
    bucket.write_bytes(note("7730125", "3141592").encode(), "friday.md")
    night = memagent.json("digest", "notes")["summary"]
    assert (night["ingest"]["new"], night["ingest"]["changed"]) == (1, 1)
    assert night["readings"]["read_now"] == 4

    kept = Store(memagent.store)
    files = [f"s3://{path}" for path in kept.list("answers")]
    assert files
    rows = lines(memagent("answers", "notes", "--format", "jsonl"))
    gate = {row["document"]: row["answer"] for row in rows if row["question_id"] == "gate"}
    assert gate == {"monday.md": "6620417", "tuesday.md": "5512380", "friday.md": "7730125"}
    memagent("answers", "notes", "--format", "parquet", "-o", str(tmp_path / "answers.parquet"))
    query = f"select count(*), count(distinct document) from '{tmp_path}/answers.parquet' where found"
    assert duckdb.sql(query).fetchall() == [(6, 3)]
    state = memagent.json("status", "notes")["corpora"][0]
    assert (state["documents"], state["answers"], len(state["default_questions"])) == (3, 6, 2)
    assert "0 damaged" in memagent("check", "notes")


_NOTEBOOK = """
from memagent import Archive

archive = Archive("notes", store="store")
with archive:
    answers = archive.ask("{question}")
    first = [(answer.document, answer.answer, answer.page) for answer in answers]
    frame = answers.to_pandas()
    html = answers._repr_html_()
    again = archive.ask("{question}", "{other}")
    print(sorted(first), frame["found"].sum(), "<table>" in html and "4471902" in html)
    print(again.summary["readings"]["answered_before"], again.summary["readings"]["read_now"])
"""


def test_a_developer_asks_a_folder_from_a_notebook(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "monday.md").write_text(note("4471902", "8810233"))
    (notes / "scan.pdf").write_bytes(pdf("Visitors sign in.", "The access code of cedar-gate is 5512380."))
    code = _NOTEBOOK.format(question=QUESTION, other=OTHER)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **HERE}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = done.stdout.strip().splitlines()[-2:]
    assert first == "[('monday.md', '4471902', None), ('scan.pdf', '5512380', 2)] 2 True"
    assert second == "2 2"


_TINY = ("segment_tokens=128", "memory_tokens=16", "answer_tokens=24")
"""How a random model of two layers, which does not stop by itself, is to read."""


def gate_suite(path: Path, count: int) -> str:
    """Write samples in MemAgent's format; the last one's text does not say what is asked."""
    rng = random.Random(5)
    rows = []
    for i in range(count):
        said = "" if i == count - 1 else note(str(4471902 + i), "8810233")
        context = f"{filler(rng, 60)} {said} {filler(rng, 60)}"
        rows.append({"context": context, "input": QUESTION, "answers": [str(4471902 + i)], "index": i})
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_researcher_scores_a_model_of_their_own(tmp_path: Path, browser: Browser) -> None:
    memagent, report = Memagent(str(tmp_path / "store")), tmp_path / "report.html"
    model = make_model(tmp_path / "tiny-qwen")
    suite = ("evaluate", "--suite", "files", "--data", gate_suite(tmp_path / "quality.json", 6))
    reading = [part for key in _TINY for part in ("--set", f"reading.{key}")]

    words_of_wrong_use(memagent, model, suite)
    own = memagent.json(*suite, "--model", str(model), *reading, "-o", str(report))
    assert own["readings"]["failed"] == 0 and own["overall"]["n"] == 6
    assert own["overall"]["value"] == 0.0, "random weights find no number of seven digits"
    theirs = memagent.json(*suite)  # the bundled reader
    assert theirs["readings"]["failed"] == 0 and theirs["overall"]["value"] >= 0.5
    runs = {run["run_id"]: run for run in memagent.json("scores", "--suite", "files")["runs"]}
    mine, bundled = (runs[summary["run_id"]] for summary in (own, theirs))
    assert mine["policy_id"].startswith("tiny-qwen") and bundled["policy_id"] != mine["policy_id"]
    assert mine["lines"][0]["high"] < bundled["lines"][0]["value"], "what is beyond chance is seen in the intervals"
    assert "tiny-qwen" in memagent("scores", "--run", own["run_id"])

    visit = Visit(browser, width=390, scheme="dark")
    page = visit.open(report)
    expect(page.get_by_text("Why answers are wrong")).to_be_visible()
    shown = page.eval_on_selector_all("img", "all => all.map(one => [one.naturalWidth > 100, one.currentSrc])")
    light = page.locator("picture img").evaluate_all("all => all.map(one => one.src)")
    assert shown and all(drawn and source not in light for drawn, source in shown), "the dark ones"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    links = page.locator("table a")
    assert links.count() == page.locator("details").count() == 6
    links.nth(2).click()
    opened = page.locator("details[open]")
    expect(opened).to_have_count(1)
    expect(opened.locator("dd").nth(1)).to_have_text("4471904")
    expect(opened.locator("ol ins").first).to_be_in_viewport()
    page.close()
    assert visit.complaints == []


def words_of_wrong_use(memagent: Memagent, model: Path, suite: tuple[str, ...]) -> None:
    """What a researcher is told whose model has no tokenizer, and whose file is of another format."""
    bare = shutil.copytree(model, model.parent / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    told = memagent(*suite, "--model", str(bare), status=2)
    assert str(bare) in told and "tokenizer" in told and "Traceback" not in told
    served = ("--engine", "openai", "--model", "m", "--set", "engine.base_url=http://127.0.0.1:9/v1")
    told = memagent(*suite, *served, "--set", "engine.tokenizer=/nowhere", status=2)
    assert "/nowhere" in told and "engine.tokenizer" in told and "Traceback" not in told
    other = model.parent / "other.jsonl"
    other.write_text(json.dumps({"prompt": "Which?", "completion": "4711"}) + "\n")
    told = memagent("evaluate", "--suite", "files", "--data", str(other), "--model", str(model), status=2)
    assert "other.jsonl, line 1: fields prompt, completion are of no known format" in told
    assert "memagent: answers, context, index, input" in told and "squad: data" in told
