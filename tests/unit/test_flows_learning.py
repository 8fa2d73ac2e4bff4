"""Retraining by schedule: what was decided stays decided, and only trainings on harvested rows use these up."""

from types import SimpleNamespace

import pytest

from infra.store import Store
from infra.tables.delta import now
from infra.tables.runs import write_run
from infra.tables.schemas import POLICIES_OF
from pipelines.flows import learning


@pytest.mark.parametrize(("status", "promoted"), [("refused", False), ("promoted", True), ("retired", False)])
def test_a_candidate_that_was_decided_on_is_not_compared_again(tmp_path, monkeypatch, status, promoted):
    run = SimpleNamespace(reading_config=lambda config: SimpleNamespace(store=str(tmp_path)))
    summary = {"run_id": "train-1", "parent": "nano@1", "candidate": "nano@2", "steps": 3, "data": ["qa"]}
    events = []
    for name, value in {
        "check_access": lambda *arguments: None,
        "prepare": lambda *arguments, **options: run,
        "train_stage": lambda run: summary,
        "emit_event": lambda event, **rest: events.append(event),
        "policy": lambda store, wanted: {"status": status, "reason": "worse on needles"},
    }.items():
        monkeypatch.setattr(learning, name, value)
    result = learning.retrain.fn()
    assert (result["promoted"], result["reason"]) == (promoted, f"decided before ({status}): worse on needles")
    assert events == ["memagent.policy.trained"]


def test_a_training_on_needles_leaves_harvested_rows_waiting(tmp_path):
    store = Store(str(tmp_path))
    runs = {"a": (["qa:contracts", "needles"], 3), "b": (["needles"], 7), "c": (["qa"], None)}
    for run_id, (data, version) in runs.items():
        summary = {"run_id": run_id, "corpus": POLICIES_OF, "kind": "train", "data": data, "data_version": version}
        write_run(store, summary, now(), {})
    assert learning._trained_version(store) == 3
