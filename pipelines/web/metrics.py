"""The metrics of a store for Prometheus: ``/metrics``, to whoever has the token."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.store.claims import is_alive
from infra.store.delta import Table
from infra.store.location import Store
from infra.store.runs import last_snapshot
from infra.store.schemas import RunRow, now
from memagent.config import Config
from memagent.records import Json
from pipelines.web.access import bears
from pipelines.web.address import Address, auth_string, token_file, token_in
from pipelines.web.server import ServerPart

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DAYS = 30
"""Runs that began so many days before the exporter count, too."""
_FRESH_SECONDS = 5.0
"""Scrapes within so many seconds get the same numbers."""


class _Family(NamedTuple):
    """A metric; all have the labels corpus and kind of run, and `label` besides."""

    help: str
    label: str = ""
    gauge: bool = False


_ENDED = "memagent_run_ended_timestamp_seconds"
FAMILIES = {
    "memagent_readings_answered": _Family("Readings that ended with an answer"),
    "memagent_failures": _Family("Readings that failed, by reason", "reason"),
    "memagent_documents_read": _Family("Documents of which a reading was done"),
    "memagent_segments": _Family("Segments read"),
    "memagent_conversations": _Family("Conversations with the engines"),
    "memagent_prompt_tokens": _Family("Tokens of prompts, those from the cache included"),
    "memagent_cached_tokens": _Family("Tokens of prompts that came from an engine's prefix cache"),
    "memagent_completion_tokens": _Family("Tokens that the engines wrote"),
    "memagent_memories_cut": _Family("Memory updates that were cut off, repeated themselves or were empty"),
    "memagent_engine_deaths": _Family("Engines that died"),
    "memagent_engine_seconds": _Family("Seconds that engines were up, summed over engines"),
    "memagent_gpu_seconds": _Family("The same times the GPUs of an engine (pool.gpus)"),
    "memagent_ingested_documents": _Family("Documents and new versions that digests took in"),
    "memagent_ingested_sources": _Family("Sources that digests saw, by result", "result"),
    "memagent_segmented_documents": _Family("Documents cut into segments"),
    "memagent_training_steps": _Family("Updates of trainings"),
    "memagent_runs": _Family("Runs that ended, by status", "status"),
    "memagent_run_seconds": _Family("Seconds that ended runs took"),
    "memagent_stage_seconds": _Family("Seconds that ended runs took, by stage", "stage"),
    "memagent_runs_open": _Family("Runs that have not ended: running, or stopped", "status", gauge=True),
    "memagent_engines_up": _Family("Engines that are up", gauge=True),
    "memagent_readings_in_flight": _Family("Readings in progress", gauge=True),
    "memagent_readings_queued": _Family("Readings that wait for an engine", gauge=True),
    "memagent_segments_left": _Family("Segments that running runs have not read yet", gauge=True),
    _ENDED: _Family("When the last run ended, by status", "status", gauge=True),
}
_COUNTED = {
    "memagent_documents_read": ("documents_read", "documents"),
    "memagent_segments": ("segments", "segments"),
    "memagent_conversations": ("conversations", "conversations"),
    "memagent_prompt_tokens": ("prompt_tokens", "prompt_tokens"),
    "memagent_cached_tokens": ("cached_tokens", "cached_tokens"),
    "memagent_completion_tokens": ("output_tokens", "output_tokens"),
    "memagent_memories_cut": ("memories_cut", "memories_cut"),
    "memagent_engine_deaths": ("engine_deaths", "engine_deaths"),
}
"""Counters whose number stands as it is in a summary and in a snapshot, and its key in each."""
_SOURCES = ("new", "changed", "unchanged", "failed")
_Sample = tuple[str, str, str, str]
"""Metric, corpus, kind, and the value of its further label."""
_Count = tuple[str, str, float]
"""Metric, the value of its further label, and what a run adds to it."""


class StoreCollector(Collector):
    """Collects the metrics of all corpora of a store."""

    def __init__(self, store: Store, days: float = DAYS) -> None:
        """Count the runs that began in the last `days` before now, and all later ones."""
        self._store, self._table = store, Table(store, "runs")
        self._since: datetime = now() - timedelta(days=days)
        self._ended: set[str] = set()
        self._done: defaultdict[_Sample, float] = defaultdict(float)
        self._newest: dict[_Sample, float] = {}
        """Both of the runs in `_ended`: no number of theirs changes any more."""
        self._fresh: tuple[float, Mapping[_Sample, float]] | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. A store that cannot be read raises, and the scrape fails."""
        with self._lock:
            if self._fresh is None or time.monotonic() - self._fresh[0] > _FRESH_SECONDS:
                self._fresh = (time.monotonic(), self._read())
            values = self._fresh[1]
        for name, family in FAMILIES.items():
            labels = ["corpus", "kind", *([family.label] if family.label else [])]
            metric = (GaugeMetricFamily if family.gauge else CounterMetricFamily)(name, family.help, labels=labels)
            for sample in sorted(sample for sample in values if sample[0] == name):
                metric.add_metric(list(sample[1 : len(labels) + 1]), values[sample])
            yield metric

    def _read(self) -> Mapping[_Sample, float]:
        columns = ["corpus", "run_id", "kind", "status", "started_at", "ended_at", "config", "summary"]
        known = pc.field("run_id").isin(pa.array(sorted(self._ended), pa.string()))
        rows: list[RunRow] = self._table.read(
            None, columns, (pc.field("started_at") >= pa.scalar(self._since)) & ~known
        ).to_pylist()
        for row in rows:
            if row["status"] != "running":
                _add(self._done, row, self._closed(row))
                self._ended.add(row["run_id"])
                if row["ended_at"] is not None:
                    last = (_ENDED, row["corpus"], row["kind"], row["status"])
                    self._newest[last] = max(row["ended_at"].timestamp(), self._newest.get(last, 0.0))
        total = defaultdict(float, self._done)
        for row in rows:
            if row["status"] == "running":
                alive = is_alive(self._store, row["run_id"])
                _add(total, row, _open(row, last_snapshot(self._store, row["run_id"]), alive=alive))
        return {**total, **self._newest}

    def _closed(self, row: RunRow) -> Iterator[_Count]:
        """Yield the counts of a run that ended; of one that was broken off, its last snapshot's."""
        yield "memagent_runs", row["status"], 1
        if row["status"] == "stopped":
            yield from _counted(row, last_snapshot(self._store, row["run_id"]))
        else:
            yield from _summarised(row, json.loads(row["summary"] or "{}"))


