"""Made-up trajectories for the tests of training."""

import random

from memagent.rl.packing import PackedItem
from memagent.rl.reward import Reward
from memagent.rl.trajectory import Conversation, Group, Trajectory


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


def alike(rng, count, vocab=60):
    """Conversations of which many begin with the same section, as those of a group's rollouts."""
    sections = [[rng.randrange(vocab) for _ in range(50)] for _ in range(2)]
    made = []
    for _ in range(count):
        one = conversation(rng, vocab)
        asked = rng.choice(sections) + one.prompt_ids
        made.append(PackedItem(Conversation(asked, one.response_ids, one.logprobs, "update"), rng.random() - 0.5))
    return made
