"""The flow that looks for nights which are late or went wrong. It runs beside them, and starts no Ray."""

from prefect import flow, get_run_logger, task
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.events.actions import SendNotification
from prefect.exceptions import ObjectNotFound

from infra.store import Corpus, Store
from infra.tables.corpora import corpora, standing_questions
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.flows.access import settings_for
from pipelines.nights import Notice, note_told, notices

EVENTS = tuple(f"memagent.night.{problem}" for problem in ("late", "failed", "half-answered", "held"))
_AUTOMATION = "memagent: nights that went wrong"
_SUBJECT = "memagent: {{ event.payload.corpus }}, night of {{ event.payload.night }}: {{ event.payload.problem }}"
_BODY = (
    "The night of {{ event.payload.night }} of corpus {{ event.payload.corpus }} is {{ event.payload.problem }}. "
    "See: memagent status {{ event.payload.corpus }} --nights 7"
)


@flow(name="watch-nights", validate_parameters=True)
def watch_nights(store: str | None = None, config: str | None = None, sets: list[str] | None = None) -> list[Notice]:
    """Emit an event for each night that is late, failed, half-answered or held, once; return what was told now.

    Where the operator names a notification block (``night.notify``), an automation of the server sends these events
    to it.
    """
    settings = settings_for(config, sets, store)
    wrong: UsageError | None = None
    if settings.night.notify:
        try:
            notify_stage(settings.night.notify)
        except UsageError as error:  # whoever listens to the events hears of them
            wrong = error
    told = [notice for corpus in _watched(settings) for notice in tell_stage(settings, corpus)]
    if wrong is not None:
        raise wrong
    return told


def _watched(settings: Config) -> list[str]:
    tables = Store(settings.store)
    return [name for name in corpora(tables) if standing_questions(Corpus(tables, name))]


@task(name="tell", cache_policy=NO_CACHE)
def tell_stage(settings: Config, name: str) -> list[Notice]:
    """Emit the events of a corpus's nights that were not told yet."""
    corpus = Corpus(Store(settings.store), name)
    found = notices(corpus, settings.night)
    for notice in found:
        night = notice["night"]
        emit_event(
            event=f"memagent.night.{notice['problem']}",
            resource={"prefect.resource.id": f"memagent.corpus.{name}", "prefect.resource.name": name},
            payload={**night, "corpus": name, "problem": notice["problem"]},
        )
        get_run_logger().warning("%s: the night of %s is %s", name, night["night"], notice["problem"])
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
                f"night.notify: the server has no block {block!r}: make it on the page of Prefect, under Blocks"
            ) from error
        action = SendNotification(block_document_id=document.id, subject=_SUBJECT, body=_BODY)
        trigger = EventTrigger(expect=set(EVENTS), posture=Posture.Reactive, threshold=1)
        wanted = AutomationCore(name=_AUTOMATION, trigger=trigger, actions=[action])
        known = client.read_automations_by_name(_AUTOMATION)
        if not known:
            client.create_automation(wanted)
        elif known[0].actions != [action] or getattr(known[0].trigger, "expect", set()) != trigger.expect:
            client.update_automation(known[0].id, wanted)
