"""What is scored of memories goes back to the rollouts that it is of, however it was packed."""

import random
from dataclasses import replace

import pytest

from infra.learner.group import LearnerGroup
from memagent.rl.config import load_recipe
from memagent.rl.trajectory import Conversation, Group
from tests.support.rl_samples import group


class Scoring(LearnerGroup):
    """Its log-probability of a token is the token's id, negative; it keeps what it scored."""

    scored = 0

    async def _score(self, share):
        self.scored += sum(len(row.targets) for rows in share for row in rows)
        return [[[-float(row.ids[target]) for target in row.targets] for row in rows] for rows in share]


def probe(rng, section, size):
    return Conversation(
        [*section, *(rng.randrange(60) for _ in range(size))], [rng.randrange(60)] * 3, [0.0] * 3, "answer"
    )


@pytest.mark.parametrize("budget", [64, 4096])
@pytest.mark.parametrize("ranks", [1, 3])
async def test_each_probe_has_the_mean_of_its_own_tokens(ranks, budget):
    rng = random.Random(ranks)
    section, none = [rng.randrange(60) for _ in range(40)], probe(rng, [], 5)
    groups = []
    for i in range(3):
        made = group([1, 0, 0], i, f"s{i}")
        rollouts = (
            replace(one, probes=(none, *(probe(rng, section, n) for n in range(1, 3 + i)))) for one in made.trajectories
        )
        groups.append(Group(made.sample_id, tuple(rollouts)))
    recipe = load_recipe("smoke", [f"learner.world_size={ranks}", f"learner.token_budget={budget}"])
    learner = Scoring(None, recipe)
    found = await learner.likelihoods(groups)
    assert found == [
        [[-float(one.response_ids[0]) for one in trajectory.probes] for trajectory in made.trajectories]
        for made in groups
    ]
    distinct = {(*one.prompt_ids, *one.response_ids) for made in groups for t in made.trajectories for one in t.probes}
    assert learner.scored == 3 * len(distinct), "memories that are alike are scored once"
