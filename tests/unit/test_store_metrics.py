"""Metrics of runs in any state; the dashboard and the alerts ask for metrics that exist."""

import json
import re
from datetime import timedelta

import pytest
import yaml
from prometheus_client import CollectorRegistry

from infra.store.claims import beat
from infra.store.delta import Table
from infra.store.location import Store
from infra.store.schemas import now
from pipelines.web import metrics as store_metrics
from pipelines.web.metrics import FAMILIES, StoreCollector
from tests.support.pages import ROOT

DEPLOY = ROOT / "infra" / "deploy"
SNAPSHOT = {
    "stage": "read",
    "readings_total": 10,
    "segments_total": 50,
    "engines": 2,
    "readings": 5,
    "failures": 2,
    "in_flight": 3,
    "failures_by_reason": {"ItemError": 2},
    "segments": 30,
    "prompt_tokens": 900,
    "cached_tokens": 100,
    "engine_milliseconds": 4000,
}


def row(run, status="running", summary=None, begun=0.0, **config):
    ended = now() if status in ("completed", "failed", "stopped") else None
    return {
        "corpus": "c",
        "run_id": run,
        "kind": "ask",
        "status": status,
        "started_at": now() - timedelta(days=begun),
        "ended_at": ended,
        "config": json.dumps(config),
        "summary": json.dumps(summary or {}),
    }


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(store_metrics, "_FRESH_SECONDS", 0.0)
    return Store(str(tmp_path))


def value(collector, name, extra=""):
    registry = CollectorRegistry()
    registry.register(collector)
    labels = {"corpus": "c", "kind": "ask"} | ({FAMILIES[name.removesuffix("_total")].label: extra} if extra else {})
    return registry.get_sample_value(name, labels)


def test_a_run_is_counted_by_its_snapshot_until_it_has_a_summary(store):
    runs, collector = Table(store, "runs"), StoreCollector(store)
    runs.append([row("a", pool={"gpus": 4})])
    store.write_bytes(f"{{}}\n{json.dumps(SNAPSHOT)}\n".encode(), "runs", "a", "progress.jsonl")
    beat(store, "a")
    assert value(collector, "memagent_runs_open", "running") == 1
    assert value(collector, "memagent_engines_up") == 2
    assert value(collector, "memagent_readings_in_flight") == 3
    assert value(collector, "memagent_readings_queued") == 2
    assert value(collector, "memagent_segments_left") == 20
    assert value(collector, "memagent_readings_answered_total") == 3
    assert value(collector, "memagent_failures_total", "ItemError") == 2
    assert value(collector, "memagent_prompt_tokens_total") == 900
    assert value(collector, "memagent_gpu_seconds_total") == 16
    store.delete(store.path("runs", "a", "heartbeat.json"))
    assert value(collector, "memagent_runs_open", "stopped") == 1
    assert value(collector, "memagent_readings_in_flight") is None, "nothing is in progress in a run that is dead"
    assert value(collector, "memagent_prompt_tokens_total") == 900, "what it has done stays done"
    summary = {"readings": {"read_now": 8}, "prompt_tokens": 1500, "failures_by_reason": {"ItemError": 2}}
    runs.upsert([row("a", "completed", summary | {"engine_uptime": 9.5}, pool={"gpus": 4})])
    assert value(collector, "memagent_prompt_tokens_total") == 1500, "once"
    assert value(collector, "memagent_gpu_seconds_total") == 38
    assert value(collector, "memagent_runs_open", "stopped") is None
    assert value(collector, "memagent_runs_total", "completed") == 1
    runs.append([row("b", "stopped")])
    store.write_bytes(json.dumps(SNAPSHOT).encode(), "runs", "b", "progress.jsonl")
    assert value(collector, "memagent_prompt_tokens_total") == 2400
    assert value(collector, "memagent_runs_total", "stopped") == 1


def test_runs_of_before_the_given_days_do_not_count(store):
    Table(store, "runs").append([row("old", "completed", {"segments": 7}, begun=3), row("new", "completed", begun=1)])
    assert value(StoreCollector(store, days=2), "memagent_segments_total") == 0
    assert value(StoreCollector(store, days=4), "memagent_segments_total") == 7


def test_scrapes_in_quick_succession_read_the_store_once(store, monkeypatch):
    monkeypatch.setattr(store_metrics, "_FRESH_SECONDS", 1e9)
    collector = StoreCollector(store)
    assert value(collector, "memagent_runs_total", "completed") is None
    Table(store, "runs").append([row("a", "completed")])
    assert value(collector, "memagent_runs_total", "completed") is None


def expressions():
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from (
        ("variable", each["query"]["query"]) for each in dashboard["templating"]["list"] if each["name"] == "corpus"
    )
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_exist():
    exported = {name if family.gauge else f"{name}_total": family for name, family in FAMILIES.items()}
    asked = set()
    for title, expression in expressions():
        names = set(re.findall(r"\bmemagent_\w+", expression))
        assert names and names <= set(exported), (title, names)
        labels = {"corpus", "kind"} | {exported[name].label for name in names}
        used = {word for group in re.findall(r"by \(([^)]*)\)", expression) for word in group.split(", ")}
        used |= set(re.findall(r"[{,](\w+)=", expression)) - {"job"}
        assert used <= labels, (title, used - labels)
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
        asked |= names
    assert asked == set(exported), "what is counted is shown"


def test_the_dashboard_can_be_imported():
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len({panel["title"] for panel in panels})
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) and all(x + 8 <= 24 for x, _ in places)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)


def test_every_alert_has_its_line_in_the_runbook():
    page = (ROOT / "docs" / "operate.md").read_text()
    rules = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert rules and all(f"`{rule['alert']}`" in page for rule in rules)
