"""Pages of PDFs: from the parser by the store to answers, their files, the report and the Python API."""

import csv
import io
import json
from pathlib import Path

import openpyxl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from infra.sources import parse
from infra.sources.base import joined_pages
from infra.store.location import Corpus
from memagent.config import IngestConfig
from pipelines.answers import AnswerTable
from pipelines.cli.live import answers_table
from pipelines.io.answers import answer_rows, write_answers
from pipelines.report.page import build
from pipelines.web.api.reader import answer_evidence
from tests.support.hostile import pdf
from tests.support.made_up_run import CORPUS, MadeUpRun, local_store

PAGES = ("Visitors sign in.", "", "The key is 42.", "We close at six. The gate is red.")


def parsed(folder: Path):
    (folder / "key.pdf").write_bytes(pdf(*PAGES))
    (document,) = parse(str(folder / "key.pdf"), "key.pdf", IngestConfig())
    return document


@pytest.fixture
def run(tmp_path):
    """A PDF, a text file of the same words, and the archive of both and another text."""
    document = parsed(tmp_path)
    run = MadeUpRun(local_store(tmp_path / "home"))
    name = run.document("key.pdf", document.text)
    run.documents[0] |= {"media_type": document.media_type, "page_starts": document.page_starts}
    run.reading([name], "key", "What is the key?", "42", {0: "The key is 42."}, quotes=("The key is 42.",))
    run.reading([name], "gate", "Which colour is the gate?", "red", {0: "red"}, quotes=("The gate is red.",))
    other = run.document("other.txt", "The lamp is green.")
    run.reading([other], "lamp", "Which colour is the lamp?", "green", {0: "green"}, quotes=("The lamp is green.",))
    both = (name, other)
    run.reading([*both], "all", "Which colours?", "red, green", {0: "red"}, quotes=("The gate is red.", "The lamp is"))
    run.save()
    return run


def test_a_page_begins_where_the_parser_says(tmp_path):
    document = parsed(tmp_path)
    assert document.page_starts is not None and len(document.page_starts) == len(PAGES)
    for start, page in zip(document.page_starts, PAGES, strict=True):
        assert document.text[start:].startswith(page)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=8))
def test_every_character_of_a_page_is_after_its_start(pages):
    text, starts = joined_pages(pages)
    assert [text[start : start + len(page)] for start, page in zip(starts, pages, strict=True)] == pages


def test_answers_say_the_page_and_text_files_have_none(run):
    rows = {row["question_id"]: row for row in answer_rows(Corpus(run.store, CORPUS))}
    assert {name: [place["page"] for place in row["evidence"]] for name, row in rows.items()} == {
        "key": [3],
        "gate": [4],
        "lamp": [None],
        "all": [4, None],
    }


def test_every_file_has_the_page(run, tmp_path):
    for kind in ("csv", "xlsx", "jsonl", "parquet"):
        write_answers(answer_rows(Corpus(run.store, CORPUS)), None, tmp_path / f"a.{kind}")
    table = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text("utf-8-sig"))))
    assert {row["question_id"]: row["page"] for row in table} == {"key": "3", "gate": "4", "lamp": "", "all": "4"}
    head, *rows = openpyxl.load_workbook(tmp_path / "a.xlsx").active.iter_rows(values_only=True)
    assert {row[head.index("question_id")]: row[head.index("page")] for row in rows} == {
        "key": 3,
        "gate": 4,
        "lamp": None,
        "all": 4,
    }
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert {row["question_id"]: row["evidence"][0]["page"] for row in lines}["key"] == 3
    whole = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert {row["question_id"]: row["evidence"][0]["page"] for row in whole}["gate"] == 4


def test_the_terminal_the_report_and_python_say_it(run, tmp_path):
    corpus = Corpus(run.store, CORPUS)
    console = Console(record=True, width=160, file=io.StringIO())
    answers_table(console, list(answer_rows(corpus, where=[("question_id", "key")])))
    assert "“The key is 42.” (p. 3)" in console.export_text()
    answers = {answer.question_id: answer for answer in AnswerTable(corpus)}
    assert (answers["key"].page, answers["key"].evidence[0].page, answers["lamp"].page) == (3, 3, None)
    assert "(p. 3)" in str(answers["key"]) and "(p. " not in str(answers["lamp"])
    passages = answer_evidence(corpus, answers["gate"].reading_id, 10).passages
    assert [passage.place.page for passage in passages] == [4]
    page = build(run.store, answers["key"].run_id)
    assert '"page":3' in page.replace(" ", "")
