"""What a run logs is kept in the store, as text or as JSON lines, and without secrets."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.location import Corpus, Store
from infra.system.logs import JsonFormatter, WorkerLog, reading_id, redacted, relay
from memagent.config import LoggingConfig
from pipelines.ask import RunLog

_log = logging.getLogger("memagent.pool")


@pytest.fixture
def corpus(tmp_path):
    return Corpus(Store(str(tmp_path)), "contracts")


def run_log(corpus, **config):
    return RunLog(corpus, "r", "nano@4f1c", LoggingConfig(**config))


def kept(corpus):
    return corpus.store.read_bytes("runs", "r", "log.txt").decode().splitlines()


def test_warnings_of_the_product_and_of_ray_are_kept(corpus):
    with run_log(corpus):
        _log.warning("an engine is retired")
        logging.getLogger("ray.core").warning("spilled")
        _log.info("a detail")
        logging.getLogger("elsewhere").warning("of somebody else")
    assert [line.split(" ", 3)[2:] for line in kept(corpus)] == [
        ["WARNING", "memagent.pool an engine is retired"],
        ["WARNING", "ray.core spilled"],
    ]
    _log.warning("after the run")
    assert len(kept(corpus)) == 2


def test_a_run_without_warnings_has_no_log(corpus, tmp_path):
    with run_log(corpus):
        pass
    assert not list(tmp_path.iterdir())


def test_json_lines_say_of_which_run_corpus_and_policy_they_are(corpus):
    level = logging.getLogger("memagent").level
    with run_log(corpus, format="json", level="info"):
        _log.info("stage %s", "read")
        try:
            raise ValueError('a "quoted" one')
        except ValueError:
            _log.exception("two\nlines")
    assert logging.getLogger("memagent").level == level
    first, second = map(json.loads, kept(corpus))
    assert first.pop("time").endswith("+00:00")
    run = {"run_id": "r", "corpus": "contracts", "policy_id": "nano@4f1c"}
    assert first == {"level": "INFO", "logger": "memagent.pool", "message": "stage read", **run}
    assert second["message"] == "two\nlines" and second["exception"].endswith('ValueError: a "quoted" one')


def test_lines_of_a_worker_reach_the_log_of_the_run_with_their_reading(corpus):
    worker = WorkerLog("info")
    worker.attach()

    def failing(name):
        reading_id.set(name)
        try:
            raise OSError("gone")
        except OSError:
            _log.exception("it failed")

    with ThreadPoolExecutor(1) as threads:
        threads.submit(failing, "reading-7").result()
    worker.detach()
    _log.warning("not of the worker any more")
    lines = json.loads(json.dumps(worker.take()))
    assert len(lines) == 1 and not worker.take()
    with run_log(corpus, format="json"):
        relay(lines)
        relay([{**lines[0], "level": logging.INFO}])
    (line,) = map(json.loads, kept(corpus))
    assert (line["reading_id"], line["run_id"], line["message"]) == ("reading-7", "r", "it failed")
    assert line["exception"].endswith("OSError: gone") and line["worker"].rpartition(":")[2].isdigit()


def test_secrets_are_in_no_line(corpus, monkeypatch, capfd):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", 'wJalr/"XUtnFEMI')
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as without pytest, which has some
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef")
    said = 'key wJalr/"XUtnFEMI, https://anna:hunter2@host/v1, Authorization: Bearer abc.def-123456, 0123456789abcdef'
    for kind in ("json", "text"):
        with run_log(corpus, format=kind):
            try:
                raise OSError(said)
            except OSError:
                _log.exception("%s", said)
        text = "\n".join(kept(corpus)) + capfd.readouterr().err
        assert text.count("***@host/v1") == 4, "message and trace, in the store and on standard error"
        assert not any(word in text for word in ("wJalr", "hunter2", "abc.def", "0123456789abcdef"))


@given(st.text(max_size=60))
def test_a_json_line_is_one_line_whatever_is_said(text):
    record = logging.makeLogRecord({"name": "memagent", "levelno": 30, "levelname": "WARNING", "msg": text})
    line = JsonFormatter().format(record)
    assert "\n" not in line and json.loads(line)["message"] == redacted(text)
