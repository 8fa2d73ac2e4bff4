"""The flow that looks for scheduled runs which are late or went wrong. It runs beside them, and starts no Ray."""

from prefect import flow, get_run_logger, task
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.events.actions import SendNotification
from prefect.exceptions import ObjectNotFound

from infra.store import Corpus, Store
from infra.tables.corpora import corpora, default_questions
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.flows.parameters import settings_for
from pipelines.schedule import Notice, note_told, notices

EVENTS = tuple(f"memagent.schedule.{problem}" for problem in ("late", "failed", "half-answered", "withheld"))
_AUTOMATION = "memagent: scheduled runs that went wrong"
_SUBJECT = "memagent: {{ event.payload.corpus }}, run of {{ event.payload.date }}: {{ event.payload.problem }}"
_BODY = (
    "The run of {{ event.payload.date }} of corpus {{ event.payload.corpus }} is {{ event.payload.problem }}. "
    "See: memagent status {{ event.payload.corpus }} --scheduled 7"
)


@flow(name="watch-schedule", validate_parameters=True)
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
    told = [notice for corpus in _watched(settings) for notice in tell_stage(settings, corpus)]
    if wrong is not None:
        raise wrong
    return told


def _watched(settings: Config) -> list[str]:
    tables = Store(settings.store)
    return [name for name in corpora(tables) if default_questions(Corpus(tables, name))]


@task(name="tell", cache_policy=NO_CACHE)
def tell_stage(settings: Config, name: str) -> list[Notice]:
    """Emit the events of a corpus's scheduled runs that were not told yet."""
    corpus = Corpus(Store(settings.store), name)
    found = notices(corpus, settings.schedule)
    for notice in found:
        scheduled = notice["run"]
        emit_event(
            event=f"memagent.schedule.{notice['problem']}",
            resource={"prefect.resource.id": f"memagent.corpus.{name}", "prefect.resource.name": name},
            payload={**scheduled, "corpus": name, "problem": notice["problem"]},
        )
        get_run_logger().warning("%s: the scheduled run of %s is %s", name, scheduled["date"], notice["problem"])
        note_told(notice, corpus)  # after the event: one that is told twice is better than one that is lost
    return found


@task(name="notify", cache_policy=NO_CACHE)
def notify_stage(block: str) -> None:
    """Have the server send the events to a notification block, by an automation, which is made or brought up to date.

    Raises:
        UsageError: there is no such block.
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
