"""`memagent up`: deployments on a real Prefect server that run, tell, and can be cancelled."""

import json
import time

import psutil
import pytest

from infra.corpora import remember
from infra.jobs import _jobs_client
from infra.store import Store
from infra.tables import Table
from memagent.questions import ask
from tests.integration.flowing import QUESTION, Served

pytestmark = pytest.mark.slow
ENDED = {"CANCELLED", "CRASHED", "FAILED", "COMPLETED"}


def _parameters(corpus: str, folder: object, **more: object) -> list[str]:
    given = {"corpus": corpus, "questions": [QUESTION], "sources": [str(folder)], **more}
    pairs = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items())
    return [part for pair in pairs for part in ("--param", pair)]


def _begin(served: Served, *parameters: str, name: str = "answer-archive/bulk") -> str:
    """Start a run of a deployment and return its id."""
    deployment = served.ask(f"deployments/name/{name}")["id"]
    served.prefect("deployment", "run", name, *parameters)
    runs = served.ask(
        "flow_runs/filter",
        {"sort": "EXPECTED_START_TIME_DESC", "deployments": {"id": {"any_": [deployment]}}},
    )
    return str(runs[0]["id"])


def _wait(served: Served, run: str, states: set[str], seconds: float = 360) -> str:
    until = time.monotonic() + seconds
    while (state := str(served.ask(f"flow_runs/{run}")["state"]["type"])) not in states:
        assert time.monotonic() < until, f"the flow run is {state}, not one of {states}"
        time.sleep(0.5)
    return state


def test_a_bulk_run_answers_and_tells(served, archive):
    listed = served.prefect("deployment", "ls")
    assert "digest-corpus/nightly" in listed and "answer-archive/bulk" in listed
    ran = served.prefect("deployment", "run", "answer-archive/bulk", "--watch", *_parameters("c", archive))
    assert "Completed" in ran
    until = time.monotonic() + 30
    while True:  # events travel behind the run
        heard = served.ask("events/filter", {"filter": {"event": {"name": ["memagent.archive.answered"]}}})["events"]
        if heard or time.monotonic() > until:
            break
        time.sleep(0.5)
    (event,) = heard
    assert event["resource"]["prefect.resource.id"] == "memagent.corpus.c"
    assert event["payload"]["readings"]["read_now"] == event["payload"]["readings"]["found"] == 4
    answers = Table(Store(served.store), "answers").read("c")
    assert set(answers["run_id"].to_pylist()) == {event["payload"]["run_id"]} and answers.num_rows == 4


def test_cancelling_ends_the_work_in_process(served, archive, sets):
    slow = [*sets, "engine.scripted_delay=20"]
    run = _begin(served, *_parameters("slow", archive, sets=slow, store=served.store))
    _wait(served, run, {"RUNNING"})
    other = _begin(served, "--param", "corpus=c", name="harvest-qa/harvest")
    until = time.monotonic() + 240
    while not _rays(served):
        assert time.monotonic() < until, "Ray has not come up"
        time.sleep(0.5)
    time.sleep(5)
    assert _wait(served, other, {"SCHEDULED", "PENDING", "RUNNING"}) == "SCHEDULED", "two flows work at once"
    served.prefect("flow-run", "cancel", run)
    assert _wait(served, run, ENDED) == "CANCELLED"
    until = time.monotonic() + 90
    while left := _rays(served):
        assert time.monotonic() < until, f"Ray outlives its flow run: {left}"
        time.sleep(0.5)
    assert _wait(served, other, {"COMPLETED", "FAILED", "CRASHED"}) == "COMPLETED", "it waits, and is not lost"
    # What was read before is kept, and the next run goes on.
    ran = served.prefect(
        "deployment", "run", "answer-archive/bulk", "--watch", *_parameters("slow", archive, sets=sets)
    )
    assert "Completed" in ran
    assert Table(Store(served.store), "answers").read("slow").num_rows == 4


def test_cancelling_the_night_stops_the_ray_job_of_a_corpus(served, archive, sets, cluster):
    remember(Store(served.store), "far", sources=[str(archive)], questions=[ask(QUESTION)])
    slow = json.dumps([*sets, "engine.scripted_delay=20", f"ray.jobs_address={cluster}"])
    run = _begin(served, "--param", f"sets={slow}", name="digest-corpus/nightly")
    assert _jobs(cluster, run, ["RUNNING"], seconds=360) == ["RUNNING"]
    assert _cancel_while_it_reads(served, run) == "CANCELLED"
    assert _jobs(cluster, run, ["STOPPED"], seconds=60) == ["STOPPED"]
    (below,) = served.ask("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    assert _wait(served, below["id"], ENDED, seconds=60) in ("CANCELLED", "CRASHED")


def test_cancelling_a_bulk_run_stops_its_ray_job(served, archive, sets, cluster):
    slow = [*sets, "engine.scripted_delay=20", f"ray.jobs_address={cluster}"]
    run = _begin(served, *_parameters("distant", archive, sets=slow, store=served.store))
    reads = ["RUNNING", "SUCCEEDED"]  # documents come in by a job of their own
    assert _jobs(cluster, run, reads, seconds=360) == reads
    assert _cancel_while_it_reads(served, run) == "CANCELLED"
    stopped = ["STOPPED", "SUCCEEDED"]
    assert _jobs(cluster, run, stopped, seconds=60) == stopped


def _jobs(cluster: str, run: str, awaited: list[str], seconds: float) -> list[str]:
    """Return what has become of a flow run's Ray jobs, once it is what is awaited or the time is over."""
    client, until = _jobs_client(cluster), time.monotonic() + seconds
    while True:
        jobs = sorted(str(job.status) for job in client.list_jobs() if run in str(job.submission_id))
        if jobs == awaited or time.monotonic() > until:
            return jobs
        time.sleep(0.5)


def _cancel_while_it_reads(served: Served, run: str) -> str:
    """Cancel a flow run whose job has begun to read; return its last state."""
    time.sleep(5)
    served.prefect("flow-run", "cancel", run)
    return _wait(served, run, ENDED)


def _rays(served: Served) -> list[str]:
    """Return Ray's processes below `memagent up`; a driver's death may make them orphans, so by their store."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        if "raylet" in line and (process.info["environ"] or {}).get("PREFECT_API_URL") == served.api:
            found.append(line[:60])
    return found
