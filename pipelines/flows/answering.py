"""The flows that read: the nightly digest and bulk answering."""

from collections.abc import Callable
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.states import Completed

from infra.store.corpora import corpora, default_questions
from infra.store.documents import has_documents
from infra.store.location import Corpus, Store
from infra.store.runs import IngestSummary, RunSummary, new_run_id
from memagent.config import Config
from memagent.errors import MemagentError, UsageError
from memagent.questions import ask as make_question
from pipelines import ask as stages
from pipelines.flows import parameters as commands
from pipelines.flows.lineage import note_lineage, of_reading
from pipelines.flows.parameters import settings_for
from pipelines.flows.ray_job import WATCHED, FailedItems, JobProgress, artifact_key, here, submission, submit, work
from pipelines.operate.optimize import RETENTION_DAYS, optimize
from pipelines.report.page import write_to_store
from pipelines.runs import kept_ingest
from pipelines.stages.ingest import ingest
from pipelines.views.formatting import breached, failures, status_of, withheld_by

EVERY = "*"


@flow(name="digest-corpus", **WATCHED, validate_parameters=True)
def digest_corpus(
    corpus: str = EVERY, store: str | None = None, config: str | None = None, sets: list[str] | None = None
) -> RunSummary | dict[str, RunSummary] | State[Any]:
    """Update a corpus and the answers to its default questions; ``*`` is every corpus.

    Finished work is skipped, so late runs that start together cost nothing. A failed corpus does not stop the others.
    """
    settings = settings_for(config, sets, store)
    if corpus == EVERY:
        tables = Store(settings.store)
        names = [name for name in corpora(tables) if default_questions(Corpus(tables, name))]
        return _summaries({name: digest_corpus(name, store, config, sets, return_state=True) for name in names})
    run_id = new_run_id()
    argv = commands.digest(corpus, run_id)
    with JobProgress(f"digest of {corpus}") as progress:
        summary = digest_stage(
            settings, argv, run_id, lambda: stages.digest(corpus, None, settings, run_id=run_id, show=progress.show)
        )
        progress.unread = summary["readings"].get("unread", 0)
    event = "memagent.corpus.withheld" if withheld_by(summary) else "memagent.corpus.digested"
    return _publish(settings, summary, event)


def _summaries(states: dict[str, State[Any]]) -> dict[str, RunSummary] | State[dict[str, RunSummary]]:
    failed = {name: state.message for name, state in states.items() if not state.is_completed()}
    if failed:
        messages = "; ".join(f"{name}: {message}" for name, message in failed.items())
        raise FailedItems(f"{len(failed)} of {len(states)} corpora failed, the others are up to date. {messages}")
    results = {name: state.result() for name, state in states.items()}
    warned = {name: state for name, state in states.items() if state.name != "Completed"}
    if not warned:
        return results
    messages = "; ".join(f"{name}: {state.message}" for name, state in warned.items())
    return Completed(name=next(iter(warned.values())).name, message=messages, data=results)


@flow(name="answer-archive", **WATCHED, validate_parameters=True)
def answer_archive(
    corpus: str,
    questions: list[str] | None = None,
    questions_file: str | None = None,
    archive: bool = False,
    sources: list[str] | None = None,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
) -> RunSummary | State[RunSummary]:
    """Answer questions over a corpus in bulk; `sources`, if given, are ingested first."""
    settings = settings_for(config, sets, store)
    asked = [make_question(text, f"questions[{number}]") for number, text in enumerate(questions or [])]
    asked += stages.read_questions(questions_file) if questions_file else []
    if not asked:
        raise UsageError("no question: give questions, or questions_file")
    run_id = new_run_id()
    if sources:
        ingest_stage(settings, corpus, sources, run_id)
    on_cluster = bool(settings.ray.jobs_address)
    kept = stages.store_questions(Store(settings.store), run_id, asked) if on_cluster else ""
    argv = commands.ask(corpus, run_id, kept, archive)
    with JobProgress(f"answers over {corpus}") as progress:
        summary = answer_stage(
            settings,
            argv,
            run_id,
            lambda: stages.ask(corpus, asked, settings, archive=archive, run_id=run_id, show=progress.show),
        )
        progress.unread = summary["readings"].get("unread", 0)
    return _publish(settings, summary, "memagent.archive.answered")


@flow(name="optimize-corpus", **WATCHED, validate_parameters=True)
def optimize_corpus(
    corpus: str = EVERY,
    retention_days: float = RETENTION_DAYS,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
) -> None:
    """Compact a corpus's files, and delete files that were replaced; ``*`` is every corpus."""
    settings = settings_for(config, sets, store)
    tables = Store(settings.store)
    every = [name for name in corpora(tables) if has_documents(Corpus(tables, name))]
    for name in every if corpus == EVERY else [corpus]:
        optimize_stage(settings, name, retention_days)


