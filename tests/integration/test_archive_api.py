"""Archives from Python: answers as they are found, tables, an event loop, errors."""

import asyncio
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import memagent
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.schemas import now
from memagent import Archive, MemagentError, Question, UsageError
from pipelines.cli.ask import AnswerPrinter
from pipelines.io.answers import COLUMNS, answer_table
from pipelines.web.api.reader import found_answer
from tests.support.archives import HERON, OTTER, write_archive

ROOT = Path(__file__).parents[2]


@pytest.fixture
def archive(tmp_path, store, model_folder):
    write_archive(tmp_path / "docs")
    return Archive(tmp_path / "docs", store=store.url, engine="scripted", model=str(model_folder))


def test_answers_stream_and_are_tables(archive, store):
    answers = archive.ask(OTTER.text)
    found = list(answers)
    assert [answer.document for answer in found if answer.found] and len(found) == 8
    right = next(answer for answer in found if answer.document == "doc2.txt")
    assert right.answer == "1002" and "amber-otter is 1002" in right.quote
    assert right.evidence[0].quote_start >= 0 and right.source.endswith("doc2.txt") and right.run_id == answers.run_id
    assert answers.summary["readings"]["read_now"] == 8
    rows = answer_table(archive.config, "docs", answers.run_id)
    table = answers.to_arrow()
    assert table.schema == COLUMNS and table.num_rows == len(rows) == 8
    frame = answers.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert sorted(frame["answer"]) == sorted(answer.answer for answer in found)
    assert {str(answer) for answer in answers} == {str(answer) for answer in found}, "again, from the store"
    assert "<b>1002</b>" in answers._repr_html_() and "done" in repr(answers)
    assert answers.report(store.path("r.html") if not store.is_s3 else "/tmp/memagent-r.html").exists()


def test_what_was_asked_before_comes_first_and_the_newest_of_all_can_be_had(archive):
    first = archive.ask(OTTER.text)
    first.wait()
    both = archive.ask(OTTER.text, Question("heron", HERON.text, ("doc1.txt",)))
    assert [answer.question for answer in both] == [OTTER.text] * 8 + [HERON.text]
    assert both.summary["readings"]["answered_before"] == 8
    assert len(list(archive.answers())) == 9 and archive.answers().to_arrow().num_rows == 9
    assert len(list(archive.ask(OTTER.text, archive=True))) == 1


def test_a_loop_and_the_terminal_give_what_people_corrected(archive, store):
    first = next(answer for answer in archive.ask(OTTER.text) if answer.document == "doc2.txt")
    said = {"corpus": "docs", "reading_id": first.reading_id, "verdict": "corrected", "answer": "2001"}
    said |= {"reviewer": "ann", "comment": "", "given_at": now(), "spans": [], "decides": False}
    Table(store, "feedback").append([said])
    asked = archive.ask(OTTER.text)
    again = {answer.document: answer for answer in asked}
    assert again["doc2.txt"].answer == "2001" and again["doc3.txt"].answer != "2001"
    lines = io.StringIO()
    printer = AnswerPrinter(Console(file=lines, force_terminal=False), questions=1)
    printer.planned(Corpus(store, "docs"), asked.run_id)
    assert "\t2001\t" in lines.getvalue() and "corrected by ann" in lines.getvalue()


def test_an_answer_that_people_rejected_says_so_wherever_it_is_given(archive, store):
    first = next(answer for answer in archive.ask(OTTER.text) if answer.document == "doc2.txt")
    said = {"corpus": "docs", "reading_id": first.reading_id, "verdict": "rejected", "answer": "", "reviewer": "ann"}
    Table(store, "feedback").append([said | {"comment": "", "given_at": now(), "spans": [], "decides": False}])
    asked = archive.ask(OTTER.text)
    (again,) = [answer for answer in asked if answer.document == "doc2.txt"]
    assert again.review == "rejected" and "1002 [rejected]" in str(again) and "[rejected]" in asked._repr_html_()
    assert found_answer(again).review == "rejected"


def test_an_event_loop_goes_on_meanwhile(archive):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        streamed = [answer async for answer in archive.aask(OTTER.text)]
        ended = await archive.aask(HERON.text)
        ticking.cancel()
        return streamed, ended, ticks

    streamed, ended, ticks = asyncio.run(main())
    assert len(streamed) == 8 and len(ended.to_arrow()) == 8 and ticks > 20


def test_two_questions_at_once_take_turns(archive):
    first, second = archive.ask(OTTER.text), archive.ask(HERON.text)
    assert len(list(second)) == 8 and first.summary["readings"]["failed"] == 0
    assert sum(thread.name == "memagent runs" for thread in threading.enumerate()) == 1


