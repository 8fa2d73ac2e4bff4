"""Two runs that want the same: one waits, takes over, or is told who has it. Nothing is read twice."""

import json
import os
import shutil
import threading
import time
import uuid

import psutil
import pytest

from infra.store import claims
from infra.store.claims import RunningError, alone, beat, claimed, is_alive, used
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.runs import begin_run, close_runs, closed_runs, run_ids
from memagent.config import load_config
from memagent.errors import MemagentError, UsageError
from pipelines.ask import ask
from pipelines.operate.status import corpus_status
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive
from tests.support.waiting import wait_for


def corpus_of(store):
    return Corpus(store, "c")


def held(store, run_id, *work, wait=False, waiting=lambda run: None):
    return claimed(corpus_of(store), run_id, work, wait=wait, waiting=waiting)


def test_equal_work_is_claimed_once_and_other_work_beside_it(store):
    with held(store, "one", "a", "b"):
        assert is_alive(store, "one")
        with (
            held(store, "two", "c"),
            pytest.raises(RunningError, match="run one does the same work"),
            held(store, "3", "b"),
        ):
            pass
    assert not is_alive(store, "one")
    with held(store, "three", "b"):
        assert is_alive(store, "three")


def test_a_run_waits_for_the_one_that_has_claimed_and_says_for_which(store):
    told, order = [], []
    release = threading.Event()

    def first():
        with held(store, "one", "a"):
            order.append("one")
            release.wait(30)
            order.append("one is done")

    thread = threading.Thread(target=first)
    thread.start()
    while not order:
        time.sleep(0.05)

    def waiting(run):
        told.append(run)
        release.set()

    with held(store, "two", "a", wait=True, waiting=waiting):
        order.append("two")
    thread.join()
    assert (told, order) == (["one"], ["one", "one is done", "two"])


def test_a_run_that_is_stopped_does_not_go_on_waiting(store):
    def check():
        raise MemagentError("enough")

    stopped = claimed(corpus_of(store), "two", ["a"], wait=True, waiting=print, check=check)
    with held(store, "one", "a"), pytest.raises(MemagentError, match="enough"), stopped:
        pass


def test_who_has_the_whole_store_keeps_all_others_away_and_is_kept_away_by_them(store):
    with held(store, "reads", "a"), pytest.raises(RunningError, match="run reads is using"), alone(store, "deletes"):
        pass
    elsewhere = Corpus(store, "d")
    with used(elsewhere, "writes", wait=False, show=None):
        with pytest.raises(RunningError, match="run writes is using"), alone(store, "deletes"):
            pass
        with used(elsewhere, "writes as well", wait=False, show=None):
            pass
    with alone(store, "deletes"):
        with pytest.raises(RunningError, match="run deletes has the whole store"), held(store, "reads", "a"):
            pass
        with (
            pytest.raises(RunningError, match="run deletes has the whole store"),
            used(elsewhere, "w", wait=False, show=None),
        ):
            pass
        with pytest.raises(RunningError, match="run deletes is using"), alone(store, "too"):
            pass
    with held(store, "reads", "a"):
        pass


def test_a_run_that_began_while_another_took_the_whole_store_waits(store, monkeypatch):
    """Both had looked before either had written down what it wants."""
    told, unseen = [], [""]
    look = claims._holder
    monkeypatch.setattr(claims, "_holder", lambda corpus: unseen.pop() if unseen else look(corpus))
    monkeypatch.setattr(claims, "_LOOK_SECONDS", 0.05)
    with alone(store, "deletes"):

        def waiting(run):
            told.append((run, json.loads(store.read_bytes("claims", "c.json"))))
            store.delete(store.path("runs", "deletes", "heartbeat.json"))

        with held(store, "reads", "a", wait=True, waiting=waiting):
            pass
    assert told == [("deletes", {})], "what it had claimed is given up while it waits"


