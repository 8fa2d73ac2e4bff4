"""What runs cost, and runs that end when their budget is spent, with the scripted reader."""

import json
from datetime import timedelta
from unittest.mock import AsyncMock

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.schemas import now
from infra.store.turns import turns, unfinished_runs
from memagent.config import load_config
from memagent.errors import RequestError, UsageError
from memagent.quality.schedule import ScheduleConfig
from pipelines.archive import Archive
from pipelines.ask import ask, digest
from pipelines.cli.main import app
from pipelines.io.answers import answer_rows
from pipelines.operate.cost import REST, cost
from pipelines.operate.status import find_run
from pipelines.report.page import build
from pipelines.schedule import scheduled_runs_of
from pipelines.stages.ingest import ingest
from pipelines.web.api.app import _Endpoint
from pipelines.web.api.mcp_server import Tools
from pipelines.web.api.protocol import ChatRequest
from pipelines.web.api.reader import HeldReader
from tests.support.archives import HERON, OTTER, write_archive


def settings(store, model_folder, **more):
    given = {"engine__kind": "scripted", "engine__model": str(model_folder), **more}
    return load_config(store=store.url, sets=["flush_seconds=0.2"], **given)


@pytest.fixture
def archive(store, model_folder, tmp_path):
    write_archive(tmp_path / "docs", count=24)
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], settings(store, model_folder), "run-ingest")
    return tmp_path / "docs"


def held(corpus):
    """Count the conversations of each reading's steps in the turn log."""
    log = turns(corpus, [row["reading_id"] for row in Table(corpus.store, "answers").read("c").to_pylist()])
    return [(turn.reading_id, turn.span, turn.step) for turn in log]


def test_a_run_ends_when_its_budget_is_spent_and_the_next_ones_read_the_rest_once(store, archive, model_folder):
    corpus = Corpus(store, "c")
    slow = settings(store, model_folder, engine__scripted_delay=0.4, pool__inflight=4, cost__budget="6ktok")
    first = digest("c", [OTTER, HERON], slow)
    counts = first["readings"]
    assert counts["total"] == 48 and 0 < counts["unread"] < 48 and counts["failed"] == 0
    assert counts["read_now"] + counts["unread"] == 48
    assert first["prompt_tokens"] + first["output_tokens"] >= 6_000
    assert Table(store, "runs").read("c", ["status"])["status"].to_pylist() == ["paused"]
    assert len(list(answer_rows(corpus))) == counts["read_now"], "what is read is committed"
    left = f"{counts['read_now']} read in this run, 0 known before, {counts['unread']} not read"
    page = build(store, first["run_id"])
    assert left in page and f'"unread":{counts["unread"]},' in page and page.count(',"unread",') == counts["unread"]
    assert find_run(store, "last") == first["run_id"] and unfinished_runs(corpus) == [first["run_id"]]

    free = settings(store, model_folder)
    last = digest("c", None, free)
    assert last["readings"]["answered_before"] == counts["read_now"]
    assert last["readings"]["read_now"] == counts["unread"] and "unread" not in last["readings"]
    log = held(corpus)
    assert len(log) == len(set(log)), "no conversation is held twice"
    assert len(log) == first["conversations"] + last["conversations"]
    statuses = Table(store, "runs").read("c", ["status"])["status"].to_pylist()
    assert statuses == ["completed", "completed"] and unfinished_runs(corpus) == []
    night = first["run_id"]  # of a date of its own
    (row,) = Table(store, "runs").read("c", filters=pc.field("run_id") == night).to_pylist()
    earlier = {name: row[name] - timedelta(days=1) for name in ("started_at", "ended_at")}
    Table(store, "runs").upsert([{**row, **earlier}])
    due = (earlier["started_at"] + timedelta(hours=6)).strftime("%H:%M")
    told = scheduled_runs_of(corpus, ScheduleConfig(due=due), 5)
    assert [(one["state"], one["late"]) for one in told] == [("completed", False), ("completed", True)]


def test_a_loop_from_python_logs_what_the_budget_left(store, archive, model_folder, caplog):
    slow = settings(store, model_folder, engine__scripted_delay=0.4, pool__inflight=2, cost__budget="2ktok")
    given = len(list(Archive("c", config=slow).ask(OTTER.text)))
    assert 0 < given < 24 and f"without an answer: the budget is spent ({24 - given})" in caplog.text


