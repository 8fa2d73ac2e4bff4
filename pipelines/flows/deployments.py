"""The deployments that `memagent up` serves: flows with their schedules and triggers."""

from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import version
from typing import cast

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound

from pipelines.flows.answering import EVERY, answer_archive, digest_corpus, optimize_corpus
from pipelines.flows.learning import evaluate_policy, harvest_qa, retrain
from pipelines.flows.operating import reap, watch_schedule
from pipelines.flows.serve import ServingPlan

WATCH_EVERY = timedelta(minutes=5)
_WATCHED_LENGTHS = (8_000,)
_WATCHED_KINDS = ("niah_single_1", "niah_single_2", "niah_multikey_1")
_WATCHED_N = 20
"""The nightly evaluation is small, and reads again only if the policy or the reading config changed."""


def installed() -> dict[str, str]:
    """Print the installed version: the pull step of a deployment that needs only the installed package.

    Without a pull step, Prefect adds one that changes to the deployer's folder.
    """
    installed_version = version("memagent")
    print(f"memagent {installed_version}")
    return {"version": installed_version}


def serve_watch(store: str) -> None:
    """Serve the deployments that look for what went wrong and what was left behind, until terminated.

    By themselves, so that they run beside a digest: `serve_all` runs few flows at a time. What was left behind before
    is looked for at once: a flow run that was killed holds the place of its deployment's next one.
    """
    reap(return_state=True)  # one that fails keeps nothing else from being served
    watch = watch_schedule.to_deployment(
        "watch", interval=WATCH_EVERY, parameters={"store": store}, concurrency_limit=1
    )
    reaper = reap.to_deployment("reap", interval=WATCH_EVERY, concurrency_limit=1)
    serve(*cast(Iterable[RunnerDeployment], (watch, reaper)), limit=2, print_starting_message=False)


def serve_all(store: str, plan: ServingPlan) -> None:
    """Serve all deployments to the Prefect server of the environment, until terminated.

    The configuration also comes from the environment (`memagent.settings.environment`), since the server stores and
    shows the parameters of flow runs.

    At most `plan.at_once` flow runs work at the same time: an answering run and a training would compete for one
    machine's cores, and two engines do not fit one GPU.
    """
    common = {"store": store}
    digests = _schedules("digest-corpus/nightly", plan.cron, "0 2 * * *", plan.timezone)
    print(f"nightly digest: {', '.join(map(_shown, digests)) or 'not scheduled'}", flush=True)
    nightly = digest_corpus.to_deployment(
        "nightly", schedules=digests, parameters={"corpus": EVERY, **common}, concurrency_limit=1
    )
    bulk = answer_archive.to_deployment("bulk", parameters=common, concurrency_limit=1)
    scores = evaluate_policy.to_deployment(
        "scores",
        schedules=_schedules("evaluate-policy/scores", plan.scores_cron, "0 5 * * *", plan.timezone),
        parameters={"lengths": list(_WATCHED_LENGTHS), "kinds": list(_WATCHED_KINDS), "n": _WATCHED_N, **common},
        concurrency_limit=1,
    )
    answered = DeploymentEventTrigger(
        name="harvest what was answered",
        expect={"memagent.archive.answered", "memagent.corpus.digested"},
        parameters={"corpus": "{{ event.payload['corpus'] }}", "enough": plan.enough, **common},
    )
    harvested = harvest_qa.to_deployment(
        "harvest", triggers=[answered], parameters={"enough": plan.enough, **common}, concurrency_limit=1
    )
    learning = {"recipe": plan.recipe, "check": plan.check, **common}
    ready = DeploymentEventTrigger(
        name="retrain when enough is new",
        expect={"memagent.qa.enough"},
        parameters={"corpora": ["{{ event.payload['corpus'] }}"], **learning},
    )
    # At most one training at a time: a second one waits for the first.
    trained = retrain.to_deployment(
        "retrain",
        schedules=_schedules("retrain/retrain", plan.retrain_cron, None, plan.timezone),
        triggers=[ready],
        parameters=learning,
        concurrency_limit=1,
    )
    optimized = optimize_corpus.to_deployment(
        "optimize",
        schedules=_schedules("optimize-corpus/optimize", plan.optimize_cron, "0 4 * * *", plan.timezone),
        parameters={"corpus": EVERY, **common},
        concurrency_limit=1,
    )
    deployments = (nightly, bulk, scores, harvested, trained, optimized)
    serve(*cast(Iterable[RunnerDeployment], deployments), limit=plan.at_once, print_starting_message=False)


def _schedules(
    deployment: str, cron: str | None, first: str | None, timezone: str | None
) -> list[DeploymentScheduleCreate]:
    """Return the schedules that a deployment (flow and name) shall have: `cron` if given, else as they are at the
    server, cron lines among them in `timezone` if that is given. One that the server does not have yet gets the cron
    line `first`; None: no schedule.
    """
    with get_client(sync_client=True) as client:
        try:
            known = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            cron = cron or first
            return [_cron(cron, timezone)] if cron else []
        names = ("schedule", "active", "parameters", "slug")
        kept = [DeploymentScheduleCreate(**{name: getattr(one, name) for name in names}) for one in known.schedules]
        crons = [one.schedule for one in kept if isinstance(one.schedule, CronSchedule)]
        if cron is None:
            for schedule in crons:
                schedule.timezone = timezone or schedule.timezone
            return kept
        for one in known.schedules:  # one that has a slug would stay beside the new one
            client.delete_deployment_schedule(known.id, one.id)
    return [_cron(cron, timezone or (crons[0].timezone if crons else None))]


def _cron(cron: str, timezone: str | None) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone=timezone or "UTC"))


def _shown(one: DeploymentScheduleCreate) -> str:
    schedule = one.schedule
    when = f"{schedule.cron} {schedule.timezone}" if isinstance(schedule, CronSchedule) else str(schedule)
    return when if one.active else f"{when} (paused)"
