"""Traces and metrics of the flows' stages over OTLP/HTTP, where a collector is named; else nothing is loaded.

The collector is that of ``OTEL_EXPORTER_OTLP_ENDPOINT``; other variables of OpenTelemetry (headers, timeout) hold as
well. One that is away costs a stage a few seconds and a line in its log, and never fails it.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from infra.system.logs import redacted

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FLUSH_MILLISECONDS = 5_000
_NAME = "memagent"
_COUNTED = ("readings", "ingest")
"""Parts of a summary whose counts are attributes, besides its own."""
_log = logging.getLogger("memagent.flows")


@dataclass
class Stage:
    """A stage that is under way."""

    attributes: dict[str, str | int | float] = field(default_factory=dict)

    def came_to(self, summary: Mapping[str, Any]) -> None:
        """Take the corpus, the policy and all counts of a run's summary."""
        for name in ("corpus", "kind", "policy_id"):
            if isinstance(summary.get(name), str):
                self.attributes[f"{_NAME}.{name}"] = summary[name]
        counts = {name: value for name, value in summary.items() if _is_number(value)}
        for part in _COUNTED:
            within = summary.get(part)
            if isinstance(within, Mapping):
                counts |= {f"{part}.{name}": value for name, value in within.items() if _is_number(value)}
        self.attributes |= {f"{_NAME}.{name}": value for name, value in counts.items()}


@contextmanager
def observed(name: str, run_id: str, flow_run: str = "") -> Iterator[Stage]:
    """Make a span of the body, and count its seconds and readings; `run_id` is of the run in the store, `flow_run` the
    id of Prefect's.
    """
    stage = Stage({f"{_NAME}.run_id": run_id, "prefect.flow_run.id": flow_run})
    providers = _providers() if os.environ.get(ENDPOINT) else None
    if providers is None:
        yield stage
        return
    from opentelemetry.trace import Status, StatusCode

    tracing, metering = providers
    began, outcome = time.monotonic(), "completed"
    with tracing.get_tracer(_NAME).start_as_current_span(
        f"{_NAME} {name}", record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield stage
        except BaseException as error:
            outcome = "failed"
            span.set_status(Status(StatusCode.ERROR, redacted(f"{type(error).__name__}: {error}")))
            raise
        finally:
            span.set_attributes(stage.attributes)
            _measure(metering, stage, {"stage": name, "outcome": outcome}, time.monotonic() - began)
    _flush(tracing.force_flush, metering.force_flush)


def _measure(metering: "MeterProvider", stage: Stage, labels: dict[str, str], seconds: float) -> None:
    meter = metering.get_meter(_NAME)
    corpus = stage.attributes.get(f"{_NAME}.corpus")
    labels = labels | ({"corpus": str(corpus)} if corpus else {})
    meter.create_histogram(f"{_NAME}.stage.duration", unit="s", description="Seconds of a stage").record(
        seconds, labels
    )
    readings = meter.create_counter(
        f"{_NAME}.readings", unit="1", description="Readings of stages, by what became of them"
    )
    before = f"{_NAME}.readings."
    for name, value in stage.attributes.items():
        if name.startswith(before) and isinstance(value, int):
            readings.add(value, {**labels, "result": name.removeprefix(before)})


def _flush(*flushes: Callable[[int], object]) -> None:
    for flush in flushes:
        try:
            flush(_FLUSH_MILLISECONDS)
        except Exception as error:  # telemetry must not end a run
            _log.warning("telemetry is not delivered: %s: %s", type(error).__name__, redacted(str(error)))


@cache
def _providers() -> "tuple[TracerProvider, MeterProvider] | None":
    """Make this process's own providers: Prefect, Ray and vLLM may have others."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    except ImportError as error:
        _log.warning("%s is set, and nothing is sent: %s; pip install 'memagent[otel]'", ENDPOINT, error)
        return None
    about = Resource.create({"service.name": _NAME, "service.instance.id": uuid.uuid4().hex})
    tracing = TracerProvider(resource=about)
    tracing.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    metering = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=about)
    return tracing, metering


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
