"""Starting Ray where it is slow to start, and beside a SIGTERM handler of one's own; following a submitted job."""

import json
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import ray
from ray.job_submission import JobStatus

from infra import jobs
from infra.jobs import _own_termination, _start_ray, run_job
from memagent.config import Config, RayConfig
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

        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setattr(ray, "shutdown", lambda: called.append("shutdown"))
        return called

    return after


def test_a_start_that_came_too_late_is_tried_again(starts):
    called = starts(Exception("The current node timed out during startup."), TimeoutError("no socket"))
    _start_ray({})
    assert called == ["init", "shutdown", "init", "shutdown", "init"]


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


def test_a_termination_while_ray_starts_reaches_the_process_own_handler(monkeypatch):
    heard = []

    def init(**options):
        ray._private.utils.set_sigterm_handler(lambda signum, frame: pytest.fail("Ray's handler, not ours"))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    before = signal.signal(signal.SIGTERM, lambda signum, frame: heard.append(signum))
    try:
        with _own_termination():
            _start_ray({})
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM, signal.SIGTERM]
        ray._private.utils.set_sigterm_handler(signal.SIG_DFL)  # Ray's own again, once it has started
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ray_starts_when_it_is_first_needed_and_ends_with_the_outer_body(monkeypatch):
    told = []

    @contextmanager
    def session(config):
        told.append("start")
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        yield
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        told.append("end")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(jobs, "ray_session", session)
    with jobs.ray_when_needed(RayConfig()):
        pass
    assert told == []
    with jobs.ray_when_needed(RayConfig()):
        with jobs.ray_when_needed(RayConfig()):
            jobs.have_ray()
            told.append("work")
        jobs.have_ray()
        told.append("more")
    assert told == ["start", "work", "more", "end"]
    jobs.have_ray()  # outside, it is the caller's to have Ray
    assert told[-1] == "end"


class Cluster:
    """A Jobs API whose one job writes these texts, on connections that each end after some of them."""

    def __init__(self, texts, status="SUCCEEDED", exit_code=0, breaks=()):
        self.texts, self.breaks = texts, list(breaks)
        self.end = SimpleNamespace(status=JobStatus(status), driver_exit_code=exit_code, message="its message")
        self.ended = False
        self.submitted = None
        self.connections = 0

    def list_jobs(self):
        return []

    def submit_job(self, **job):
        self.submitted = job

    def get_job_status(self, submission):
        return self.end.status if self.ended else JobStatus.RUNNING

    def get_job_info(self, submission):
        return self.end

    async def tail_job_logs(self, submission):
        self.connections += 1
        for number, text in enumerate(self.texts):
            if self.breaks and number == self.breaks[0]:
                self.breaks.pop(0)
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield text
        self.ended = True


@pytest.fixture
def cluster(monkeypatch):
    def of(*args, **kwargs):
        made = Cluster(*args, **kwargs)
        monkeypatch.setattr(jobs, "_jobs_client", lambda address: made)
        monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.0)
        return made

    return of


FAR = Config(ray=RayConfig(jobs_address="http://far:8265"))


def test_a_jobs_output_is_followed_line_by_line_and_once(cluster):
    made = cluster(["one\ntw", "o\n", "three\nfour"], breaks=[1, 2])
    lines = []
    assert run_job(FAR, ["ask", "c"], "job", lines.append) == ""
    assert lines == ["one", "two", "three", "four"] and made.connections == 3
    assert made.submitted["entrypoint"].endswith("-m pipelines.cli ask c --json")


def test_an_operators_configuration_reaches_a_job_and_nothing_else_that_shows_it(cluster, monkeypatch):
    monkeypatch.setenv("MEMAGENT_CONFIG", '{"engine": {"base_url": "http://user:word@own/v1"}}')
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", "/own/file")
    made = cluster([])
    run_job(FAR, ["ask", "c"], "job", print)
    variables = made.submitted["runtime_env"]["env_vars"]
    assert json.loads(variables["MEMAGENT_CONFIG"])["ray"]["address"] == "auto"
    assert "MEMAGENT_CONFIG_FILE" not in variables
    assert "MEMAGENT_CONFIG" not in jobs.cluster_environment(RayConfig())["env_vars"]


def test_what_became_of_a_job_is_told_by_its_end_not_by_its_output(cluster):
    cluster(['{"run_id": "r"}\n'], "FAILED", exit_code=1)
    assert run_job(FAR, ["ask", "c"], "job", print) == '{"run_id": "r"}\n', "the run's row tells whether it is done"
    for status, code in (("FAILED", 2), ("FAILED", None), ("STOPPED", None), ("FAILED", -9)):
        cluster(['{"run_id": "r"}\n'], status, exit_code=code)
        with pytest.raises(MemagentError, match=rf'Ray job job ended as {status}: its message\n.*"run_id"'):
            run_job(FAR, ["ask", "c"], "job", print)


def test_a_job_whose_output_is_lost_still_comes_to_an_end(cluster):
    made = cluster(["one\n"], "FAILED", exit_code=None, breaks=[0])
    made.ended = True
    lines = []
    with pytest.raises(MemagentError, match="its message"):
        run_job(FAR, ["ask", "c"], "job", lines.append)
    assert "output is lost" in lines[-1]