async def test_clients_of_the_api_are_told_what_the_budget_left(store, archive, model_folder):
    slow = settings(store, model_folder, engine__scripted_delay=0.4, pool__inflight=2, cost__budget="2ktok")
    reader = HeldReader(slow)
    endpoint, tools = _Endpoint(reader, at_once=1, most_bytes=2**20), Tools(slow, reader)
    await reader.start()
    try:
        chat = ChatRequest(model="corpus:c", messages=[{"role": "user", "content": OTTER.text}], limit=100)
        whole = await endpoint._whole(chat, await reader.reading(chat))
        about, said = whole["memagent"], whole["choices"][0]["message"]["content"]
        left = f"without an answer: the budget is spent ({about['unread']})"
        assert 0 < about["unread"] < about["readings"] == 24 and said.splitlines()[-1] == left in about["warnings"]
        narrow = await tools.ask("c", HERON.text, AsyncMock())
        assert narrow.unread and f"the budget is spent ({narrow.unread})" in narrow.warnings[-1]
        with pytest.raises(RequestError, match=r"came to its end: the budget is spent \(1\): ask again"):
            await tools.ask("c", "Who is the heron?", AsyncMock(), archive=True)
    finally:
        await reader.stop()


def test_every_number_is_counted_once_however_it_is_cut(store, archive, model_folder):
    config = settings(store, model_folder)
    runs = [ask("c", [OTTER], config), ask("c", [OTTER, HERON], config), ask("c", [HERON], config)]
    tables = {by: cost(config, by=by) for by in ("run", "question", "policy", "corpus")}
    tokens = sum(run["prompt_tokens"] for run in runs)
    for table in tables.values():
        assert table["currency"] is None and table["total"]["prompt_tokens"] == tokens
        assert sum(row["prompt_tokens"] for row in table["rows"]) == tokens
        assert sum(row["output_tokens"] for row in table["rows"]) == sum(run["output_tokens"] for run in runs)
        assert sum(row["engine_seconds"] for row in table["rows"]) == pytest.approx(
            sum(run["engine_uptime"] for run in runs), abs=0.1
        )
    assert [row["name"] for row in tables["run"]["rows"]] == [runs[1]["run_id"], runs[0]["run_id"]], "newest first"
    assert {row["name"] for row in tables["question"]["rows"]} == {OTTER.text, HERON.text, REST}
    assert [row["name"] for row in tables["policy"]["rows"]] == [runs[0]["policy_id"]]
    assert [row["name"] for row in tables["corpus"]["rows"]] == ["c"]
    assert runs[2]["engine_uptime"] == 0, "no engine started for what was answered"
    later = cost(config, "c", since=now() + timedelta(days=1))
    assert later["rows"] == [] and later["total"]["runs"] == 0


def test_prices_are_the_runs_own_unless_others_are_given(store, archive, model_folder):
    config = settings(store, model_folder, cost__engine_hour=3600.0)
    run = ask("c", [OTTER], config)
    own = cost(settings(store, model_folder))
    assert own["currency"] == "EUR" and own["total"]["money"] == pytest.approx(run["engine_uptime"], rel=0.01)
    per_token = settings(store, model_folder, cost__input_mtok=1e6, cost__cached_mtok=0.0, cost__currency="USD")
    table = cost(per_token, by="question")
    assert table["currency"] == "USD" and table["total"]["money"] == run["prompt_tokens"] - run["cached_tokens"]
    ask("c", [HERON], settings(store, model_folder, cost__engine_hour=1.0, cost__currency="USD"))
    with pytest.raises(UsageError, match="EUR, USD: give prices of one currency"):
        cost(settings(store, model_folder))


def test_what_a_run_that_was_broken_off_had_taken_is_in_its_curve(store, archive, model_folder):
    config = settings(store, model_folder)
    run = ask("c", [OTTER], config)
    table = Table(store, "runs")
    row = table.read("c").to_pylist()[0]
    summary = json.dumps({"work": ["w"], "policy_id": run["policy_id"]})
    table.upsert([{**row, "status": "running", "ended_at": None, "summary": summary}])
    broken = cost(config, by="policy")
    assert broken["total"]["prompt_tokens"] == run["prompt_tokens"]
    assert [row["name"] for row in broken["rows"]] == [run["policy_id"]]


def test_the_commands(store, archive, model_folder):
    options = ["--store", store.url, "--engine", "scripted", "--model", str(model_folder)]
    slow = ["--set", "engine.scripted_delay=0.4", "--set", "pool.inflight=4", "--budget", "2ktok"]
    run = CliRunner()
    asked = run.invoke(app, ["ask", "c", OTTER.text, *options, *slow, "--no-fetch", "--json"])
    assert asked.exit_code == 3, asked.output
    assert json.loads(asked.stdout)["summary"]["readings"]["unread"] > 0
    again = run.invoke(app, ["ask", "c", OTTER.text, *options, "--no-fetch"])
    assert again.exit_code == 0 and "of engines" in again.stdout
    shown = run.invoke(app, ["cost", "c", "--by", "question", "--store", store.url])
    assert shown.exit_code == 0 and "amber-otter" in shown.stdout and "total" in shown.stdout
    table = json.loads(run.invoke(app, ["cost", "--json", "--store", store.url]).stdout)
    assert len(table["rows"]) == 2
    for wrong in (["cost", "c", "--by", "day"], ["cost", "--since", "yesterday"], ["cost", "d"]):
        done = run.invoke(app, [*wrong, "--store", store.url])
        assert isinstance(done.exception, UsageError), wrong
