"""Following a job that was submitted to a cluster."""

import json
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from infra.cluster import session as jobs_api
from infra.cluster.session import cluster_environment, run_job
from memagent.config import Config, RayConfig
from memagent.errors import MemagentError


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
        monkeypatch.setattr(jobs_api, "_jobs_client", lambda address: made)
        monkeypatch.setattr(jobs_api, "_POLL_SECONDS", 0.0)
        return made

    return of


FAR = Config(ray=RayConfig(jobs_address="http://far:8265"))


def test_a_jobs_output_is_followed_line_by_line_and_once(cluster):
    made = cluster(["one\ntw", "o\n", "three\nfour"], breaks=[1, 2])
    lines = []
    assert run_job(FAR, ["ask", "c"], "job", lines.append) == ""
    assert lines == ["one", "two", "three", "four"] and made.connections == 3
    assert made.submitted["entrypoint"].endswith("-m memagent ask c")


def test_an_operators_configuration_reaches_a_job_and_nothing_else_that_shows_it(cluster, monkeypatch):
    monkeypatch.setenv("MEMAGENT_CONFIG", '{"engine": {"base_url": "http://user:word@own/v1"}}')
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", "/own/file")
    made = cluster([])
    run_job(FAR, ["ask", "c"], "job", print)
    variables = made.submitted["runtime_env"]["env_vars"]
    assert json.loads(variables["MEMAGENT_CONFIG"])["ray"]["address"] == "auto"
    assert "MEMAGENT_CONFIG_FILE" not in variables
    assert "MEMAGENT_CONFIG" not in cluster_environment(RayConfig())["env_vars"]


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


def test_a_driver_has_its_memory_asked_for(cluster):
    head = cluster(["done\n"])
    run_job(FAR, ["digest", "c"], "one", lambda line: None)
    assert (head.submitted["entrypoint_num_cpus"], head.submitted["entrypoint_memory"]) == (None, None)
    worker = cluster(["done\n"])
    far = FAR.model_copy(update={"ray": RayConfig(jobs_address="http://far:8265", job_cpus=1, job_memory_gib=3)})
    run_job(far, ["digest", "c"], "two", lambda line: None)
    assert (worker.submitted["entrypoint_num_cpus"], worker.submitted["entrypoint_memory"]) == (1, 3 * 2**30)