@task(name="optimize", cache_policy=NO_CACHE)
def optimize_stage(settings: Config, corpus: str, retention_days: float) -> None:
    """Compact a corpus's files."""
    if settings.ray.jobs_address:
        submit(settings, commands.optimize(corpus, retention_days), f"{submission()}-optimize-{corpus}")
        return
    summary = here(lambda: optimize(corpus, settings, retention_days=retention_days))
    get_run_logger().info("%s: %d files before, %d now", corpus, summary["files_before"], summary["files_after"])


@task(name="ingest", cache_policy=NO_CACHE)
def ingest_stage(settings: Config, corpus: str, sources: list[str], run_id: str) -> IngestSummary:
    """Ingest sources; return the ingest's summary."""
    from infra.cluster.session import lazy_ray
    from infra.store.corpora import remember

    tables = Store(settings.store)
    if settings.ray.jobs_address:
        output = submit(settings, commands.ingest(corpus, sources, run_id), f"{submission()}-ingest")
        summary = kept_ingest(tables, run_id)
        if summary is None:
            raise MemagentError(f"the Ray job ended before all sources were seen: {output}")
        return summary

    def run() -> IngestSummary:
        with lazy_ray(settings.ray):
            return ingest(Corpus(tables, corpus), sources, settings, run_id)

    summary = here(run)
    remember(Corpus(tables, corpus), sources=sources)
    get_run_logger().info("ingested: %s", summary)
    return summary


@task(name="digest", cache_policy=NO_CACHE)
def digest_stage(settings: Config, argv: list[str], run_id: str, local: Callable[[], RunSummary]) -> RunSummary:
    """Ingest, segment, plan and read new documents."""
    return work(settings, argv, run_id, local)


@task(name="answer", cache_policy=NO_CACHE)
def answer_stage(settings: Config, argv: list[str], run_id: str, local: Callable[[], RunSummary]) -> RunSummary:
    """Segment, plan and read."""
    return work(settings, argv, run_id, local)


@task(name="publish", cache_policy=NO_CACHE)
def publish_stage(settings: Config, summary: RunSummary) -> str:
    """Write the report and the artifacts; return the report's path or URL."""
    address = write_to_store(Store(settings.store), summary["run_id"])
    key = artifact_key(f"{summary['kind']}-{summary['corpus']}")
    readings = summary["readings"]
    rows: list[dict[str, object]] = [{"count": name.replace("_", " "), "value": n} for name, n in readings.items()]
    shown = ("documents", "segments", "conversations", "seconds")
    rows += [{"count": name, "value": value} for name, value in summary.items() if name in shown]
    rows += [
        {"count": score["metric"], "value": f"{score['value']:.3f} (n={score['n']})"}
        for score in summary["scores"] or []
    ]
    rows += [{"count": f"failed, {reason}", "value": count} for reason, count in failures(summary).items()]
    create_table_artifact(rows, key=f"{key}-summary", description=f"Run {summary['run_id']}")
    create_markdown_artifact(_where(address, summary["run_id"]), key=f"{key}-report")
    note_lineage(Store(settings.store), of_reading(summary))
    return address


def _where(address: str, run_id: str) -> str:
    """Say where a report is and how it is opened: a page of a server may not open a file or ``s3://`` by a link."""
    return f"Report of run {run_id}: `{address}`\n\nOpen it by `memagent report {run_id} --open`"


def _publish(settings: Config, summary: RunSummary, event: str) -> RunSummary | State[RunSummary]:
    """Publish a run; return its summary, in a state that says so where it is paused or completed with warnings.

    Raises FailedItems: the run has failed, or is withheld.
    """
    address = publish_stage(settings, summary)
    # After the commit, so that receivers of the event see the answers.
    emit_event(
        event=event,
        resource={
            "prefect.resource.id": f"memagent.corpus.{summary['corpus']}",
            "prefect.resource.name": summary["corpus"],
        },
        payload={
            "run_id": summary["run_id"],
            "corpus": summary["corpus"],
            "readings": summary["readings"],
            "failures": failures(summary),
            "unread": summary["readings"].get("unread", 0),
            "breaches": breached(summary),
            "scores": summary["scores"],
            "report": address,
        },
    )
    failed, result = failures(summary), RunSummary(**{**summary, "report": address})
    status, unread = status_of(summary), summary["readings"].get("unread", 0)
    if withheld_by(summary):
        reasons = "; ".join(breached(summary))
        left = f" {unread:,} left: the budget is spent." if unread else ""
        raise FailedItems(
            f"the digest is withheld, the last good one's answers are shown: {reasons}. Report: {address}.{left} "
            f"Accept it by memagent release {summary['run_id']}"
        )
    if status == "completed":
        return result
    reasons = ", ".join(f"{count} {reason}" for reason, count in failed.items())
    told = [f"{unread:,} left: the budget is spent, and the same run again goes on with them"] if unread else []
    told += [f"{sum(failed.values())} failed ({reasons})"] if failed else []
    see = f" See: memagent quarantine {summary['corpus']}" if failed else ""
    said = f"{'; '.join(told)}; the others are answered. Report: {address}.{see}"
    if status == "failed":
        raise FailedItems(said)
    get_run_logger().warning("%s", said)
    return Completed(name=status.capitalize(), message=said, data=result)
