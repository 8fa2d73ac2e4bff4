"""Backfill, and what became of scheduled runs, with the scripted reader."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.runs import begin_run
from infra.store.schemas import failure_row, now
from memagent.config import load_config
from memagent.errors import MemagentError, UsageError
from pipelines.ask import digest
from pipelines.cli.main import app
from pipelines.cli.operate import show_scheduled_runs
from pipelines.io.answers import answer_rows
from pipelines.operate.backfill import Dates, backfill
from pipelines.schedule import note_told, notices, scheduled_runs_of
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive


@pytest.fixture
def config(store, model_folder):
    given = {"engine__kind": "scripted", "engine__model": str(model_folder)}
    return load_config(store=store.url, sets=["flush_seconds=0.2", "schedule.due=06:00"], **given)


@pytest.fixture
def corpus(store, config, tmp_path):
    """Eight documents of last scheduled run, answered, and two of today that no run has read."""
    write_archive(tmp_path / "docs")
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    digest("c", [OTTER, HERON], config)
    for name in ("late0", "late1"):
        (tmp_path / "docs" / f"{name}.txt").write_text(f"The pass number for amber-otter is {name}.")
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], config, "run-ingest")
    return Corpus(store, "c")


def fail(corpus, document, question):
    """Take an answer away, as if its reading had failed."""
    (row,) = [row for row in answer_rows(corpus) if (row["document"], row["question"]) == (document, question.text)]
    Table(corpus.store, "answers").delete("c", reading_id=[row["reading_id"]])
    runs = Table(corpus.store, "runs").read("c", ["run_id"], None)["run_id"].to_pylist()
    item = f"{document} ? {question.text}"
    Table(corpus.store, "quarantine").upsert(
        [failure_row(corpus.name, "read", item, reason="EngineError", detail="", run_id=runs[0])]
    )


def test_a_digest_that_goes_back_to_a_configuration_shows_its_answers(corpus, config, monkeypatch):
    short = load_config(
        store=config.store,
        sets=["flush_seconds=0.2", "reading.segment_tokens=48"],
        engine__kind="scripted",
        engine__model=config.engine.model,
    )

    def shown():
        return {row["run_id"] for row in answer_rows(corpus)}

    assert digest("c", None, config)["readings"]["read_now"] == 4
    first = shown()
    other = digest("c", None, short)
    assert other["readings"]["read_now"] == 20 and shown() == {other["run_id"]}
    back = digest("c", None, config)
    assert back["readings"]["read_now"] == 0 and shown() == first
    again = digest("c", None, config)
    assert again["reader"] == back["reader"], "one that has nothing to do decides nothing anew"
    assert backfill("c", short, Dates(), every=True)["readings"]["total"] == 0 and shown() == first
    assert digest("c", [OTTER], short)["readings"]["read_now"] == 0 and other["run_id"] in shown()
    monkeypatch.setattr("infra.readers.RULES_VERSION", "newer")
    assert digest("c", [OTTER, HERON], config)["readings"]["read_now"] == 0 and shown() == first


def test_what_is_missing_and_what_failed_is_read_once(corpus, config):
    fail(corpus, "doc0.txt", OTTER)
    missing = backfill("c", config, Dates(), ["missing"])
    assert (missing["kind"], missing["readings"]["total"], missing["readings"]["read_now"]) == ("backfill", 4, 4)
    failed = backfill("c", config, Dates(), ["failed"])
    assert failed["readings"]["total"] == failed["readings"]["read_now"] == 1
    assert len(list(answer_rows(corpus))) == 20
    assert Table(corpus.store, "quarantine").read("c").num_rows == 0
    again = backfill("c", config, Dates())
    assert again["readings"]["total"] == again["conversations"] == 0, "the same again does nothing"
    scheduled = digest("c", None, config)
    assert scheduled["readings"]["answered_before"] == 20


def test_nights_choose_documents_by_when_they_were_taken_in(corpus, config):
    today, day = config.schedule.of(now()), timedelta(days=1)
    assert backfill("c", config, Dates(last=today - day))["readings"]["total"] == 0
    assert backfill("c", config, Dates(first=today + day))["readings"]["total"] == 0
    assert backfill("c", config, Dates(today, today))["readings"]["read_now"] == 4
    with pytest.raises(UsageError, match="is before --from"):
        backfill("c", config, Dates(today, today - day))
    with pytest.raises(UsageError, match="no corpus 'd'"):
        backfill("d", config, Dates())


def test_all_reads_again_what_another_version_has_answered(corpus, config, monkeypatch):
    backfill("c", config, Dates())
    monkeypatch.setattr("infra.readers.RULES_VERSION", "another")
    assert backfill("c", config, Dates())["readings"]["total"] == 0
    every = backfill("c", config, Dates(), every=True)
    assert every["readings"]["total"] == every["readings"]["read_now"] == 20
    assert backfill("c", config, Dates(), every=True)["readings"]["total"] == 0


def test_a_backfill_of_some_closes_no_run_that_has_more_to_do(corpus, config):
    begin_run(corpus, "killed", "digest", {}, [])
    backfill("c", config, Dates(), ["missing"])
    rows = Table(corpus.store, "runs").read("c", ["run_id", "status"]).to_pylist()
    assert {row["run_id"]: row["status"] for row in rows}["killed"] == "running"


def moved(corpus, days):
    """Let the corpus's digests have begun so many days ago."""
    table = Table(corpus.store, "runs")
    rows = [row for row in table.read("c").to_pylist() if row["kind"] == "digest"]
    back = timedelta(days=days)
    table.upsert([{**row, **{key: row[key] - back for key in ("started_at", "ended_at")}} for row in rows])


