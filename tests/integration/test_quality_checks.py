"""Digests that the quality checks hold, with the scripted reader: what people are shown, and how they accept them."""

import asyncio
import json
import random
from io import StringIO
from unittest.mock import AsyncMock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from infra.readers import ReaderSpec
from infra.store.claims import beat
from infra.store.corpora import default_questions, remember
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.runs import begin_run, hidden_runs, withheld_runs
from memagent.config import load_config
from memagent.errors import UsageError
from pipelines.archive import Archive
from pipelines.ask import _work, digest
from pipelines.cli.main import app
from pipelines.cli.options import show_gates
from pipelines.io.answers import answer_rows
from pipelines.operate.release import release
from pipelines.operate.status import corpus_status
from pipelines.report.page import build
from pipelines.views.formatting import breached, exit_status
from pipelines.web.api.app import _Endpoint
from pipelines.web.api.mcp_server import Tools
from pipelines.web.api.protocol import ChatRequest
from pipelines.web.api.reader import HeldReader
from tests.support.archives import OTTER, write_archive
from tests.support.texts import filler

ROOMS = range(60)


def settings(store, model_folder, **more):
    given = {"engine__kind": "scripted", "engine__model": str(model_folder), **more}
    return load_config(store=store.url, sets=["flush_seconds=0.2", "quality.sample=20"], **given)


def write_rooms(folder, says, names=ROOMS):
    """A document a room; those whose number `says` accepts have a pass number."""
    rng = random.Random(len(list(folder.glob("*"))))
    folder.mkdir(exist_ok=True)
    for room in names:
        number = f"The pass number for amber-otter is {1000 + room}.\n\n" if says(room) else ""
        (folder / f"room{room}.txt").write_text(f"{number}{filler(rng, 20)}")


@pytest.fixture
def config(store, model_folder):
    return settings(store, model_folder)


@pytest.fixture
def folder(store, config, tmp_path):
    """An archive whose first digest was good: every document has the number."""
    write_rooms(tmp_path / "docs", lambda room: True)
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    first = digest("c", [OTTER], config)
    assert first["readings"]["found"] == len(ROOMS) and "checks" not in first
    mine = first["quality"]["questions"][OTTER.text]
    assert (mine["answers"], mine["remembered"], mine["empty"], mine["cut"]) == (len(ROOMS), len(ROOMS), 0, 0)
    assert mine["updates"] == first["quality"]["updates"] > 0
    return tmp_path / "docs"


def said(corpus, **more):
    return {row["document"]: row["answer"] for row in answer_rows(corpus, **more)}


def test_a_bad_night_is_held_and_the_last_good_ones_answers_are_shown(store, folder, config):
    corpus = Corpus(store, "c")
    good = said(corpus)
    write_rooms(folder, lambda room: False, range(100, 140))  # as if the reader had stopped to find anything
    night = digest("c", None, config)
    assert night["checks"]["withheld"] == [night["run_id"]] and withheld_runs(corpus) == {night["run_id"]}
    assert [breach["check"] for breach in night["checks"]["breaches"]] == ["max_abstentions", "max_empty"]
    assert exit_status(night) == 4 and night["readings"]["withheld"] == 40
    assert night["quality"]["questions"][OTTER.text]["empty"] == night["quality"]["empty"] == 40
    assert said(corpus) == good
    assert set(said(corpus, withheld=True)) == {f"room{room}.txt" for room in range(100, 140)}
    (state,) = corpus_status(config, "c")["corpora"]
    assert (state["answers"], state["withheld"], state["runs"][0]["status"]) == (60, 40, "withheld")
    assert "max_abstentions" in build(store, night["run_id"])

    again = digest("c", None, config)
    assert again["readings"]["read_now"] == 0, "the same reader would say the same"
    assert again["readings"]["withheld"] == 40 and exit_status(again) == 4 and again["checks"]["breaches"] == []
    assert breached(again) == ["it counts answers of a withheld digest"]
    assert set(again["checks"]["withheld"]) == {night["run_id"], again["run_id"]}
    (rollup,) = again["rollup"]
    assert rollup["new_count"] == 40, "compared with the last good night"

    with pytest.raises(UsageError, match="no withheld run"):
        release(store, "nothing")
    assert sorted(release(store, again["run_id"])[1]) == sorted([night["run_id"], again["run_id"]])
    assert len(said(corpus)) == 100 and not said(corpus, withheld=True) and not hidden_runs(corpus)
    with pytest.raises(UsageError, match="no run is withheld"):
        release(store, "last")
    calm = digest("c", None, config)
    assert exit_status(calm) == 0 and "checks" not in calm and calm["quality"]["questions"] == {}


