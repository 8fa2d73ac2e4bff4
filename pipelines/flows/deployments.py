"""The deployments that `memagent up` serves: what runs when, and what starts what."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, cast

from prefect import serve
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.schedules import Cron

from pipelines.flows.answering import EVERY, answer_archive, digest_corpus
from pipelines.flows.evaluating import evaluate_policy
from pipelines.flows.learning import harvest_qa, retrain

_WATCHED_LENGTHS = (8_000,)
_WATCHED_KINDS = ("niah_single_1", "niah_single_2", "niah_multikey_1")
_WATCHED_N = 20
"""The nightly scores: small, and read once; while policy and reading stay the same, nothing is read again."""


def installed() -> dict[str, str]:
    """Say which version a worker has: the step of a deployment that needs no code but the installed package.

    Prefect makes up a step that changes to the deployer's folder where a deployment has none.
    """
    found = version("memagent")
    print(f"memagent {found}")
    return {"version": found}


def serve_all(
    store: str,
    cron: str,
    scores_cron: str,
    timezone: str,
    recipe: str,
    retrain_cron: str | None,
    enough: int,
    gate: dict[str, Any],
    at_once: int,
) -> None:
    """Serve every deployment to the Prefect server of the environment, until terminated.

    The configuration is that of the environment as well (`memagent.settings.environment`): callers' parameters, which
    the server keeps and shows, add to it.

    Up to `at_once` flow runs work at the same time and the others wait: an answering run and a training would starve
    each other on one machine's cores, and two engines do not fit one GPU.
    """
    common = {"store": store}
    nightly = digest_corpus.to_deployment(
        "nightly",
        schedules=[Cron(cron, timezone=timezone)],
        parameters={"corpus": EVERY, **common},
        concurrency_limit=1,
    )
    bulk = answer_archive.to_deployment("bulk", parameters=common, concurrency_limit=1)
    scores = evaluate_policy.to_deployment(
        "scores",
        schedules=[Cron(scores_cron, timezone=timezone)],
        parameters={"lengths": list(_WATCHED_LENGTHS), "kinds": list(_WATCHED_KINDS), "n": _WATCHED_N, **common},
        concurrency_limit=1,
    )
    answered = DeploymentEventTrigger(
        name="harvest what was answered",
        expect={"memagent.archive.answered", "memagent.corpus.digested"},
        parameters={"corpus": "{{ event.payload['corpus'] }}", "enough": enough, **common},
    )
    harvested = harvest_qa.to_deployment(
        "harvest", triggers=[answered], parameters={"enough": enough, **common}, concurrency_limit=1
    )
    learning = {"recipe": recipe, "gate": gate, **common}
    ready = DeploymentEventTrigger(
        name="retrain when enough is new",
        expect={"memagent.qa.enough"},
        parameters={"corpora": ["{{ event.payload['corpus'] }}"], **learning},
    )
    # At most one training at a time: a second one waits for the first.
    trained = retrain.to_deployment(
        "retrain",
        schedules=[Cron(retrain_cron, timezone=timezone)] if retrain_cron else [],
        triggers=[ready],
        parameters=learning,
        concurrency_limit=1,
    )
    deployments = (nightly, bulk, scores, harvested, trained)
    serve(*cast(Iterable[RunnerDeployment], deployments), limit=at_once, print_starting_message=False)
