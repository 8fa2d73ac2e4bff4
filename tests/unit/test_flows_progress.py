"""What a person sees of a run in Prefect: its progress, also of one that failed, and its report."""

import json
import logging
import threading
import uuid

import pytest
from prefect.states import Completed

from memagent.config import LoggingConfig
from memagent.errors import MemagentError, UsageError
from pipelines.flows import answering, learning, ray_job
from pipelines.harvest import NOTHING, NothingToHarvest


@pytest.fixture
def artifacts(monkeypatch):
    """Keep what is written of the progress artifact."""
    told = []
    monkeypatch.setattr(ray_job, "create_progress_artifact", lambda **_: uuid.uuid4())
    monkeypatch.setattr(ray_job, "update_progress_artifact", lambda _, **given: told.append(given))
    monkeypatch.setattr(ray_job, "_PROGRESS_SECONDS", 1e9)  # no update but the last
    return told


def test_a_run_that_ends_is_at_a_hundred_percent(artifacts):
    with ray_job.JobProgress("digest of c") as progress:
        progress.show({"segments": 10, "segments_total": 40})
    assert artifacts == [{"progress": 100.0, "description": None}]


def test_a_run_that_fails_says_how_far_it_came_and_why(artifacts):
    with pytest.raises(MemagentError), ray_job.JobProgress("digest of c") as progress:
        progress.show({"segments": 10, "segments_total": 40})
        raise MemagentError("no engine is left\nsecond line")
    (last,) = artifacts
    assert last["progress"] == 25.0
    assert last["description"] == "digest of c: stopped at 25% (MemagentError: no engine is left)"


def test_a_run_whose_budget_is_spent_says_how_far_it_came_and_what_is_left(artifacts):
    with ray_job.JobProgress("digest of c") as progress:
        progress.show({"segments": 10, "segments_total": 40})
        progress.unread = 1_200
    said = "digest of c: stopped at 25% (1,200 readings left: the budget is spent)"
    assert artifacts == [{"progress": 25.0, "description": said}]


def test_a_run_whose_budget_is_spent_is_no_plain_completed_flow(monkeypatch):
    monkeypatch.setattr(answering, "publish_stage", lambda *_: "report.html")
    monkeypatch.setattr(answering, "emit_event", lambda **_: None)
    monkeypatch.setattr(answering, "get_run_logger", lambda: logging.getLogger("flow"))
    summary = {"run_id": "r", "corpus": "c", "readings": {"total": 60, "unread": 40}, "scores": None}
    state = answering._publish(None, summary, "memagent.corpus.digested")
    assert (state.type.value, state.name) == ("COMPLETED", "Paused")
    assert state.message.startswith("40 left: the budget is spent") and "quarantine" not in state.message
    broken = {**summary, "ingest": {"quarantined": {"broken": 1}}}
    said = answering._publish(None, broken, "memagent.corpus.digested").message
    assert "40 left" in said and "1 failed (1 source: broken)" in said
    withheld = {**summary, "checks": {"withheld": ["r"]}}
    with pytest.raises(answering.FailedItems, match=r"is withheld.* 40 left: the budget is spent"):
        answering._publish(None, withheld, "memagent.corpus.withheld")
    states = {"c": state, "d": Completed(data=summary)}
    every = answering._summaries(states)
    assert every.name == "Paused" and "c: 40 left" in every.message


@pytest.mark.parametrize(
    "error", [NothingToHarvest(f"{NOTHING}: ask"), MemagentError(f"the Ray job ended: {NOTHING}: ask")]
)
def test_a_night_without_gold_is_no_failure(monkeypatch, error):
    def work(*_):
        raise error

    said = []
    monkeypatch.setattr(learning, "work", work)
    monkeypatch.setattr(
        learning, "get_run_logger", lambda: type("L", (), {"info": lambda self, *words: said.append(words)})()
    )
    assert NOTHING in learning.harvest_stage.fn(None, "c", 0, "run")
    assert said


def test_what_else_goes_wrong_in_a_harvest_is_one(monkeypatch):
    def work(*_):
        raise UsageError("corpus 'c' has no documents")

    monkeypatch.setattr(learning, "work", work)
    with pytest.raises(UsageError, match="no documents"):
        learning.harvest_stage.fn(None, "c", 0, "run")


def test_a_report_is_named_with_the_command_that_opens_it():
    said = answering._where("/store/runs/run-1/report.html", "run-1")
    assert "`/store/runs/run-1/report.html`" in said and "`memagent report run-1 --open`" in said


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_run_logs_stands_in_the_log_of_its_flow_from_any_thread(monkeypatch, form):
    told = []

    class RunLogger:
        def log(self, level, message, *arguments):
            told.append((level, message % arguments))

    monkeypatch.setattr(ray_job, "get_run_logger", RunLogger)
    monkeypatch.setattr(logging.getLogger("memagent"), "level", logging.WARNING)
    with ray_job.FlowLog(LoggingConfig(format=form)):
        line = ("an engine is retired; see %s", "http://anna:hunter2@host")
        thread = threading.Thread(target=logging.getLogger("memagent.pool").warning, args=line)
        thread.start()
        thread.join()
        logging.getLogger("memagent.pool").info("a detail")
        logging.getLogger("elsewhere").warning("of somebody else")
    logging.getLogger("memagent.pool").warning("after it")
    ((level, text),) = told
    message = json.loads(text)["message"] if form == "json" else text
    assert (level, message) == (logging.WARNING, "an engine is retired; see http://***@host")
