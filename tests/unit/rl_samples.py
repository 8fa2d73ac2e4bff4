"""Made-up trajectories for the tests of training."""

import random

from memagent.rl.rewards import Reward
from memagent.rl.trajectories import Conversation, Group, Trajectory


def conversation(rng, vocab=60, prompt=(1, 12), response=(1, 6)):
    said = [rng.randrange(vocab) for _ in range(rng.randint(*response))]
    asked = [rng.randrange(vocab) for _ in range(rng.randint(*prompt))]
    return Conversation(asked, said, [-rng.random() for _ in said], "update")


def trajectory(rng, total, sample="s", rollout=0, conversations=(1, 4), **kwargs):
    count = rng.randint(*conversations)
    paid = Reward(total, float(total > 0), float(total > 0))
    return Trajectory(sample, rollout, tuple(conversation(rng, **kwargs) for _ in range(count)), paid)


def group(rewards, seed=0, sample="s", **kwargs):
    rng = random.Random(seed)
    return Group(sample, tuple(trajectory(rng, value, sample, i, **kwargs) for i, value in enumerate(rewards)))
