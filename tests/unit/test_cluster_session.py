"""Starting Ray where it is slow to start, and beside a SIGTERM handler of one's own."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager

import pytest
import ray
from tenacity import wait_none

from infra.cluster import session as jobs
from infra.cluster.session import _held_by_a_thread, _start_ray
from memagent.config import RayConfig
from memagent.errors import MemagentError, UsageError


@pytest.fixture
def starts(monkeypatch):
    """Have Ray's start end with these errors, one after the other, then well; tells what was called."""
    called = []

    def after(*errors):
        left = list(errors)

        def init(**options):
            called.append("init")
            if left:
                raise left.pop(0)

        monkeypatch.setattr(jobs, "_PAUSE", wait_none())
        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setattr(ray, "shutdown", lambda: called.append("shutdown"))
        return called

    return after


def test_a_start_that_came_too_late_is_tried_again(starts):
    called = starts(Exception("The current node timed out during startup."), TimeoutError("no socket"))
    _start_ray({})
    assert called == ["init", "shutdown", "init", "shutdown", "init"]


def test_no_other_user_can_read_rays_token(starts, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir(mode=0o755)
    monkeypatch.setattr(jobs, "quiet_ray_data", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests' Ray may run in this process
    monkeypatch.setattr(jobs, "started_here", jobs.started_here)
    called = starts()
    with jobs.ray_session(RayConfig()):
        assert (tmp_path / ".ray").stat().st_mode & 0o777 == 0o700 and called == ["init"]


def test_the_processes_of_a_failed_start_warn_of_nothing(starts, monkeypatch):
    starts()
    tries = []

    def init(**options):
        process = subprocess.Popen([sys.executable, "-c", ""])
        tries.append(process.pid)
        if len(tries) < 3:
            raise TimeoutError("too late")
        process.wait()

    monkeypatch.setattr(ray, "init", init)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _start_ray({})
        gc.collect()
    assert len(tries) == 3
    assert not [one for one in warned if issubclass(one.category, ResourceWarning)]


def test_starts_wait_for_each_other(monkeypatch):
    under_way, most = [], []

    def init(**options):
        under_way.append(1)
        most.append(len(under_way))
        threading.Event().wait(0.05)
        under_way.pop()

    monkeypatch.setattr(ray, "init", init)
    threads = [threading.Thread(target=_start_ray, args=({},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_one_that_never_comes_is_told_with_what_to_look_at(starts):
    called = starts(*[RuntimeError("timed out")] * 9)
    with pytest.raises(MemagentError, match=r"timed out.*overloaded.*session_latest"):
        _start_ray({})
    assert called.count("init") == 5


@pytest.mark.parametrize(
    ("error", "kind"), [(ConnectionError("refused"), UsageError), (ValueError("cpus"), ValueError)]
)
def test_what_trying_again_does_not_mend_is_not_tried_again(starts, error, kind):
    called = starts(error)
    with pytest.raises(kind):
        _start_ray({"address": "10.0.0.1:6379"})
    assert called == ["init"]


def test_ray_leaves_the_handler_of_a_termination_and_ends_in_the_thread_that_started_it(monkeypatch):
    threads = []
    monkeypatch.setattr(ray, "init", lambda **options: threads.append(threading.current_thread()))
    monkeypatch.setattr(ray, "shutdown", lambda: threads.append(threading.current_thread()))
    with _held_by_a_thread({}):
        (starter,) = threads
        assert starter is not threading.main_thread() and starter.is_alive(), "Ray's processes end with it"
    assert threads == [starter, starter] and not starter.is_alive()


def test_a_handler_that_ray_sets_beside_pythons_gives_way(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("ours"))
    ignore = 1
    monkeypatch.setattr(ray, "init", lambda **options: ctypes.CDLL(None).signal(signal.SIGTERM, ignore))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    try:
        with _held_by_a_thread({}):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["ours"]


def test_a_start_that_fails_is_told_where_it_was_asked_for(starts):
    starts(ValueError("cpus"))
    with pytest.raises(ValueError, match="cpus"), _held_by_a_thread({}):
        pytest.fail("Ray has not started")


def test_ray_starts_when_it_is_first_needed_and_ends_with_the_outer_body(monkeypatch):
    told = []

    @contextmanager
    def session(config):
        told.append("start")
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        yield
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        told.append("end")

    monkeypatch.setattr(jobs, "_open_blocks", [])  # integration tests of this process may have left theirs
    monkeypatch.setattr(jobs, "_session", ExitStack())
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(jobs, "ray_session", session)
    with jobs.lazy_ray(RayConfig()):
        pass
    assert told == []
    with jobs.lazy_ray(RayConfig()):
        with jobs.lazy_ray(RayConfig()):
            jobs.ensure_ray()
            told.append("work")
        jobs.ensure_ray()
        told.append("more")
    assert told == ["start", "work", "more", "end"]
    with ExitStack() as other:
        with jobs.lazy_ray(RayConfig()):
            jobs.ensure_ray()
            other.enter_context(jobs.lazy_ray(RayConfig()))  # as a run in another thread does
        told.append("other")
    assert told[4:] == ["start", "other", "end"], "the session is not only the first block's"
    jobs.ensure_ray()  # outside, it is the caller's to have Ray
    assert told[-1] == "end"