def test_nights_are_told_of_once(corpus, config):
    (scheduled,) = scheduled_runs_of(corpus, config.schedule, 5)
    assert (scheduled["state"], scheduled["readings"], scheduled["failed"]) == ("completed", 16, 0)
    fail(corpus, "doc0.txt", OTTER)
    (scheduled,) = scheduled_runs_of(corpus, config.schedule, 5)
    assert scheduled["state"] == "failed" and scheduled["failed"] == 1
    told = [notice for notice in notices(corpus, config.schedule) if notice["problem"] == "failed"]
    assert len(told) == 1 and told[0]["run"] == scheduled
    note_told(told[0], corpus)
    assert "failed" not in [notice["problem"] for notice in notices(corpus, config.schedule)]
    backfill("c", config, Dates(), ["failed"])
    assert scheduled_runs_of(corpus, config.schedule, 5)[0]["state"] == "completed", "it has its answer now"


def test_nights_without_a_digest_are_missing(corpus, config):
    moved(corpus, days=30)
    scheduled_runs = scheduled_runs_of(corpus, config.schedule, 7)
    assert len(scheduled_runs) == 7 and {scheduled["state"] for scheduled in scheduled_runs[1:]} == {"missing"}
    assert all(scheduled["late"] for scheduled in scheduled_runs[1:])
    assert len(scheduled_runs_of(corpus, config.schedule, 100)) == 31
    assert "late" in [notice["problem"] for notice in notices(corpus, config.schedule)]


def test_a_digest_that_was_broken_off_left_its_night_half_answered(corpus, config, capsys):
    begin_run(corpus, "killed", "digest", {}, ["w"])
    table = Table(corpus.store, "runs")
    rows = [row for row in table.read("c").to_pylist() if row["status"] == "completed"]
    table.delete("c", run_id=[row["run_id"] for row in rows])
    (scheduled,) = scheduled_runs_of(corpus, config.schedule, 3)
    assert (scheduled["state"], scheduled["run_id"], scheduled["ended_at"]) == ("half-answered", "killed", "")
    show_scheduled_runs("c", [{**scheduled, "failed": 3}])
    assert capsys.readouterr().out.split()[-1] == "3", "what failed is known before the end"
    show_scheduled_runs("c", [scheduled])
    assert capsys.readouterr().out.split()[-2:] == ["half-answered", "killed"], "what it asked is not known"


def test_the_commands(corpus, config, model_folder):
    store = ["--store", corpus.store.url]
    options = [*store, "--engine", "scripted", "--model", str(model_folder)]
    run = CliRunner()
    which = run.invoke(app, ["backfill", "c", *options])
    assert isinstance(which.exception, UsageError) and "specify --missing, --failed or --all" in str(which.exception)
    done = run.invoke(app, ["backfill", "c", "--missing", *options, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["readings"]["read_now"] == 4
    shown = run.invoke(app, ["status", "c", "--scheduled", "3", *store])
    assert shown.exit_code == 0 and f"{datetime.now(UTC):%Y-}" in shown.stdout and "completed" in shown.stdout
    assert json.loads(run.invoke(app, ["status", "c", "--scheduled", "3", *store, "--json"]).stdout)["corpus"] == "c"
    assert isinstance(run.invoke(app, ["status", "--scheduled", "3", *store]).exception, UsageError)


def test_a_digest_of_a_corpus_that_has_become_empty_fails_and_is_seen(corpus, config, tmp_path):
    for path in (tmp_path / "docs").iterdir():
        path.write_text("")
    with pytest.raises(MemagentError, match="sources without text") as failed:
        digest("c", None, config)
    assert not isinstance(failed.value, UsageError)
    status = Table(corpus.store, "runs").read("c").sort_by("started_at")["status"].to_pylist()
    assert status == ["completed", "running"], "a run without a heartbeat has died"
