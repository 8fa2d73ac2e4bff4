"""The learning flows: harvest after each answering run, and retrain when enough rows are new."""

import json
from collections.abc import Sequence
from typing import Any, cast

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.policies import policy
from infra.store.qa import HarvestSummary, TrainingSummary, count_new, qa_corpora
from infra.store.runs import RunSummary, new_run_id
from infra.store.schemas import POLICIES_OF, ScoreRow
from memagent.config import Config, validate
from memagent.errors import MemagentError
from memagent.evaluation.suites import Suite
from memagent.records import Json
from memagent.records import Progress as Show
from memagent.rl.config import load_recipe
from memagent.rl.promotion import PromotionSpec
from memagent.settings import as_settings, environment
from pipelines.evaluate import compare, evaluate, same_before
from pipelines.flows import parameters as commands
from pipelines.flows.lineage import learns_from, note_lineage, of_harvest, of_training
from pipelines.flows.parameters import check as check_access
from pipelines.flows.parameters import settings_for
from pipelines.flows.ray_job import WATCHED, JobProgress, artifact_key, here, submission, submit, work
from pipelines.harvest import NOTHING, HarvestOptions, NothingToHarvest, harvest
from pipelines.promote import PromotionRecord, run_promotion
from pipelines.report.evaluation import evaluation_page
from pipelines.training.run import train
from pipelines.training.settings import TrainingRun, named, prepare

NOISE = 0.05
"""Significance level of the paired test for a regression."""


@flow(name="evaluate-policy", **WATCHED, validate_parameters=True)
def evaluate_policy(
    suite: str = "needles",
    kinds: list[str] | None = None,
    lengths: list[int] | None = None,
    n: int = 100,
    seed: int = 0,
    data: list[str] | None = None,
    texts: list[str] | None = None,
    control: str | None = None,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
) -> RunSummary:
    """Score the configured policy on a suite; emit an event, and another if the score fell significantly.

    The scores are compared with the last evaluation of a policy of the same name on the same samples.
    """
    settings = settings_for(config, sets, store)
    chosen = Suite(
        suite,  # type: ignore[arg-type]
        kinds=tuple(kinds or ()),
        lengths=tuple(lengths or ()),
        n=n,
        seed=seed,
        data=tuple(data or ()),
        control=control,  # type: ignore[arg-type]
    )
    chosen.check()
    with JobProgress(f"scores on {suite}") as progress:
        summary = evaluate_stage(settings, chosen, tuple(texts or ()), run_id=new_run_id(), show=progress.show)
    return _publish(settings, summary)


@task(name="evaluate", cache_policy=NO_CACHE)
def evaluate_stage(settings: Config, suite: Suite, texts: tuple[str, ...], run_id: str, show: Show) -> RunSummary:
    """Make the samples, read them and score the answers."""
    argv = commands.evaluate(suite, texts, run_id)
    return work(settings, argv, run_id, lambda: evaluate(suite, settings, texts=texts, run_id=run_id, show=show))


@task(name="publish-scores", cache_policy=NO_CACHE)
def _report(settings: Config, run_id: str, rows: list[ScoreRow], suite: str) -> str:
    store = Store(settings.store)
    address = store.write_bytes(evaluation_page(store, run_id).encode(), "runs", run_id, "evaluation.html")
    shown = ("task", "length", "metric", "n", "failed")
    table = [
        {**{name: value for name, value in row.items() if name in shown}, "value": f"{row['value']:.3f}"}
        for row in rows
    ]
    create_table_artifact(table, key=artifact_key(f"scores-{suite}"), description=f"Evaluation {run_id}: {address}")
    return address


def _publish(settings: Config, summary: RunSummary) -> RunSummary:
    store, run_id = Store(settings.store), summary["run_id"]
    rows, before = same_before(store, run_id)
    address = _report(settings, run_id, rows, rows[0]["suite"])
    payload = {"run_id": run_id, "suite": rows[0]["suite"], "policy_id": rows[0]["policy_id"], "report": address}
    resource = {"prefect.resource.id": f"memagent.policy.{artifact_key(str(rows[0]['policy_id']))}"}
    # After the commit, so that receivers of the event see the scores.
    emit_event(event="memagent.policy.evaluated", resource=resource, payload=payload)
    if before is not None:
        paired = compare(store, run_id, before)
        summary["against"], summary["paired"] = {"run_id": before}, paired
        if paired["difference"] < 0 and paired["p"] < NOISE:
            regression = {**payload, "before": before, "paired": paired}
            emit_event(event="memagent.policy.fell", resource=resource, payload=regression)
    return {**summary, "report": address}


