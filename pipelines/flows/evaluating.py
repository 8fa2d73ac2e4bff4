"""The flow that scores a policy: on demand, before a promotion, and nightly to detect regressions."""

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from infra.cluster.progress import Progress as Show
from infra.store import Store
from infra.tables.rows import ScoreRow
from infra.tables.runs import RunSummary
from memagent.config import Config
from memagent.tasks.suites import Suite
from pipelines.evaluate import compare, evaluate, same_before
from pipelines.flows import commands
from pipelines.flows.parameters import settings_for
from pipelines.flows.ray_job import JobProgress, artifact_key, stop_ray_job, work
from pipelines.report.evaluation import evaluation_page
from pipelines.run_names import new_run_id

NOISE = 0.05
"""Significance level of the paired test for a regression."""


@flow(name="evaluate-policy", on_cancellation=[stop_ray_job], on_crashed=[stop_ray_job], validate_parameters=True)
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
    with JobProgress(f"scores on {suite}") as show:
        summary = evaluate_stage(settings, chosen, tuple(texts or ()), run_id=new_run_id(), show=show)
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
        paired = compare(store, run_id, before).as_dict()
        summary["against"], summary["paired"] = {"run_id": before}, paired
        if paired["difference"] < 0 and paired["p"] < NOISE:
            regression = {**payload, "before": before, "paired": paired}
            emit_event(event="memagent.policy.fell", resource=resource, payload=regression)
    return {**summary, "report": address}
