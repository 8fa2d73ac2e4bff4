"""The flow that ends what was left behind: flow runs whose process is gone, and Ray jobs whose flow run is.

A runner marks the flow runs whose processes die while it lives; where both were killed nobody does, and the hooks that
would stop a Ray job do not run.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TypedDict, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from infra.cluster.jobs_api import open_jobs, stop_job
from infra.tables.claims import Heartbeat, is_gone
from memagent.config import load_config
from pipelines.flows.ray_job import LABEL, server

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GRACE = timedelta(minutes=1)
"""A job ends by itself shortly after its flow run."""


class Reaped(TypedDict):
    """What was left behind."""

    flow_runs: list[str]
    """Marked as crashed."""
    jobs: list[str]
    """Stopped."""


@flow(name="reap")
def reap() -> Reaped:
    """Mark running flow runs as crashed whose process has ended on this machine; stop Ray jobs whose flow run is over.

    Flow runs of other machines, and jobs of other Prefect servers, are left alone.
    """
    logger, address = get_run_logger(), load_config().ray.jobs_address  # a reserved key: no parameter sets it
    with get_client(sync_client=True) as client:
        crashed = [str(run.id) for run in _running(client) if _crash(client, run)]
        jobs = [job for job in open_jobs(address, server()) if _is_over(client, job)] if address else []
    for job in jobs:
        stop_job(str(address), job)
    for what, names in (("flow runs without a process", crashed), ("jobs without a flow run", jobs)):
        if names:
            logger.warning("%s: %s", what, ", ".join(names))
    return {"flow_runs": crashed, "jobs": jobs}


def _running(client: SyncPrefectClient) -> list[FlowRun]:
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING]))
    return list(client.read_flow_runs(flow_run_filter=FlowRunFilter(state=running)))


def _crash(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Mark a flow run as crashed if its process is gone."""
    signed = {key.removeprefix(LABEL): value for key, value in run.labels.items() if key.startswith(LABEL)}
    if signed.keys() != Heartbeat.__annotations__.keys() or not is_gone(cast(Heartbeat, signed)):
        return False
    client.set_flow_run_state(run.id, Crashed(message="its process is gone; the same command goes on with its work"))
    return True


def _is_over(client: SyncPrefectClient, job: str) -> bool:
    """Tell whether any of the flow runs that a job is of has ended some time ago, or is not known any more."""
    return any(_has_ended(client, UUID(name)) for name in _UUID.findall(job))


def _has_ended(client: SyncPrefectClient, flow_run: UUID) -> bool:
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return True
    return state is not None and state.is_final() and datetime.now(UTC) - state.timestamp > _GRACE