def test_who_wants_the_whole_store_waits_for_the_workers_of_a_run_that_was_killed(store, monkeypatch):
    """They have no heartbeat, and may write for a moment after their driver is gone."""
    monkeypatch.setattr(claims, "_ORPHAN_SECONDS", 2.5)  # of which S3 may be off by one: it tells whole seconds
    monkeypatch.setattr(claims, "_LOOK_SECONDS", 0.1)
    beat(store, "dead")
    last = json.loads(store.read_bytes("runs", "dead", "heartbeat.json"))
    store.write_bytes(json.dumps({**last, "process": 2**22 - 7}).encode(), "runs", "dead", "heartbeat.json")
    killed = time.monotonic()
    store.write_bytes(json.dumps({"dead": ["a"]}).encode(), "claims", "c.json")
    with held(store, "two", "a"):  # who only reads need not wait, and leaves the claims for who must
        pass
    with alone(store, "deletes"):
        assert time.monotonic() - killed > 1.4


@pytest.mark.parametrize("heartbeat", [b"[]", b'{"host": "elsewhere"}', b'{"host": 1, "process": "x"}', b"7", b"\xff"])
def test_a_damaged_heartbeat_is_of_no_run(store, heartbeat):
    store.write_bytes(heartbeat, "runs", "odd", "heartbeat.json")
    store.write_bytes(b'{"odd": ["a"]}', "claims", "c.json")
    assert not is_alive(store, "odd")
    with alone(store, "deletes"):
        pass


ELSEWHERE = {"host": "elsewhere", "process": 1, "started": 5}


@pytest.mark.parametrize("seconds", [100, -100], ids=["ended", "from the future"])
def test_a_run_elsewhere_is_dead_when_its_heart_stopped(store, seconds, monkeypatch):
    store.write_bytes(json.dumps(ELSEWHERE).encode(), "runs", "far", "heartbeat.json")
    assert is_alive(store, "far")
    monkeypatch.setattr(Store, "age", lambda self, *parts: seconds)
    assert not is_alive(store, "far")


def test_a_clock_that_is_off_does_not_end_a_run_elsewhere(s3_bucket, monkeypatch):
    """The server's clock alone says how long ago a heart beat."""
    store = Store(f"{s3_bucket}/clock-{uuid.uuid4().hex[:8]}")
    store.write_bytes(json.dumps(ELSEWHERE).encode(), "runs", "far", "heartbeat.json")
    off = time.time() + 3600
    monkeypatch.setattr(claims.time, "time", lambda: off)
    assert is_alive(store, "far")
    monkeypatch.setattr(claims, "_DEAD_SECONDS", 1.0)
    time.sleep(2.5)  # the server tells whole seconds
    assert not is_alive(store, "far")


def test_the_whole_store_is_nobodys_after_a_kill(store):
    store.write_bytes(json.dumps({"gone": ["_store"]}).encode(), "claims", "_store.json")
    with held(store, "reads", "a"):
        pass
    with alone(store, "deletes"):
        assert json.loads(store.read_bytes("claims", "_store.json")) == {"deletes": ["_store"]}


@pytest.mark.parametrize("change", [{"process": 2**22 - 7}, {"started": 1}, {"host": "elsewhere"}])
def test_claims_of_a_run_that_is_gone_are_taken_over(store, change, monkeypatch):
    beat(store, "dead")
    last = json.loads(store.read_bytes("runs", "dead", "heartbeat.json"))
    store.write_bytes(json.dumps({**last, **change}).encode(), "runs", "dead", "heartbeat.json")
    if "host" in change:
        monkeypatch.setattr(Store, "age", lambda self, *parts: 91)
    store.write_bytes(json.dumps({"dead": ["a"]}).encode(), "claims", "c.json")
    with held(store, "two", "a"):
        assert json.loads(store.read_bytes("claims", "c.json"))["two"] == ["a"]
    monkeypatch.setattr(claims, "_ORPHAN_SECONDS", 0.0)
    with held(store, "three", "a"):
        assert list(json.loads(store.read_bytes("claims", "c.json"))) == ["three"]


