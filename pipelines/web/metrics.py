"""The metrics of a store for Prometheus: ``/metrics``, to whoever has the token."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from infra.store.delta import Table, now
from infra.store.location import Store
from infra.store.rows import RunRow
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
    "memagent_run_ended_timestamp_seconds": _Family("When the last run ended, by status", "status", gauge=True),
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


@dataclass(slots=True)
class _Sum:
    """Samples of one run or of many."""

    counts: defaultdict[_Sample, float] = field(default_factory=lambda: defaultdict(float))
    newest: dict[_Sample, float] = field(default_factory=dict)
    """Gauges of which the highest counts."""

    def __iadd__(self, other: "_Sum") -> "_Sum":
        for sample, value in other.counts.items():
            self.counts[sample] += value
        for sample, moment in other.newest.items():
            self.newest[sample] = max(moment, self.newest.get(sample, 0.0))
        return self


class StoreCollector(Collector):
    """Collects the metrics of all corpora of a store."""

    def __init__(self, store: Store, days: float = DAYS) -> None:
        """Count the runs that began in the last `days` before now, and all later ones."""
        self._store, self._table = store, Table(store, "runs")
        self._since: datetime = now() - timedelta(days=days)
        self._ended: set[str] = set()
        self._done = _Sum()
        """Of the runs in `_ended`: no number of theirs changes any more."""
        self._fresh: tuple[float, _Sum] | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. A store that cannot be read raises, and the scrape fails."""
        with self._lock:
            if self._fresh is None or time.monotonic() - self._fresh[0] > _FRESH_SECONDS:
                self._fresh = (time.monotonic(), self._read())
            total = self._fresh[1]
        values: Mapping[_Sample, float] = {**total.counts, **total.newest}
        for name, family in FAMILIES.items():
            labels = ["corpus", "kind", *([family.label] if family.label else [])]
            metric = (GaugeMetricFamily if family.gauge else CounterMetricFamily)(name, family.help, labels=labels)
            for sample in sorted(sample for sample in values if sample[0] == name):
                metric.add_metric(list(sample[1 : len(labels) + 1]), values[sample])
            yield metric

    def _read(self) -> _Sum:
        columns = ["corpus", "run_id", "kind", "status", "started_at", "ended_at", "config", "summary"]
        known = pc.field("run_id").isin(pa.array(sorted(self._ended), pa.string()))
        rows: list[RunRow] = self._table.read(
            None, columns, (pc.field("started_at") >= pa.scalar(self._since)) & ~known
        ).to_pylist()
        open_runs = _Sum()
        for row in rows:
            if row["status"] == "running":
                open_runs += _open(row, self._snapshot(row), alive=is_alive(self._store, row["run_id"]))
            else:
                self._done += self._closed(row)
                self._ended.add(row["run_id"])
        open_runs += self._done
        return open_runs

    def _closed(self, row: RunRow) -> _Sum:
        """Return the samples of a run that ended; of one that was broken off, its last snapshot's."""
        if row["status"] == "stopped":
            total = _counted(row, self._snapshot(row))
        else:
            total = _summarised(row, json.loads(row["summary"] or "{}"))
        total.counts["memagent_runs", row["corpus"], row["kind"], row["status"]] += 1
        if row["ended_at"] is not None:
            last = ("memagent_run_ended_timestamp_seconds", row["corpus"], row["kind"], row["status"])
            total.newest[last] = row["ended_at"].timestamp()
        return total

    def _snapshot(self, row: RunRow) -> Json:
        try:
            lines = self._store.read_bytes("runs", row["run_id"], "progress.jsonl").splitlines()
        except FileNotFoundError:  # it has not come to reading
            return {}
        return dict(json.loads(lines[-1])) if lines else {}


def _open(row: RunRow, snapshot: Json, *, alive: bool) -> _Sum:
    """Return the samples of a run that has not ended."""
    total, corpus, kind = _counted(row, snapshot), row["corpus"], row["kind"]
    total.counts["memagent_runs_open", corpus, kind, "running" if alive else "stopped"] += 1
    if alive:
        doing = snapshot.get("in_flight", 0)
        queued = snapshot.get("readings_total", 0) - snapshot.get("readings", 0) - doing
        left = snapshot.get("segments_total", 0) - snapshot.get("segments", 0)
        total.counts["memagent_engines_up", corpus, kind, ""] += snapshot.get("engines", 0)
        total.counts["memagent_readings_in_flight", corpus, kind, ""] += doing
        total.counts["memagent_readings_queued", corpus, kind, ""] += max(0, queued)
        total.counts["memagent_segments_left", corpus, kind, ""] += max(0, left)
    return total


def _counted(row: RunRow, snapshot: Json) -> _Sum:
    """Return what a run has done by its newest snapshot."""
    total, corpus, kind = _Sum(), row["corpus"], row["kind"]
    for name, (_, key) in _COUNTED.items():
        total.counts[name, corpus, kind, ""] += snapshot.get(key, 0)
    answered = snapshot.get("readings", 0) - snapshot.get("failures", 0)
    total.counts["memagent_readings_answered", corpus, kind, ""] += answered
    for reason, count in snapshot.get("failures_by_reason", {}).items():
        total.counts["memagent_failures", corpus, kind, reason] += count
    _add_engine_time(total, row, snapshot.get("engine_milliseconds", 0) / 1000)
    return total


def _summarised(row: RunRow, summary: Json) -> _Sum:
    """Return what a run has done by its summary; those of harvests and trainings have other keys."""
    total, corpus, kind = _Sum(), row["corpus"], row["kind"]
    for name, (key, _) in _COUNTED.items():
        total.counts[name, corpus, kind, ""] += summary.get(key, 0)
    total.counts["memagent_readings_answered", corpus, kind, ""] += summary.get("readings", {}).get("read_now", 0)
    for reason, count in summary.get("failures_by_reason", {}).items():
        total.counts["memagent_failures", corpus, kind, reason] += count
    _add_engine_time(total, row, summary.get("engine_uptime", 0.0))
    ingested = summary.get("ingest", {})
    total.counts["memagent_ingested_documents", corpus, kind, ""] += ingested.get("documents", 0)
    for result in _SOURCES:
        total.counts["memagent_ingested_sources", corpus, kind, result] += ingested.get(result, 0)
    total.counts["memagent_segmented_documents", corpus, kind, ""] += summary.get("segmented", {}).get("documents", 0)
    total.counts["memagent_training_steps", corpus, kind, ""] += summary.get("steps", 0)
    total.counts["memagent_run_seconds", corpus, kind, ""] += summary.get("seconds", 0.0)
    for stage, seconds in summary.get("stage_seconds", {}).items():
        total.counts["memagent_stage_seconds", corpus, kind, stage] += seconds
    return total


def _add_engine_time(total: _Sum, row: RunRow, seconds: float) -> None:
    gpus = json.loads(row["config"] or "{}").get("pool", {}).get("gpus", 0)
    total.counts["memagent_engine_seconds", row["corpus"], row["kind"], ""] += seconds
    total.counts["memagent_gpu_seconds", row["corpus"], row["kind"], ""] += seconds * gpus


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