def _add(total: defaultdict[_Sample, float], row: RunRow, counts: Iterable[_Count]) -> None:
    for name, label, value in counts:
        total[name, row["corpus"], row["kind"], label] += value


def _open(row: RunRow, snapshot: Json, *, alive: bool) -> Iterator[_Count]:
    yield from _counted(row, snapshot)
    yield "memagent_runs_open", "running" if alive else "stopped", 1
    if alive:
        doing = snapshot.get("in_flight", 0)
        queued = snapshot.get("readings_total", 0) - snapshot.get("readings", 0) - doing
        left = snapshot.get("segments_total", 0) - snapshot.get("segments", 0)
        yield "memagent_engines_up", "", snapshot.get("engines", 0)
        yield "memagent_readings_in_flight", "", doing
        yield "memagent_readings_queued", "", max(0, queued)
        yield "memagent_segments_left", "", max(0, left)


def _counted(row: RunRow, snapshot: Json) -> Iterator[_Count]:
    """Yield what a run has done by its newest snapshot."""
    yield from ((name, "", snapshot.get(key, 0)) for name, (_, key) in _COUNTED.items())
    yield "memagent_readings_answered", "", snapshot.get("readings", 0) - snapshot.get("failures", 0)
    yield from _common(row, snapshot, snapshot.get("engine_milliseconds", 0) / 1000)


def _summarised(row: RunRow, summary: Json) -> Iterator[_Count]:
    """Yield what a run has done by its summary; those of harvests and trainings have other keys."""
    yield from ((name, "", summary.get(key, 0)) for name, (key, _) in _COUNTED.items())
    yield "memagent_readings_answered", "", summary.get("readings", {}).get("read_now", 0)
    yield from _common(row, summary, summary.get("engine_uptime", 0.0))
    ingested = summary.get("ingest", {})
    yield "memagent_ingested_documents", "", ingested.get("documents", 0)
    yield from (("memagent_ingested_sources", result, ingested.get(result, 0)) for result in _SOURCES)
    yield "memagent_segmented_documents", "", summary.get("segmented", {}).get("documents", 0)
    yield "memagent_training_steps", "", summary.get("steps", 0)
    yield "memagent_run_seconds", "", summary.get("seconds", 0.0)
    yield from (("memagent_stage_seconds", *stage) for stage in summary.get("stage_seconds", {}).items())


def _common(row: RunRow, counts: Json, engine_seconds: float) -> Iterator[_Count]:
    gpus = json.loads(row["config"] or "{}").get("pool", {}).get("gpus", 0)
    yield from (("memagent_failures", *reason) for reason in counts.get("failures_by_reason", {}).items())
    yield "memagent_engine_seconds", "", engine_seconds
    yield "memagent_gpu_seconds", "", engine_seconds * gpus


def metrics_part(config: Config, address: Address, given: Path | None = None, days: float = DAYS) -> ServerPart:
    """Return the part of a server that Prometheus scrapes, with the runs that began so many days ago.

    A scrape must show the token that the file `given` has, as a mounted secret does; by default one of this user's,
    made if it is missing.

    Raises UsageError: there is no such file, or no token in it.
    """
    collector, file = StoreCollector(Store(config.store), days), given or token_file("metrics")

    def token() -> str:
        """Read the token anew each time: one that is replaced is void."""
        return token_in(file) if given else auth_string(file)

    async def scrape(request: Request) -> Response:
        if not bears(request.headers, token()):
            return PlainTextResponse("give the token", 401, headers={"WWW-Authenticate": "Bearer"})
        return Response(await run_in_threadpool(generate_latest, collector), media_type=_TYPE)

    token()
    told = f"metrics: {address.local}/metrics   store: {config.store}   token: {file}"
    return ServerPart([Route("/metrics", scrape)], lambda: [told])