ENOUGH = 500
"""New harvested rows that start a training."""
_EVENT_KEYS = ("run_id", "parent", "candidate", "steps", "best_step", "data_version")
"""Keys of the training summary in an event's payload."""
_NO_CODE = "engine.trust_remote_code=false"
"""The learner loads no model that needs remote code, so the rollout engines need none either."""
_OVER_RECIPES = ("engine", "pool", "reading")


@flow(name="harvest-qa", **WATCHED, validate_parameters=True)
def harvest_qa(
    corpus: str,
    enough: int = ENOUGH,
    samples: int = 0,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
) -> dict[str, Any]:
    """Update a corpus's training rows; emit an event when `enough` rows are new since the last training."""
    settings = settings_for(config, sets, store)
    run_id = new_run_id()
    summary = harvest_stage(settings, corpus, samples, run_id)
    if isinstance(summary, str):
        return {"corpus": corpus, "rows": 0, "waiting": 0, "nothing": summary}
    tables = Store(settings.store)
    note_lineage(tables, of_harvest(summary))
    waiting = _waiting(tables)
    resource = {"prefect.resource.id": f"memagent.corpus.{corpus}", "prefect.resource.name": corpus}
    payload = {"run_id": run_id, "corpus": corpus, "new": summary["new"], "waiting": waiting, "enough": enough}
    emit_event(event="memagent.qa.harvested", resource=resource, payload=payload)
    if waiting >= enough:
        # After the commit, so that the training which this starts sees the rows.
        emit_event(event="memagent.qa.enough", resource={"prefect.resource.id": "memagent.qa"}, payload=payload)
    return {**summary, "waiting": waiting}


@flow(name="retrain", **WATCHED, validate_parameters=True)
def retrain(
    recipe: str = "nano-cpu",
    data: list[str] | None = None,
    texts: list[str] | None = None,
    corpora: list[str] | None = None,
    check: dict[str, Any] | None = None,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
    run_name: str = "",
) -> dict[str, Any]:
    """Train a stage, compare its candidate with the promoted policy, and promote or refuse it.

    Args:
        recipe: a shipped recipe or a TOML file.
        data: datasets; by default the harvested rows.
        texts: files and folders whose text the needles are planted in.
        corpora: corpora whose promotion questions the check asks.
        check: keys of `memagent.rl.promotion.PromotionSpec`.
        store: the store.
        config: configuration file of the evaluation.
        sets: ``section.key=value`` strings, for recipe and configuration alike.
        run_name: name of the training; the same name goes on where it stopped, and takes no other recipe or data.
    """
    wanted = load_recipe(recipe, [item for item in sets or [] if TrainingRun.is_recipe(item)])
    check_access(config, sets, wanted.engine, wanted.reward.weights)
    # Wrong keys fail before hours of training.
    spec = validate(PromotionSpec, {"corpora": tuple(corpora or ()), **(check or {})}, "check.")
    over = [*_operator_settings(), *(sets or []), _NO_CODE]
    run = named(prepare(recipe, data or ["qa"], texts or [], store=store, sets=over), run_name)
    summary = train_stage(run)
    tables, candidate = Store(run.config.store), summary["candidate"]
    note_lineage(tables, of_training(tables, summary))
    resource = {"prefect.resource.id": f"memagent.policy.{artifact_key(candidate or summary['parent'])}"}
    facts = {name: value for name, value in summary.items() if name in _EVENT_KEYS}
    emit_event(event="memagent.policy.trained", resource=resource, payload=facts)
    if not candidate:
        return {
            **summary,
            "promoted": False,
            "reason": "nothing was better on validation than what training began with",
        }
    settings = run.reading_config(config)
    earlier = policy(tables, candidate)
    if earlier["status"] != "candidate":  # the same data and recipe as in a run before: nothing was trained
        return {
            **summary,
            "promoted": earlier["status"] == "promoted",
            "reason": f"decided before ({earlier['status']}): {earlier['reason']}",
        }
    record = promotion_stage(settings, candidate, spec)
    event = "memagent.policy.promoted" if record["promoted"] else "memagent.policy.refused"
    emit_event(event=event, resource=resource, payload={**facts, "reason": record["reason"]})
    return {**summary, "promoted": record["promoted"], "reason": record["reason"]}


