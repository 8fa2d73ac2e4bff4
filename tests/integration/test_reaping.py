"""What was left behind is found and ended: flow runs without a process, Ray jobs without a flow run."""

import json
import time

import pytest

from infra.cluster.session import _jobs_client, open_jobs
from infra.store.claims import is_gone, this_process
from tests.integration.test_flows import in_python

LEFT = """
import json, os, sys, uuid
os.environ["MEMAGENT_CONFIG"] = json.dumps({config})
import pipelines  # first: it says how long Prefect's server may take to start
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Running
from infra.store.claims import this_process
from pipelines.flows.ray_job import LABEL, server
from pipelines.flows.operating import reap
@flow
def work():
    pass
here = this_process()
kinds = {{"gone": {{**here, "process": 2**22 + 1}}, "alive": here, "elsewhere": {{**here, "host": "x", "process": 1}}}}
with get_client(sync_client=True) as client:
    runs = {{kind: client.create_flow_run(work, state=Running()).id for kind in [*kinds, "unsigned"]}}
    for kind, process in kinds.items():
        client.update_flow_run_labels(runs[kind], {{f"{{LABEL}}{{key}}": value for key, value in process.items()}})
{before}
    reaped = reap()
    states = {{kind: client.read_flow_run(run).state.type.value for kind, run in runs.items()}}
names = {{str(run): kind for kind, run in runs.items()}}
print(json.dumps([states, [names[run] for run in reaped["flow_runs"] if run in names], reaped["jobs"]]))
"""
JOBS = """
    from infra.cluster.session import _jobs_client
    jobs = _jobs_client({address!r})
    def left(flow_run, owner):
        name = f"memagent-{{flow_run}}-{{uuid.uuid4().hex[:6]}}"
        jobs.submit_job(submission_id=name, entrypoint="sleep 600", metadata={{"memagent.owner": owner}})
        return name
    unknown = uuid.uuid4()
    made = [left(runs["alive"], server()), left(unknown, server()), left(unknown, "another server")]
    print(json.dumps(made))
"""


def test_a_process_is_gone_only_where_that_is_known():
    local = this_process()
    assert not is_gone(local)
    assert is_gone({**local, "started": local["started"] + 1}), "its number was given to another one"
    assert not is_gone({**local, "host": "another machine", "process": 2**22 + 1})


def test_flow_runs_whose_process_is_gone_are_marked(tmp_path, prefect_server):
    out = in_python(LEFT.format(config={"store": str(tmp_path / "store")}, before=""), tmp_path, **prefect_server)
    states, marked, jobs = json.loads(out.splitlines()[-1])
    assert states == {"gone": "CRASHED", "alive": "RUNNING", "elsewhere": "RUNNING", "unsigned": "RUNNING"}
    assert marked == ["gone"] and jobs == []


PENDING = """
import json, uuid
from datetime import timedelta
import pipelines
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Pending
from infra.store.claims import this_process
from pipelines.flows import operating
from pipelines.flows.ray_job import LABEL
@flow
def work():
    pass
served = operating.watch_schedule.to_deployment(f"served-{uuid.uuid4().hex[:6]}", concurrency_limit=1).apply()
with get_client(sync_client=True) as client:
    taken = client.create_flow_run_from_deployment(served, state=Pending()).id
    by_hand = client.create_flow_run(work, state=Pending()).id
    def seen():
        reaped = operating.reap()["flow_runs"]
        states = [client.read_flow_run(run).state.type.value for run in (taken, by_hand)]
        return [states, str(taken) in reaped, client.read_deployment(served).global_concurrency_limit.active_slots]
    young = seen()
    operating._PENDING = timedelta(0)
    old = seen()
    operating.watch_schedule()
    (watch,) = client.read_flow_runs(limit=1, sort="START_TIME_DESC")
signed = {key.removeprefix(LABEL): value for key, value in watch.labels.items() if key.startswith(LABEL)}
print(json.dumps([young, old, signed == this_process()]))
"""


def test_a_flow_run_that_was_taken_and_never_begun_gives_its_place_back(tmp_path, prefect_server):
    out = in_python(PENDING, tmp_path, MEMAGENT_STORE=str(tmp_path / "store"), **prefect_server)
    young, old, signed = json.loads(out.splitlines()[-1])
    assert young[:2] == [["PENDING", "PENDING"], False]
    assert old == [["CRASHED", "PENDING"], True, 0], "one that was begun by hand is nobody's to end"
    assert signed, "each flow run names its process as soon as it runs"


@pytest.mark.slow
def test_jobs_whose_flow_run_is_gone_are_stopped(tmp_path, cluster, prefect_server):
    config = {"store": str(tmp_path / "store"), "ray": {"jobs_address": cluster}}
    code = LEFT.format(config=config, before=JOBS.format(address=cluster))
    out = in_python(code, tmp_path, **prefect_server).splitlines()
    (of_alive, of_unknown, of_another), (_, _, stopped) = json.loads(out[-2]), json.loads(out[-1])
    assert stopped == [of_unknown]
    client = _jobs_client(cluster)
    until = time.monotonic() + 120
    while not client.get_job_status(of_unknown).is_terminal():
        assert time.monotonic() < until
        time.sleep(0.5)
    assert not client.get_job_status(of_alive).is_terminal() and open_jobs(cluster, "another server") == [of_another]
    for job in (of_alive, of_another):
        client.stop_job(job)
