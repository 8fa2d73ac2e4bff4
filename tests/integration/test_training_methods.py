"""Each training method takes a step with real engines and a real learner, on the bundled reader."""

import random

import pytest

from infra.store.location import Store
from memagent.rl.methods import METHODS
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.run import train
from pipelines.training.settings import prepare
from tests.support.texts import filler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SMALL = (
    *("rollout.prompts=2", "rollout.group_size=2", "rollout.segments=2", "rollout.dynamic_sampling=false"),
    *("learner.minibatch_prompts=1", "learner.token_budget=2048", "learner.warmup_steps=0"),
    *("stage.max_steps=1", "stage.validate_with=1", "stage.record=true", "audit.tasks=4"),
)


@pytest.mark.parametrize("recipe", ["gru-mem", "infomem", "himpo", "per-trajectory"])
def test_a_recipe_takes_a_step(tmp_path, ray_in_process, recipe):
    (tmp_path / "text.txt").write_text("\n\n".join(filler(random.Random(i), 400) for i in range(20)))
    run = prepare(recipe, ["needles"], [str(tmp_path / "text.txt")], str(tmp_path / "store"), SMALL)
    summary = train(run)
    assert summary["steps"] == 1 and summary["trajectories"] == 4
    checkpoints = Checkpoints(Store(run.config.store), run.run_id)
    assert checkpoints.read() is not None
    (step,) = [row for row in checkpoints.metrics if row["step"]]
    assert step["optimiser_steps"] == 2 and step["logprob_diff"] < 0.05
    assert 0 < step["segments_read"] <= 1 and 0 <= step["gates_right"] <= 1
    groups, _ = checkpoints.recorded(1)
    memories = METHODS.find(run.recipe.method.name).memories
    for one in (trajectory for group in groups for trajectory in group.trajectories):
        assert one.trace is not None and one.trace.segments >= len(one.trace.updates) >= 1
        probed = {"none": 0, "last": 2, "all": 1 + len(one.trace.updates)}
        assert len(one.probes) == probed[memories]
    if recipe == "gru-mem":
        assert all("exit" in one.reward.parts for group in groups for one in group.trajectories)