def test_wrong_use_is_said_at_once_and_what_fails_later_where_it_is_waited_for(archive, store, tmp_path):
    with pytest.raises(UsageError, match="no question"):
        archive.ask()
    with pytest.raises(UsageError, match="is empty"):
        archive.ask(" ")
    for other in ([], None, 0, {}, ["x"]):
        with pytest.raises(UsageError, match="a question is a text, not a"):
            archive.ask(other)
    with pytest.raises(UsageError, match="no corpus 'nowhere'"):
        Archive("nowhere", store=store.url).ask("x")
    with pytest.raises(UsageError, match="no such key"):
        Archive("x", settings=["engine.nope=1"])
    answers = Archive(tmp_path / "missing", config=archive.config).ask("x")
    for wait in (answers.wait, lambda: list(answers), answers.to_pandas):
        with pytest.raises(UsageError, match="no such file"):
            wait()
    assert "failed" in repr(answers)


def test_a_run_that_is_stopped_keeps_what_was_answered(archive, store):
    config = archive.config
    slow = config.model_copy(update={"engine": config.engine.model_copy(update={"scripted_delay": 0.2})})
    answers = Archive(archive.source, config=slow).ask(OTTER.text)
    next(iter(answers))
    answers.stop()
    with pytest.raises(MemagentError, match="stopped"):
        answers.wait()
    kept = Table(store, "answers").read("docs").num_rows
    again = archive.ask(OTTER.text)
    assert 0 < kept <= 8 and again.summary["readings"]["answered_before"] >= kept


def test_a_run_that_failed_and_that_nobody_waited_for_is_logged(archive, caplog):
    config = archive.config
    broken = config.model_copy(update={"engine": config.engine.model_copy(update={"model": "/no/such/model"})})
    with Archive(archive.source, config=broken) as asked:
        run = asked.ask(OTTER.text)
    assert f"run {run.run_id} failed: " in caplog.text


def test_a_program_of_six_lines(tmp_path, model_folder):
    """In a process of its own, which starts Ray and ends it."""
    write_archive(tmp_path / "docs", count=3)
    program = f"""
from memagent import Archive

with Archive("docs", engine="scripted", model={str(model_folder)!r}, settings=["ray.cpus=2"]) as archive:
    for answer in archive.ask({OTTER.text!r}):
        print(answer.document, answer.answer)
    print(len(archive.ask({OTTER.text!r}, {HERON.text!r}).to_pandas()))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "6" and "doc2.txt 1002" in lines and (tmp_path / ".memagent").is_dir()


@pytest.mark.parametrize(
    ("rest", "status", "answers"),
    [
        ("with archive: next(iter(archive.ask(text)))", 0, 8),
        ("with archive: archive.ask(text)", 0, 8),
        ("next(iter(archive.ask(text)))", 0, None),
        ("with archive: archive.ask(text); raise SystemExit(7)", 7, None),
        ("archive.ask(text); __import__('time').sleep(3)", 0, None),
    ],
)
def test_a_program_ends_well_whatever_it_leaves(tmp_path, model_folder, rest, status, answers):
    write_archive(tmp_path / "docs")
    given = f"engine='scripted', model={str(model_folder)!r}, settings=['engine.scripted_delay=0.2']"
    program = f"from memagent import Archive\narchive, text = Archive('docs', {given}), {OTTER.text!r}\n{rest}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status and "shutdown" not in done.stderr, done.stderr[-2000:]
    if answers is not None:
        assert len(list(Archive("docs", store=tmp_path / ".memagent").answers())) == answers


def test_a_forked_child_is_told_what_to_do(tmp_path, model_folder):
    """The store's library cannot be used there; a child that waited for its parent's thread would wait for ever."""
    write_archive(tmp_path / "docs")
    program = f"""
import multiprocessing
from memagent import Archive

def count(text):
    return len(list(Archive("docs", engine="scripted", model={str(model_folder)!r}).ask(text)))

print(count({OTTER.text!r}))
with multiprocessing.get_context("fork").Pool(1) as pool:
    pool.map(count, [{HERON.text!r}])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "8" and "UsageError: a forked process cannot use the store" in done.stderr, (
        done.stderr[-2000:]
    )


def test_the_names_are_those_of_the_package():
    assert memagent.Archive is Archive and "Archive" in dir(memagent)
    with pytest.raises(AttributeError, match="Archve"):
        getattr(memagent, "Archve")  # noqa: B009