def test_another_version_reads_again_what_only_a_held_night_has_answered(store, folder, config, monkeypatch):
    corpus = Corpus(store, "c")
    write_rooms(folder, lambda room: False, range(100, 140))
    bad = digest("c", None, config)
    assert bad["checks"]["withheld"]
    monkeypatch.setattr("infra.readers.RULES_VERSION", "another")
    night = digest("c", None, settings_that_only_say(config))
    assert night["readings"]["read_now"] == 40 and night["readings"]["answered_before"] == 60
    assert night["policy_id"] != bad["policy_id"]
    assert "withheld" not in night["readings"] and night["checks"]["withheld"] == [], "what was breached is only said"
    assert night["checks"]["breaches"] and exit_status(night) == 0
    assert len(said(corpus)) == 100 and withheld_runs(corpus) == {bad["run_id"]}


def settings_that_only_say(config):
    return config.model_copy(update={"quality": config.quality.model_copy(update={"withhold": False})})


def test_a_night_that_is_cut_down_is_held_for_what_is_gone(store, folder, config):
    for room in range(30):
        (folder / f"room{room}.txt").unlink()
    night = digest("c", None, config)
    assert [breach["check"] for breach in night["checks"]["breaches"]] == ["max_fewer"]
    assert len(said(Corpus(store, "c"))) == 30, "deleted documents have no answers, whatever is withheld"
    assert "withheld" not in said(Corpus(store, "c"), withheld=True)
    out = Console(file=StringIO(), width=200)
    show_gates(out, night)
    assert "this digest has no new answers" in out.file.getvalue() and "--withheld" not in out.file.getvalue()


def test_a_good_night_is_shown_at_its_end_with_what_broken_off_ones_had_read(store, folder, config):
    corpus = Corpus(store, "c")
    write_rooms(folder, lambda room: True, range(100, 130))
    (question,) = default_questions(corpus)
    other = config.model_copy(update={"reading": {**config.reading, "segment_tokens": 48}})
    mine, others = ([_work(ReaderSpec(one), question, archive=False)] for one in (config, other))
    beat(store, "killed")
    store.delete(store.path("runs", "killed", "heartbeat.json"))
    begin_run(corpus, "killed", "digest", {}, mine, withheld=True)
    begin_run(corpus, "other", "digest", {}, others, withheld=True)
    assert hidden_runs(corpus) == {"killed", "other"}
    night = digest("c", None, config)
    assert exit_status(night) == 0 and "checks" not in night
    assert withheld_runs(corpus) == {"other"} and len(said(corpus)) == 90


def test_what_a_running_night_answers_is_hidden_until_it_is_judged(store, folder, config, monkeypatch):
    from pipelines import runs

    corpus, seen = Corpus(store, "c"), {}
    judged = runs.judged

    def looking(*given):
        seen["shown"], seen["withheld"] = len(said(corpus)), len(said(corpus, withheld=True))
        return judged(*given)

    monkeypatch.setattr(runs, "judged", looking)
    write_rooms(folder, lambda room: True, range(100, 130))
    digest("c", None, config)
    assert seen == {"shown": 60, "withheld": 30}
    assert len(said(corpus)) == 90


def asked_by_a_program(config):
    return {answer.document: answer for answer in Archive("c", config=config).ask(OTTER.text)}


def test_who_asks_what_a_held_night_has_answered_is_told(store, folder, config, model_folder):
    write_rooms(folder, lambda room: False, range(100, 140))
    night = digest("c", None, config)["run_id"]
    options = ["ask", "c", "-q", OTTER.text, "--store", store.url, "--engine", "scripted", "--model", str(model_folder)]
    run = CliRunner()
    told = run.invoke(app, [*options, "--run-id", "asked", "--show", "200"])
    assert told.exit_code == 0, "it is answered"
    warned = {line.partition("\t")[0] for line in told.stdout.splitlines() if "withheld: its digest" in line}
    assert warned == set(said(Corpus(store, "c"), withheld=True))
    line = next(line for line in told.stdout.splitlines() if "withheld with" in line)
    assert line.startswith(f"40 of these answers are withheld with {night}") and f"memagent release {night}" in line
    seen = run.invoke(app, ["answers", "c", "--run", "asked", "--format", "jsonl", "--store", store.url])
    assert "memagent answers c --run asked" in line and len(seen.stdout.splitlines()) == 100
    withheld = {name for name, answer in asked_by_a_program(config).items() if "withheld" in "".join(answer.warnings)}
    in_file = [json.loads(line) for line in seen.stdout.splitlines()]
    assert withheld == {f"room{room}.txt" for room in range(100, 140)}, "programs are told as well"
    assert withheld == {row["document"] for row in in_file if "withheld" in "".join(row["warnings"])}
    assert build(store, "asked").count("withheld: its digest") == 40
    summary = json.loads(run.invoke(app, [*options, "--json", "--no-answers", "--run-id", "again"]).stdout)
    assert summary["readings"]["answered_before"] == 100 and summary["readings"]["withheld"] == 40
    assert summary["withheld_answers"]["runs"] == {night: 40} and "--run again" in summary["withheld_answers"]["says"]
    release(store, night)
    assert not any(answer.warnings for answer in asked_by_a_program(config).values())
    assert "withheld" not in run.invoke(app, [*options, "--show", "200"]).output
    calm = json.loads(run.invoke(app, [*options, "--json", "--no-answers"]).stdout)
    assert "withheld_answers" not in calm and "withheld" not in calm["readings"]


