"""Kill a run and run it again: the short form of `make endurance`."""

from tests import endurance

TARGETS = ["driver", "engine", "worker", "ray-driver"]


def test_a_killed_run_ends_as_an_undisturbed_one(model_folder):
    sets = [f"engine.model={model_folder}", "engine.scripted_process=true", "engine.scripted_delay=0.05"]
    sets += ["flush_seconds=0.3", "pool.inflight=12"]
    kills = endurance.endure("scripted", 1, TARGETS, documents=30, paragraphs=20, sets=sets, seed=7)["kills"]
    assert [kill["target"] for kill in kills if kill["hit"]] == TARGETS
    assert all(kill["same_readings"] and kill["differing"] == 0 for kill in kills), kills
