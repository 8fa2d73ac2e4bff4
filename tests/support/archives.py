"""Archives with planted facts, and questions for them."""

import random

from memagent.records import Question
from tests.support.texts import filler

OTTER = Question("otter", "What is the pass number for amber-otter?")
HERON = Question("heron", "What is the pass number for silver-heron?")


def write_archive(folder, count=8, seed=2, words=250):
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        text = filler(rng, rng.randint(20, words))
        if i % 2 == 0:
            text += f"\n\nThe pass number for amber-otter is {1000 + i}.\n\n" + filler(rng, 60)
        (folder / f"doc{i}.txt").write_text(text)
