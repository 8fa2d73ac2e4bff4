"""Retraining by schedule: what was decided stays decided, and only trainings on harvested rows use these up."""

from types import SimpleNamespace

import pytest

from infra.store.location import Corpus, Store
from infra.store.qa import qa_version, write_qa
from infra.store.runs import write_run
from infra.store.schemas import POLICIES_OF, now
from memagent.config import Config, RayConfig
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.quality.curation import Qa
from memagent.rl.promotion import PromotionSpec
from pipelines.flows import learning
from pipelines.flows import parameters as commands


@pytest.mark.parametrize(("status", "promoted"), [("refused", False), ("promoted", True), ("retired", False)])
def test_a_candidate_that_was_decided_on_is_not_compared_again(tmp_path, monkeypatch, status, promoted):
    at = SimpleNamespace(store=str(tmp_path))
    run = SimpleNamespace(reading_config=lambda config: at, config=at)
    summary = {"run_id": "train-1", "policy": "nano", "parent": "nano@1", "candidate": "nano@2", "data": ["qa"]}
    events, noted = [], []
    for name, value in {
        "check_access": lambda *arguments: None,
        "prepare": lambda *arguments, **options: run,
        "train_stage": lambda run: summary,
        "emit_event": lambda event, **rest: events.append(event),
        "note_lineage": lambda store, lineage: noted.append(lineage),
        "policy": lambda store, wanted: {"status": status, "reason": "worse on needles"},
    }.items():
        monkeypatch.setattr(learning, name, value)
    result = learning.retrain.fn()
    assert (result["promoted"], result["reason"]) == (promoted, f"decided before ({status}): worse on needles")
    assert events == ["memagent.policy.trained"]
    assert [(one.read, one.written) for one in noted] == [({"policies/nano@1": 1}, {"policies/nano@2": 1})]


def trained(store, run_id, data, version):
    summary = {"run_id": run_id, "corpus": POLICIES_OF, "kind": "train", "data": data, "data_version": version}
    write_run(store, summary, now(), {})


def harvested(store, corpus, *names):
    rows = [Qa(f"Who signed {name}?", ("Ada",), (name,), documents=(name,), source="gold") for name in names]
    write_qa(Corpus(store, corpus), rows, "harvest")
    return qa_version(store)


def test_a_training_on_needles_leaves_harvested_rows_waiting(tmp_path):
    store = Store(str(tmp_path))
    assert learning._waiting(store) == 0
    version = harvested(store, "a", "one", "two")
    trained(store, "a", ["needles"], version)
    trained(store, "b", ["file=/own.jsonl"], version)
    trained(store, "c", ["qa", "needles"], None)
    assert learning._waiting(store) == 2
    trained(store, "d", ["qa", "needles"], version)
    assert learning._waiting(store) == 0
    harvested(store, "a", "one", "two", "three")
    assert learning._waiting(store) == 1


def test_a_training_on_one_corpus_leaves_the_rows_of_another_waiting(tmp_path):
    store = Store(str(tmp_path))
    harvested(store, "a", "one", "two")
    version = harvested(store, "b", "three")
    trained(store, "a", ["qa:a"], version)
    trained(store, "b-replay", ["qa:b"], version)
    assert learning._waiting(store) == 1
    trained(store, "b", ["qa:b"], version)
    assert learning._waiting(store) == 0


def test_a_wrong_key_of_the_promotion_check_is_said_before_training(monkeypatch):
    monkeypatch.setattr(learning, "check_access", lambda *arguments: None)
    monkeypatch.setattr(learning, "train_stage", None)
    with pytest.raises(ConfigError, match=r"check\.lenghts"):
        learning.retrain.fn(check={"lenghts": [1]})


def test_a_flow_goes_on_with_a_training_by_its_name(tmp_path, monkeypatch):
    begun = []

    def begin(run):
        begun.append(run.run_id)
        raise MemagentError("far enough")

    monkeypatch.setattr(learning, "train_stage", begin)
    for name in ("first", "first", ""):
        with pytest.raises(MemagentError, match="far enough"):
            learning.retrain.fn("smoke", ["needles"], store=str(tmp_path), run_name=name)
    assert begun[:2] == ["first", "first"] and begun[2].startswith("train-")
    with pytest.raises(UsageError, match="a training cannot be called 'last'"):
        learning.retrain.fn("smoke", ["needles"], store=str(tmp_path), run_name="last")


def test_the_flow_compares_on_the_recipes_engines(tmp_path, monkeypatch):
    """Refused or not is the check's; what it is called with is the flow's."""
    recipe = tmp_path / "own.toml"
    recipe.write_text('model = "nano"\n[engine]\nmax_num_seqs = 7\n[pool]\nmax_size = 3\n')
    compared = []

    def compare(settings, candidate, spec):
        compared.append((settings.engine.model, settings.engine.max_num_seqs, settings.pool.max_size, spec))
        return {"promoted": False, "reason": "worse", "overall": {}, "groups": []}

    summary = {"run_id": "train-1", "policy": "nano", "parent": "nano@1", "candidate": "nano@2", "data": ["qa"]}
    for name, value in {
        "train_stage": lambda run: summary,
        "emit_event": lambda event, **rest: None,
        "note_lineage": lambda store, lineage: None,
        "policy": lambda store, wanted: {"status": "candidate", "reason": ""},
        "promotion_stage": compare,
    }.items():
        monkeypatch.setattr(learning, name, value)
    result = learning.retrain.fn(str(recipe), corpora=["a"], check={"n": 3}, store=str(tmp_path / "store"))
    assert (result["promoted"], result["reason"]) == (False, "worse")
    assert compared == [("nano", 7, 3, PromotionSpec(corpora=("a",), n=3))]


def test_the_promotion_check_is_a_job_of_the_cluster(tmp_path, monkeypatch):
    far = Config(store=str(tmp_path), ray=RayConfig(jobs_address="http://far:8265"))
    earlier = {"promoted": False, "reason": "not better", "overall": {"name": "all"}, "groups": [], "questions": {}}
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
