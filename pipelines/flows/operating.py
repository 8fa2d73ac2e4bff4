"""The flow that ends what was left behind: flow runs whose process is gone, and Ray jobs whose flow run is.

A runner marks the flow runs whose processes die while it lives; where both were killed nobody does, and the hooks that
would stop a Ray job do not run.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TypedDict, cast
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import emit_event
from prefect.events.actions import SendNotification
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from infra.cluster.session import open_jobs, stop_job
from infra.store.claims import Heartbeat, is_gone
from infra.store.corpora import corpora, default_questions
from infra.store.location import Corpus, Store
from memagent.config import Config, load_config
from memagent.errors import UsageError
from pipelines.flows.parameters import settings_for
from pipelines.flows.ray_job import LABEL, server, sign
from pipelines.schedule import Notice, note_told, notices

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GRACE = timedelta(minutes=1)
"""A job ends by itself shortly after its flow run."""
_PENDING = timedelta(minutes=10)
"""Within which a flow run that `memagent up` has taken begins, on a busy machine, too."""


class Reaped(TypedDict):
    """What was left behind."""

    flow_runs: list[str]
    """Marked as crashed."""
    jobs: list[str]
    """Stopped."""


@flow(name="reap", on_running=[sign])
def reap() -> Reaped:
    """Mark flow runs as crashed whose process has ended on this machine, or that were never begun; stop Ray jobs whose
    flow run is over.

    Running flow runs of other machines, flow runs of work pools, and jobs of other Prefect servers are left alone.
    """
    logger, address = get_run_logger(), load_config().ray.jobs_address  # a reserved key: no parameter sets it
    with get_client(sync_client=True) as client:
        crashed = [str(run.id) for run in _begun(client) if _crash(client, run)]
        known = open_jobs(address, server()) if address else ()
        jobs = [job for job in known if any(_has_ended(client, UUID(name)) for name in _UUID.findall(job))]
    for job in jobs:
        stop_job(str(address), job)
    for what, names in (("flow runs without a process", crashed), ("jobs without a flow run", jobs)):
        if names:
            logger.warning("%s: %s", what, ", ".join(names))
    return {"flow_runs": crashed, "jobs": jobs}


def _begun(client: SyncPrefectClient) -> list[FlowRun]:
    states = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    begun = FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
    return list(client.read_flow_runs(flow_run_filter=FlowRunFilter(state=begun)))


def _crash(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Mark a flow run as crashed if its process is gone, or what should have started one was killed before it did."""
    if run.state is not None and run.state.type == StateType.PENDING:
        served = run.deployment_id is not None and run.work_pool_name is None
        if not served or datetime.now(UTC) - run.state.timestamp < _PENDING:
            return False
        client.set_flow_run_state(run.id, Crashed(message="it was never begun: what starts it was killed"), force=True)
        return True
    signed = {key.removeprefix(LABEL): value for key, value in run.labels.items() if key.startswith(LABEL)}
    if signed.keys() != Heartbeat.__annotations__.keys() or not is_gone(cast(Heartbeat, signed)):
        return False
    client.set_flow_run_state(run.id, Crashed(message="its process is gone; the same command goes on with its work"))
    return True


def _has_ended(client: SyncPrefectClient, flow_run: UUID) -> bool:
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return True
    return state is not None and state.is_final() and datetime.now(UTC) - state.timestamp > _GRACE


EVENTS = tuple(f"memagent.quality.schedule.{problem}" for problem in ("late", "failed", "half-answered", "withheld"))
_AUTOMATION = "memagent: scheduled runs that went wrong"
_SUBJECT = "memagent: {{ event.payload.corpus }}, run of {{ event.payload.date }}: {{ event.payload.problem }}"
_BODY = (
    "The run of {{ event.payload.date }} of corpus {{ event.payload.corpus }} is {{ event.payload.problem }}. "
    "See: memagent status {{ event.payload.corpus }} --scheduled 7"
)


@flow(name="watch-schedule", on_running=[sign], validate_parameters=True)
def watch_schedule(store: str | None = None, config: str | None = None, sets: list[str] | None = None) -> list[Notice]:
    """Emit an event, once, for each scheduled run that is late, failed, half-answered or withheld; return the new ones.

    Where the operator names a notification block (``schedule.notify``), an automation of the server sends these events
    to it.
    """
    settings = settings_for(config, sets, store)
    wrong: UsageError | None = None
    if settings.schedule.notify:
        try:
            notify_stage(settings.schedule.notify)
        except UsageError as error:  # whoever listens to the events hears of them
            wrong = error
    tables = Store(settings.store)
    watched = [name for name in corpora(tables) if default_questions(Corpus(tables, name))]
    told = [notice for corpus in watched for notice in tell_stage(settings, corpus)]
    if wrong is not None:
        raise wrong
    return told


@task(name="tell", cache_policy=NO_CACHE)
def tell_stage(settings: Config, name: str) -> list[Notice]:
    """Emit the events of a corpus's scheduled runs that were not told yet."""
    corpus = Corpus(Store(settings.store), name)
    found = notices(corpus, settings.schedule)
    for notice in found:
        scheduled = notice["run"]
        emit_event(
            event=f"memagent.quality.schedule.{notice['problem']}",
            resource={"prefect.resource.id": f"memagent.corpus.{name}", "prefect.resource.name": name},
            payload={**scheduled, "corpus": name, "problem": notice["problem"]},
        )
        get_run_logger().warning("%s: the scheduled run of %s is %s", name, scheduled["date"], notice["problem"])
        note_told(notice, corpus)  # after the event: one that is told twice is better than one that is lost
    return found


@task(name="notify", cache_policy=NO_CACHE)
def notify_stage(block: str) -> None:
    """Have the server send the events to a notification block, by an automation, which is made or brought up to date.

    Raises UsageError: there is no such block.
    """
    kind, name = block.split("/")
    with get_client(sync_client=True) as client:
        try:
            document = client.read_block_document_by_name(name, kind)
        except ObjectNotFound as error:
            raise UsageError(
                f"schedule.notify: the server has no block {block!r}: make it on the page of Prefect, under Blocks"
            ) from error
        action = SendNotification(block_document_id=document.id, subject=_SUBJECT, body=_BODY)
        trigger = EventTrigger(expect=set(EVENTS), posture=Posture.Reactive, threshold=1)
        wanted = AutomationCore(name=_AUTOMATION, trigger=trigger, actions=[action])
        known = client.read_automations_by_name(_AUTOMATION)
        if not known:
            client.create_automation(wanted)
        elif known[0].actions != [action] or getattr(known[0].trigger, "expect", set()) != trigger.expect:
            client.update_automation(known[0].id, wanted)
