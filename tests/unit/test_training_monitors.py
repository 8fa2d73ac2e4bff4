"""Metrics go to the trackers that a recipe names, and a resumed training goes on in their run."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from infra.store.location import Store
from memagent.errors import ConfigError
from memagent.rl.config import StageRecipe
from pipelines.training.monitors import Monitors


class Recorded(ModuleType):
    """MLflow's functions that are used, which keep what they are told."""

    def __init__(self, known=()):
        super().__init__("mlflow")
        self.said, self.known = [], known

    def set_experiment(self, name):
        self.said.append(("experiment", name))
        return SimpleNamespace(experiment_id="7")

    def search_runs(self, experiments, *, filter_string, output_format, max_results):
        self.said.append(("search", experiments, filter_string))
        return [SimpleNamespace(info=SimpleNamespace(run_id=one)) for one in self.known]

    def start_run(self, *, run_id, run_name):
        self.said.append(("start", run_id, run_name))

    def log_metrics(self, data, *, step):
        self.said.append(("log", data, step))

    def end_run(self):
        self.said.append(("end",))


@pytest.mark.parametrize("known, begun", [((), (None, "train-x")), (("r1",), ("r1", None))])
def test_a_training_is_a_run_of_mlflow(tmp_path, monkeypatch, known, begun):
    mlflow = Recorded(known)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monitors = Monitors(Store(str(tmp_path)), "train-x", StageRecipe(mlflow="reading"))
    monitors.write({"step": 3, "reward": 0.5, "seconds": {"learn": 2.0}, "version": "x"})
    monitors.close()
    assert mlflow.said == [
        ("experiment", "reading"),
        ("search", ["7"], "attributes.run_name = 'train-x'"),
        ("start", *begun),
        ("log", {"reward": 0.5, "seconds/learn": 2.0}, 3),
        ("end",),
    ]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_said(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        Monitors(Store(str(tmp_path)), "train-x", StageRecipe(**{name: "p"}))