async def test_clients_of_the_api_are_told_of_withheld_answers_that_found_nothing(store, folder, config):
    write_rooms(folder, lambda room: False, range(100, 140))
    held = f"withheld with {(await asyncio.to_thread(digest, 'c', None, config))['run_id']}"
    reader = HeldReader(config)
    endpoint, tools = _Endpoint(reader, at_once=1, most_bytes=2**20), Tools(config, reader)
    await reader.start()
    try:
        for documents, found in ((("room100.txt",), 0), ((), 60)):
            messages = [{"role": "user", "content": OTTER.text}]
            chat = ChatRequest(model="corpus:c", messages=messages, documents=documents, limit=100)
            whole = await endpoint._whole(chat, await reader.reading(chat))
            said_whole = whole["choices"][0]["message"]["content"].splitlines()
            assert held in said_whole[-1] and len(said_whole) == found + 1
            assert whole["memagent"]["found"] == found and held in whole["memagent"]["warnings"][-1]
            chunks = [chunk async for chunk in endpoint._chunks(chat, await reader.reading(chat))]
            streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks).splitlines()
            assert streamed[:-1] == said_whole[:-1] and held in streamed[-1]
            about = await tools.ask("c", OTTER.text, AsyncMock(), documents=list(documents))
            assert about.found == found and held in about.warnings[-1]
        assert (await tools.answers("c", document="room100.txt")).withheld == 40
        rows = [*answer_rows(Corpus(store, "c"), about.run_id)]
        cited = [await tools.evidence("c", row["reading_id"]) for row in rows]
        assert [one.warnings for one in cited] == [row["warnings"] for row in rows]
        assert sum("withheld: its digest" in "".join(one.warnings) for one in cited) == 40
    finally:
        await reader.stop()


def test_the_commands(store, folder, config, model_folder):
    write_rooms(folder, lambda room: False, range(100, 140))
    options = ["--store", store.url, "--engine", "scripted", "--model", str(model_folder), "--set", "quality.sample=20"]
    run = CliRunner()
    digest = run.invoke(app, ["digest", "c", *options])
    assert digest.exit_code == 4, digest.output
    assert "Withheld: these answers are not shown" in digest.stdout and "memagent release" in digest.stdout
    withheld = run.invoke(app, ["answers", "c", "--withheld", "--format", "jsonl", "--store", store.url])
    assert len(withheld.stdout.splitlines()) == 40
    assert "40 newer answers withheld" in " ".join(
        run.invoke(app, ["status", "c", "--store", store.url]).stdout.split()
    )
    runs = Table(store, "runs").read("c", ["run_id", "withheld"]).to_pylist()
    (run_id,) = [row["run_id"] for row in runs if row["withheld"]]
    published = run.invoke(app, ["release", run_id, "--store", store.url, "--json"])
    assert json.loads(published.stdout) == {"corpus": "c", "runs": [run_id]}
    write_rooms(folder, lambda room: False, range(200, 300))
    assert run.invoke(app, ["digest", "c", "--force", *options]).exit_code == 0


def test_an_archive_of_before_is_shown_whole(store, config, tmp_path):
    write_archive(tmp_path / "docs")
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    digest("c", [OTTER], config)
    table = Table(store, "runs")
    table.upsert([{**row, "withheld": None} for row in table.read("c").to_pylist()])
    assert hidden_runs(Corpus(store, "c")) == set() and len(said(Corpus(store, "c"))) == 8
    assert digest("c", None, config)["readings"]["answered_before"] == 8