@task(name="harvest", cache_policy=NO_CACHE)
def harvest_stage(settings: Config, corpus: str, samples: int, run_id: str) -> HarvestSummary | str:
    """Make training rows from answers; return a sentence where there is nothing to make them from.

    That is how most scheduled runs are, until somebody corrects an answer: no failure of this task.
    """
    argv = commands.harvest(corpus, samples, run_id)
    try:
        return work(settings, argv, run_id, lambda: harvest(corpus, settings, HarvestOptions(samples), run_id))
    except MemagentError as error:
        # Of a Ray job only its output comes back.
        if not isinstance(error, NothingToHarvest) and NOTHING not in str(error):
            raise
        get_run_logger().info("nothing to harvest in %s: %s", corpus, error)
        return str(error)


@task(name="train", cache_policy=NO_CACHE)
def train_stage(run: TrainingRun) -> TrainingSummary:
    """Train; an interrupted run is resumed."""
    summary = work(run.config, commands.train(run), run.run_id, lambda: train(run))
    shown = ("steps", "best_step", "candidate", "parent")
    rows = [{"what": name, "value": str(value)} for name, value in summary.items() if name in shown]
    create_table_artifact(rows, key=artifact_key(summary["run_id"]), description=f"Training {summary['run_id']}")
    return summary


@task(name="promotion", cache_policy=NO_CACHE)
def promotion_stage(settings: Config, candidate: str, spec: PromotionSpec) -> PromotionRecord:
    """Compare, and promote or refuse; on a cluster in a separate job, where both versions read."""
    record = _compare(settings, candidate, spec)
    rows = [dict(row) for row in (record["overall"], *record["groups"])]
    create_table_artifact(rows, key=artifact_key(f"promotion-{candidate}"), description=record["reason"])
    return record


def _compare(settings: Config, candidate: str, spec: PromotionSpec) -> PromotionRecord:
    if not settings.ray.jobs_address:
        return here(lambda: run_promotion(settings, candidate, spec=spec))
    store = Store(settings.store)
    earlier = policy(store, candidate)["promotion"]
    output = submit(settings, commands.promote(candidate, spec), f"{submission()}-promotion")
    decided = policy(store, candidate)["promotion"]
    if not decided or decided == earlier:
        raise MemagentError(f"the Ray job ended without a decision on {candidate}: {output}")
    return cast(PromotionRecord, decided)


def _operator_settings() -> list[str]:
    """Return the operator's settings that override recipes, as ``section.key=value`` strings."""
    configured = environment()
    sections = {name: dict(configured[name]) for name in _OVER_RECIPES if name in configured}
    for key in ("base_url", "api_key_env"):  # unused in training, and a URL may hold a password
        sections.get("engine", {}).pop(key, None)
    return list(as_settings(sections))


def _waiting(store: Store) -> int:
    """Return the number of harvested rows that no training has had: of each corpus, those since the last one on it."""
    rows = Table(store, "runs").read(POLICIES_OF, ["kind", "summary"]).to_pylist()
    trainings = [json.loads(row["summary"]) for row in rows if row["kind"] == "train"]
    return sum(count_new(store, _trained_version(trainings, corpus), corpus) for corpus in qa_corpora(store))


def _trained_version(trainings: Sequence[Json], corpus: str) -> int | None:
    """Return the newest version of the `qa` table of which a corpus's rows were trained on.

    Trainings on other data (needles, another corpus) do not count, nor do those that learnt from recorded rollouts.
    """
    versions = [
        summary["data_version"]
        for summary in trainings
        if learns_from(summary["data"], corpus) and not summary["run_id"].endswith("-replay")
    ]
    return max((version for version in versions if version is not None), default=None)
