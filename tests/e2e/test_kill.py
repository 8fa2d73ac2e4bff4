"""Kill a run and run it again: the short form of `make endurance`."""

import pytest

from tests import endurance


@pytest.mark.parametrize(
    "targets", [["driver", "engine"], pytest.param(["worker", "ray-driver"], marks=pytest.mark.slow)], ids="+".join
)
def test_a_killed_run_ends_as_an_undisturbed_one(model_folder, targets):
    sets = [f"engine.model={model_folder}", "engine.scripted_process=true", "engine.scripted_delay=0.05"]
    sets += ["flush_seconds=0.3", "pool.inflight=12"]
    kills = endurance.endure("scripted", 1, targets, documents=30, paragraphs=20, sets=sets, seed=7)["kills"]
    assert [kill["target"] for kill in kills if kill["hit"]] == targets
    assert all(kill["same_readings"] and kill["differing"] == 0 for kill in kills), kills
