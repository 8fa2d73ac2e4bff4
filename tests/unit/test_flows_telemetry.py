"""What a collector gets of the flows' stages, and that nothing is loaded where there is none."""

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from memagent.config import load_config
from memagent.rl.promotion import PromotionSpec
from pipelines.flows import answering, learning, telemetry
from pipelines.flows.telemetry import ENDPOINT, observed

OPTIMIZED = {"corpus": "contracts", "files_before": 8, "files_after": 3, "tables": ["answers"], "runs": 1}
SUMMARY = {
    "corpus": "contracts",
    "kind": "digest",
    "documents": 4,
    "readings": {"read_now": 3, "failed": 1},
    "ok": True,
}
KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Collector(ThreadingHTTPServer):
    """Keeps what is sent to it, decoded, by path."""

    def __init__(self):
        got = self.got = {path: [] for path in KINDS}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                got[self.path].append(KINDS[self.path].FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def spans(self):
        return [
            s for each in self.got["/v1/traces"] for r in each.resource_spans for c in r.scope_spans for s in c.spans
        ]

    def metrics(self):
        scopes = [c for each in self.got["/v1/metrics"] for r in each.resource_metrics for c in r.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@pytest.fixture
def collector(monkeypatch):
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{collector.server_port}")
        telemetry._providers.cache_clear()
        yield collector
        tracing, metering = telemetry._providers()
        tracing.shutdown()
        metering.shutdown()
        telemetry._providers.cache_clear()
        collector.shutdown()


def test_a_stage_is_a_span_with_its_counts(collector):
    with observed("digest", "run-1", "flow-1") as stage:
        stage.came_to(SUMMARY)
    (span,) = collector.spans()
    attributes = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
    assert span.name == "memagent digest" and span.end_time_unix_nano > span.start_time_unix_nano
    assert attributes == {
        "memagent.run_id": "run-1",
        "prefect.flow_run.id": "flow-1",
        "memagent.corpus": "contracts",
        "memagent.kind": "digest",
        "memagent.documents": 4,
        "memagent.readings.read_now": 3,
        "memagent.readings.failed": 1,
    }
    metrics = collector.metrics()
    assert set(metrics) == {"memagent.stage.duration", "memagent.readings"}
    (duration,) = metrics["memagent.stage.duration"].histogram.data_points
    assert duration.count == 1
    counted = {
        next(each.value.string_value for each in point.attributes if each.key == "result"): point.as_int
        for point in metrics["memagent.readings"].sum.data_points
    }
    assert counted == {"read_now": 3, "failed": 1}


def test_a_stage_that_fails_says_so_without_secrets(collector, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "very-secret-value")
    with pytest.raises(ValueError, match="very-secret-value"), observed("digest", "run-1"):
        raise ValueError("refused: very-secret-value")
    (span,) = collector.spans()
    assert span.status.code == 2 and span.status.message == "ValueError: refused: ***" and not span.events


def test_promotion_and_optimize_are_stages_as_well(collector, monkeypatch):
    record = {"promoted": True, "questions": {"there": 9, "asked": 7}, "overall": {}, "groups": [], "reason": "better"}
    monkeypatch.setattr(learning, "run_promotion", lambda settings, candidate, spec: record)
    monkeypatch.setattr(learning, "create_table_artifact", lambda rows, key, description: None)
    monkeypatch.setattr(answering, "optimize", lambda corpus, settings, retention_days: OPTIMIZED)
    monkeypatch.setattr(answering, "get_run_logger", lambda: logging.getLogger("test"))
    assert learning.promotion_stage.fn(load_config(), "nano@2", PromotionSpec()) == record
    answering.optimize_stage.fn(load_config(), "contracts", 7.0)
    spans = {span.name: {each.key: each.value for each in span.attributes} for span in collector.spans()}
    promotion, optimized = spans["memagent promotion"], spans["memagent optimize"]
    assert promotion["memagent.policy_id"].string_value == "nano@2"
    assert (promotion["memagent.promoted"].int_value, promotion["memagent.asked"].int_value) == (1, 7)
    assert optimized["memagent.corpus"].string_value == "contracts"
    assert optimized["memagent.files_after"].int_value == 3
