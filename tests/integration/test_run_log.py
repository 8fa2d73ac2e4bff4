"""What workers log stands in the run's log, with the reading that it is about."""

import json
import logging

import pytest

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import ask, digest

pytestmark = pytest.mark.usefixtures("ray_in_process")


def test_a_reading_that_fails_in_a_worker_is_named_in_the_log_of_the_run(
    store, archive, model_folder, capfd, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as without pytest, which has some
    corpus = Corpus(store, "c")
    sets = ["flush_seconds=0.2", "logging.format=json", "logging.level=info", "pool.max_size=2", "pool.cpus=0.4"]
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    remember(corpus, sources=[str(archive)])
    first = digest("c", [Question("before", "What is before?")], config)
    for path in store.list("segments", "c"):
        store.write_bytes(b"PAR1 was cut off", *path.removeprefix(store.path() + "/").split("/"))
    run = ask("c", [Question("otter", "What is the pass number for amber-otter?")], config)
    assert run["readings"]["failed"] == 4 and not first["readings"]["failed"]
    lines = [json.loads(line) for line in store.read_bytes("runs", run["run_id"], "log.txt").decode().splitlines()]
    assert {(line["run_id"], line["corpus"], line["policy_id"]) for line in lines} == {
        (run["run_id"], "c", run["policy_id"])
    }
    assert [line["message"] for line in lines if line["logger"] == "memagent.run"] == [
        "stage segment",
        "stage plan",
        "stage read",
        "stage done",
    ]
    of_workers = [line for line in lines if line["logger"] == "memagent.pool"]
    failed = [line for line in of_workers if line["level"] == "INFO" and " failed: " in line["message"]]
    assert len({line["reading_id"] for line in failed}) == len(failed) == 4
    rows = Table(store, "quarantine").read("c", ["item"]).to_pylist()
    assert {line["message"].partition(" failed: ")[0] for line in failed} == {row["item"] for row in rows}
    assert all(line["worker"] for line in of_workers)
    traced = [line for line in of_workers if line["level"] == "ERROR"]
    assert len(traced) == 4 and all("Traceback" in line["exception"] for line in traced)
    shown = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith('{"time"')]
    assert [line for line in shown if line["run_id"] == run["run_id"]] == lines, "the same on standard error"