def test_a_run_lives_on_when_the_clock_is_set(store, monkeypatch):
    """The kernel reckons its own start, and with it that of processes, back from the clock."""
    beat(store, "run")
    jumped = psutil.boot_time() + 200
    monkeypatch.setattr(psutil, "boot_time", lambda: jumped)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: jumped + 50)
    after = time.time() + 200
    monkeypatch.setattr(time, "time", lambda: after)
    assert is_alive(store, "run")


def test_a_process_that_ended_holds_no_claims_though_its_parent_has_not_looked(store):
    child = os.fork()
    if not child:
        os._exit(0 if beat(store, "child") is None else 1)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert psutil.pid_exists(child) and not is_alive(store, "child")
    os.waitpid(child, 0)


@pytest.mark.parametrize("damaged", [b"\0" * 40, b'{"one": ["a"', b"[]", b"\xff"])
def test_a_damaged_claims_file_is_begun_anew(store, damaged, caplog):
    store.write_bytes(damaged, "claims", "c.json")
    with held(store, "one", "a"), pytest.raises(RunningError, match="run one"), held(store, "two", "a"):
        pass
    assert "claims/c.json" in caplog.text
    assert json.loads(store.read_bytes("claims", "c.json")) == {}


def test_a_store_that_goes_leaves_the_runs_own_error(tmp_path, caplog):
    store = Store(str(tmp_path / "store"))
    with pytest.raises(UsageError, match="of the run itself"), held(store, "one", "a"):
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("something else")
        raise UsageError("of the run itself")
    assert "claims of run one are not given up" in caplog.text


def test_a_run_on_another_machine_is_alive_while_its_heart_beats(store, monkeypatch):
    store.write_bytes(json.dumps(ELSEWHERE).encode(), "runs", "far", "heartbeat.json")
    monkeypatch.setattr(Store, "age", lambda self, *parts: 30)
    assert is_alive(store, "far")


def test_two_runs_of_the_same_questions_at_once_read_once(tmp_path, model_folder):
    write_archive(tmp_path / "docs")
    store = Store(str(tmp_path / "store"))
    sets = ["engine.scripted_delay=0.4", "pool.cpus=0.4"]
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    ingest(corpus_of(store), [str(tmp_path / "docs")], config, "ingest")
    done = []
    threads = [threading.Thread(target=lambda: done.append(ask("c", [OTTER, HERON], config))) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun = wait_for(lambda: len(runs := corpus_status(config, "c")["corpora"][0]["runs"]) == 2 and runs)
    for thread in threads:
        thread.join()
    assert [run["status"] for run in begun] == ["running"] * 2, "a run has a row from its first second"
    assert sorted(run["readings"]["read_now"] for run in done) == [0, 16]
    assert sorted(run["readings"]["answered_before"] for run in done) == [0, 16]
    assert Table(store, "answers").count("c") == 16
    begin_run(corpus_of(store), "killed", "ask", {}, ["what it read"])
    assert corpus_status(config, "c")["corpora"][0]["runs"][0]["status"] == "stopped"
    beat(store, "alive")
    begin_run(corpus_of(store), "alive", "ask", {}, ["what it read"])
    assert "killed" not in closed_runs(corpus_of(store)), "it may have half-read readings"
    assert close_runs(corpus_of(store), ["something else"]) == []
    assert close_runs(corpus_of(store), ["what it read", "more"]) == ["killed"]
    assert {"killed", "alive"} & closed_runs(corpus_of(store)) == {"killed"}
    begin_run(corpus_of(store), "killed", "ask", {}, ["what it read"])
    assert "killed" not in closed_runs(corpus_of(store)), "it was begun again"
    assert sorted(run_ids(corpus_of(store), ["ask"])) == sorted(run["run_id"] for run in done)
