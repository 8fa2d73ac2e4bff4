"""A flow that is cancelled ends soon, also where its work takes the signal's exception for an error to try again."""

import os
import signal
import threading

import pytest
from prefect.exceptions import TerminationSignal

from infra.cluster.jobs import run_job
from infra.store.location import Store
from infra.system.processes import terminating
from memagent.errors import MemagentError
from pipelines.flows import ray_job
from tests.support.waiting import wait_for


@pytest.fixture
def ends(monkeypatch):
    """The seconds after which the process would have been ended."""
    told = []
    monkeypatch.setattr(ray_job, "end_within", told.append)
    yield told
    terminating.clear()


def raised(*_):
    raise TerminationSignal(signal.SIGTERM)


def test_work_is_broken_off_and_the_signal_is_raised_where_prefect_waits_for_it(ends):
    begun, seen = threading.Event(), []

    def work():
        begun.set()
        while not terminating.wait(0.01):
            try:  # as Ray does: no exception of the main thread comes here
                seen.append(threading.current_thread() is threading.main_thread())
            except BaseException:
                seen.append(True)
        return "ended in good order"

    before = signal.signal(signal.SIGTERM, raised)
    try:
        threading.Thread(target=lambda: begun.wait() and os.kill(os.getpid(), signal.SIGTERM), daemon=True).start()
        with pytest.raises(TerminationSignal):
            ray_job.here(work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(ends) == 1 and ends[0] < 5 and not any(seen)


def test_what_is_interrupted_by_hand_ends_and_the_process_goes_on(ends):
    begun = threading.Event()

    def work():
        begun.set()
        assert terminating.wait(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a library may have put its own there
    try:
        threading.Thread(target=lambda: begun.wait() and os.kill(os.getpid(), signal.SIGINT), daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            ray_job.here(work)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: not terminating.is_set())
    assert ends == []


def test_results_and_errors_come_through(ends):
    assert ray_job.here(lambda: 7) == 7
    with pytest.raises(MemagentError, match="no engine"):
        ray_job.here(lambda: (_ for _ in ()).throw(MemagentError("no engine")))
    assert ends == [] and not terminating.is_set()


def test_a_process_that_ends_begins_no_job_anew(tmp_path, monkeypatch):
    from ray.exceptions import RaySystemError

    tries = []

    def dataset(work, left):
        tries.append(1)
        terminating.set()
        raise RaySystemError("a signal")
        yield

    monkeypatch.setattr("infra.cluster.jobs.ensure_nodes", lambda store: None)
    monkeypatch.setattr("infra.cluster.jobs._dataset", dataset)
    try:
        with pytest.raises(MemagentError, match="the run was stopped"):
            list(run_job(len, ["a"], Store(str(tmp_path)), local=False))
    finally:
        terminating.clear()
    assert len(tries) == 1
