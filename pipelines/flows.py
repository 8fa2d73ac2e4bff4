"""Prefect flows: thin. One task per stage; Ray does the work, Prefect owns schedule, retries and state.

A flow runs its Ray work in this process, or through a cluster's Jobs API where ``ray.jobs_address``
is configured. Module entrypoints: ``pipelines.flows.digest_corpus``, ``pipelines.flows.answer_archive``.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from infra.corpora import corpora, standing_questions
from infra.jobs import run_job, stop_job
from infra.store import Store
from infra.tables import Table
from memagent.config import Config, load_config
from memagent.errors import MemagentError
from memagent.questions import ask as make_question
from memagent.questions import load_questions
from pipelines import ask as stages
from pipelines.ingest import ingest
from pipelines.report import write_to_store
from pipelines.runs import new_run_id

EVERY = "*"
_PROGRESS_SECONDS = 3.0
_log = logging.getLogger("memagent.flows")


class FailedItems(MemagentError):
    """The run is complete and committed, and some of its items failed."""


def _stop_ray_job(flow: Any, flow_run: Any, state: Any) -> None:
    """On cancellation: end the Ray job that this flow run has submitted; its children survive a signal."""
    address = load_config(**_where(flow_run.parameters)).ray.jobs_address
    if address:
        stop_job(address, _submission(flow_run.id))


@flow(name="digest-corpus", on_cancellation=[_stop_ray_job], on_crashed=[_stop_ray_job], validate_parameters=True)
def digest_corpus(
    corpus: str = EVERY, store: str | None = None, config: str | None = None, sets: list[str] | None = None
) -> dict[str, Any]:
    """Bring a corpus and the answers to its standing questions up to date; ``*`` stands for every corpus.

    What is done is skipped, so late runs that start together cost nothing.
    """
    settings = load_config(config, sets, store=store)
    if corpus == EVERY:
        place = Store(settings.store)
        names = [name for name in corpora(place) if standing_questions(place, name)]
        return {name: digest_corpus(name, store, config, sets) for name in names}
    run_id = new_run_id()
    argv = ["digest", corpus, "--run-id", run_id]
    with _Progress(f"digest of {corpus}") as show:
        summary = digest_stage(
            settings, argv, run_id, lambda: stages.digest(corpus, None, settings, run_id=run_id, show=show)
        )
    return _publish(settings, summary, "memagent.corpus.digested")


@flow(name="answer-archive", on_cancellation=[_stop_ray_job], on_crashed=[_stop_ray_job], validate_parameters=True)
def answer_archive(
    corpus: str,
    questions: list[str] | None = None,
    questions_file: str | None = None,
    archive: bool = False,
    sources: list[str] | None = None,
    store: str | None = None,
    config: str | None = None,
    sets: list[str] | None = None,
) -> dict[str, Any]:
    """Answer questions over a corpus in bulk; `sources` are ingested first, where given."""
    settings = load_config(config, sets, store=store)
    asked = [make_question(text) for text in questions or []]
    asked += load_questions(questions_file) if questions_file else []
    run_id = new_run_id()
    if sources:
        ingest_stage(settings, corpus, sources, f"{run_id}-ingest")
    argv = ["ask", corpus, "--run-id", run_id, *(["--archive"] if archive else [])]
    argv += [part for text in questions or [] for part in ("-q", text)]
    argv += ["--questions", questions_file] if questions_file else []
    with _Progress(f"answers over {corpus}") as show:
        summary = answer_stage(
            settings,
            argv,
            run_id,
            lambda: stages.ask(corpus, asked, settings, archive=archive, run_id=run_id, show=show),
        )
    return _publish(settings, summary, "memagent.archive.answered")


@task(name="ingest", cache_policy=NO_CACHE)
def ingest_stage(settings: Config, corpus: str, sources: list[str], run_id: str) -> None:
    """Take sources into the corpus."""
    from infra.corpora import remember
    from infra.jobs import ray_session

    def here() -> dict[str, Any]:
        with ray_session(settings.ray):
            done = ingest(Store(settings.store), corpus, sources, settings, run_id).as_dict()
        remember(Store(settings.store), corpus, sources=sources)
        return done

    if settings.ray.jobs_address:
        _submit(settings, ["ingest", corpus, *sources], f"{_submission(runtime.flow_run.id)}-ingest")
    else:
        get_run_logger().info("ingested: %s", here())


@task(name="digest", cache_policy=NO_CACHE)
def digest_stage(settings: Config, argv: list[str], run_id: str, here: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Ingest, segment, plan and read what is new."""
    return _work(settings, argv, run_id, here)


