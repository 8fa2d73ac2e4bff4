"""Retraining by schedule: what was decided stays decided, and only trainings on harvested rows use these up."""

from types import SimpleNamespace

import pytest

from infra.store import Store
from infra.tables.delta import now
from infra.tables.runs import write_run
from infra.tables.schemas import POLICIES_OF
from memagent.config import Config, RayConfig
from memagent.errors import MemagentError
from memagent.rl.promotion import PromotionSpec
from pipelines.flows import commands, learning


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


def test_the_promotion_check_is_a_job_of_the_cluster(tmp_path, monkeypatch):
    far = Config(store=str(tmp_path), ray=RayConfig(jobs_address="http://far:8265"))
    earlier = {"promoted": False, "reason": "not better", "overall": {"name": "all"}, "groups": []}
    decided = {**earlier, "promoted": True, "reason": "better"}
    records, jobs, spec = [earlier, decided], [], PromotionSpec(seed=7)

    def submit(settings, argv, submission):
        jobs.append((settings, argv, submission))
        records.pop(0)  # the job writes its decision to the store
        return "its output"

    for name, value in {
        "submit": submit,
        "submission": lambda: "memagent-run",
        "policy": lambda store, candidate: {"promotion": records[0]},
        "create_table_artifact": lambda rows, **options: None,
        "run_promotion": lambda *arguments, **options: pytest.fail("nothing is read in the flow's own process"),
    }.items():
        monkeypatch.setattr(learning, name, value)
    assert learning.promotion_stage.fn(far, "nano@2", spec) == decided
    assert jobs == [(far, commands.promote("nano@2", spec), "memagent-run-promotion")]
    records.append(decided)
    with pytest.raises(MemagentError, match="ended without a decision on nano@2: its output"):
        learning.promotion_stage.fn(far, "nano@2", spec)
