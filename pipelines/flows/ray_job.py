"""Shared by the flows: running work here or as a Ray job, showing its progress, and stopping it."""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import Any, Self, TypeVar, cast
from uuid import UUID

from prefect import get_run_logger, runtime
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.settings import get_current_settings

from infra.cluster.session import run_job, stop_job
from infra.store.claims import this_process
from infra.store.location import Store
from infra.store.qa import HarvestSummary, TrainingSummary
from infra.store.runs import RunSummary, read_summary
from infra.system.logs import PRODUCT, JsonFormatter, redacted
from infra.system.processes import end_within, terminating
from memagent.config import Config, LoggingConfig, load_config
from memagent.errors import MemagentError
from memagent.records import Progress as Show
from memagent.records import ProgressCounts

_PROGRESS_SECONDS = 3.0
LABEL = "memagent."
"""Begins the labels of a flow run that name its process (`infra.store.claims.Heartbeat`)."""
_REASON = 300
"""Characters of an error in an artifact."""
_log = logging.getLogger("memagent.flows")
Summary = TypeVar("Summary", RunSummary, HarvestSummary, TrainingSummary)


Result = TypeVar("Result")
_LOOK_SECONDS = 0.2
_STOP_SECONDS, _END_SECONDS = 2.0, 1.5
"""For work that was cancelled: to write what it has, and for Prefect to end the process then."""
watcher: ContextVar[Show | None] = ContextVar("watcher", default=None)
"""Also receives the progress counts: the terminal display of a flow that is run by hand."""


class FailedItems(MemagentError):
    """The run is complete and committed, and some of its items failed."""


def sign(flow: Any, flow_run: Any, state: Any) -> None:
    """When a flow run begins, note at the server which process works on it, so that `reap` knows if that is gone."""
    labels: dict[str, Any] = {f"{LABEL}{key}": value for key, value in this_process().items()}
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(flow_run.id, labels)
    except Exception as error:  # an unreachable server must not end a long run
        _log.warning("the flow run is not signed: %s: %s", type(error).__name__, error)


def stop_ray_job(flow: Any, flow_run: Any, state: Any) -> None:
    """On cancellation, stop the Ray jobs of this flow run and its subflows, which a signal to the process would not."""
    address = load_config().ray.jobs_address  # a reserved key, so no parameter sets it
    if address:
        stop_job(address, str(flow_run.id))


WATCHED: dict[str, Any] = {"on_running": [sign], "on_cancellation": [stop_ray_job], "on_crashed": [stop_ray_job]}
"""Hooks of a flow whose work may be a Ray job, and whose process may be killed."""


def work(settings: Config, argv: list[str], run_id: str, local: Callable[[], Summary]) -> Summary:
    """Run a stage here, or as a Ray job where a cluster's Jobs API is configured; return the run's summary."""
    if not settings.ray.jobs_address:
        with FlowLog(settings.logging):
            return here(local)
    output = submit(settings, argv, submission())
    found = read_summary(Store(settings.store), run_id)
    if found is None:
        raise MemagentError(f"the Ray job ended without run {run_id} in {settings.store}: {output}")
    return cast(Summary, found)


def here(local: Callable[[], Result]) -> Result:
    """Run work in a thread, and end it, and soon this process, when Prefect cancels the flow run.

    Prefect raises an exception in the main thread where SIGTERM comes. Ray would catch it there as an error of a job
    that is to be tried again, and Prefect kill the process half a minute later.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(local())
        except BaseException as error:
            done.set_exception(error)

    thread = Thread(target=copy_context().run, args=(run,), name="memagent flow", daemon=True)
    try:
        thread.start()
        while not done.done():  # a signal just before a wait without end would not be seen
            wait([done], _LOOK_SECONDS)
    except BaseException as error:
        terminating.set()
        if isinstance(error, TerminationSignal):
            wait([done], _STOP_SECONDS)
            end_within(_END_SECONDS)
        else:  # by Ctrl-C: what called the flow goes on
            done.add_done_callback(lambda _: terminating.clear())
        raise
    return done.result()


def submit(settings: Config, argv: list[str], submission: str) -> str:
    """Run a command as a Ray job and log its output; return the last lines of it."""
    logger = get_run_logger()
    return run_job(settings, argv, submission, lambda line: logger.info("%s", line), owner=server())


def server() -> str:
    """Return a name for the Prefect server of this process, by which it knows its Ray jobs."""
    url = str(get_current_settings().api.url or "")
    local = not url or any(f"//{name}" in url for name in ("127.0.0.1", "localhost", "[::1]"))
    return f"{url}@{socket.gethostname()}" if local else url


class FlowLog(logging.Handler):
    """Passes the product's lines on to this flow run's log while its body runs; those of a Ray job come by `submit`."""

    def __init__(self, config: LoggingConfig) -> None:
        super().__init__(config.level.upper())
        # By the flow's own logger: a run logs from threads, too, in which Prefect finds no flow run.
        self._logger = get_run_logger()
        self._json = JsonFormatter() if config.format == "json" else None

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a line of the product."""
        if record.name.startswith(PRODUCT):
            text = self._json.format(record) if self._json else redacted(record.getMessage())
            self._logger.log(record.levelno, "%s", text)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


class JobProgress:
    """A Prefect progress artifact that follows a run's counts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._artifact: UUID | None = None
        self._last = 0.0
        self._reached = 0.0
        """Percent of the segments."""
        self.unread = 0
        """Readings that a spent budget left."""
        self._lock = threading.Lock()
        self._watcher = watcher.get()

    def __enter__(self) -> Self:
        created = create_progress_artifact(progress=0.0, key=artifact_key(self._what), description=self._what)
        self._artifact = created if isinstance(created, UUID) else None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        why = f"{self.unread:,} readings left: the budget is spent" if self.unread else ""
        if kind is not None:
            why = f"{kind.__name__}: " + str(error).partition("\n")[0][:_REASON]
        if why:  # how far it came, and why no further
            self._set(self._reached, f"{self._what}: stopped at {self._reached:.0f}% ({why})")
        else:
            self._set(100.0)

    def show(self, counts: ProgressCounts) -> None:
        """Take the newest counts of the run."""
        if self._watcher is not None:
            self._watcher(counts)
        total = counts.get("segments_total")
        if total:
            self._reached = min(99.0, 100.0 * counts.get("segments", 0) / total)
        if total and time.monotonic() - self._last > _PROGRESS_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._last = time.monotonic()
                self._set(self._reached)
            finally:
                self._lock.release()

    def _set(self, percent: float, description: str | None = None) -> None:
        if self._artifact is None:
            return
        try:
            update_progress_artifact(self._artifact, progress=percent, description=description)
        except Exception as error:  # an unreachable server must not end a long run
            _log.warning("the progress artifact cannot be updated: %s", error)


def submission() -> str:
    """Return the Ray job's name: the ids of the root flow run and this one, so that cancelling either stops it."""
    root, current = runtime.flow_run.root_flow_run_id, runtime.flow_run.id
    return f"memagent-{current}" if root == current else f"memagent-{root}-{current}"


def artifact_key(text: str) -> str:
    """Return a Prefect artifact key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