@task(name="answer", cache_policy=NO_CACHE)
def answer_stage(settings: Config, argv: list[str], run_id: str, here: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Segment, plan and read."""
    return _work(settings, argv, run_id, here)


@task(name="publish", cache_policy=NO_CACHE)
def publish_stage(settings: Config, summary: dict[str, Any]) -> str:
    """Write the report and the artifacts; return the report's address."""
    address = write_to_store(Store(settings.store), summary["run_id"])
    key = _key(f"{summary['kind']}-{summary['corpus']}")
    readings = summary["readings"]
    rows = [{"count": name.replace("_", " "), "value": value} for name, value in readings.items()]
    rows += [{"count": name, "value": summary[name]} for name in ("documents", "segments", "conversations", "seconds")]
    rows += [
        {"count": score["metric"], "value": f"{score['value']:.3f} (n={score['n']})"}
        for score in summary["scores"] or []
    ]
    create_table_artifact(rows, key=f"{key}-summary", description=f"Run {summary['run_id']}")
    create_link_artifact(address, key=f"{key}-report", link_text=f"Report of run {summary['run_id']}")
    return address


def _publish(settings: Config, summary: dict[str, Any], event: str) -> dict[str, Any]:
    address = publish_stage(settings, summary)
    # After the commit: whoever hears of it finds the answers there.
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
            "scores": summary["scores"],
            "report": address,
        },
    )
    if summary["readings"]["failed"]:
        raise FailedItems(
            f"{summary['readings']['failed']} readings failed; the others are answered. Report: {address}. "
            f"See: memagent quarantine {summary['corpus']}"
        )
    return {**summary, "report": address}


def _work(settings: Config, argv: list[str], run_id: str, here: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not settings.ray.jobs_address:
        return here()
    _submit(settings, argv, _submission(runtime.flow_run.id))
    import pyarrow.compute as pc

    rows = Table(Store(settings.store), "runs").read(columns=["summary"], filters=pc.field("run_id") == run_id)
    if not rows.num_rows:
        raise MemagentError(f"the Ray job ended without run {run_id} in {settings.store}")
    summary: dict[str, Any] = json.loads(rows["summary"][0].as_py())
    return summary


def _submit(settings: Config, argv: list[str], submission: str) -> None:
    logger = get_run_logger()
    run_job(settings, argv, submission, lambda line: logger.info("%s", line))


class _Progress:
    """A Prefect progress artifact that follows a run's counts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._artifact: UUID | None = None
        self._last = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        created = create_progress_artifact(progress=0.0, key=_key(self._what), description=self._what)
        self._artifact = created if isinstance(created, UUID) else None
        return self.show

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._set(100.0)

    def show(self, counts: dict[str, Any]) -> None:
        """Take a snapshot of the run."""
        total = counts.get("segments_total")
        if total and time.monotonic() - self._last > _PROGRESS_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._last = time.monotonic()
                self._set(min(99.0, 100.0 * counts.get("segments", 0) / total))
            finally:
                self._lock.release()

    def _set(self, percent: float) -> None:
        if self._artifact is None:
            return
        try:
            update_progress_artifact(self._artifact, progress=percent)
        except Exception as error:  # a server that is away must not end a run of hours
            _log.warning("the progress artifact cannot be updated: %s", error)


def _where(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"path": parameters.get("config"), "sets": parameters.get("sets"), "store": parameters.get("store")}


def _submission(flow_run_id: object) -> str:
    return f"memagent-{flow_run_id}"


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
