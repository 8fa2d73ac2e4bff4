"""Kill a run and run it again: the short form of `make endurance`."""

import pytest

from tests import endurance


@pytest.mark.slow
@pytest.mark.parametrize("target", ["driver", "worker", "engine"])
def test_a_killed_run_ends_as_an_undisturbed_one(target, model_folder):
    sets = [f"engine.model={model_folder}", "engine.scripted_process=true", "engine.scripted_delay=0.05"]
    sets += ["flush_seconds=0.3", "pool.inflight=12"]
    result = endurance.endure("scripted", 1, [target], documents=30, paragraphs=20, sets=sets, seed=7)
    (kill,) = result["kills"]
    assert kill["hit"] and kill["same_readings"] and kill["differing"] == 0
