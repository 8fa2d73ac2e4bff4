"""The same samples with questions worded otherwise: as the bundled reader's supervised version never saw them."""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memagent.tasks import contracts, needles
from memagent.tasks.samples import Sample

_PATTERNS = [
    (kind, re.compile(re.escape(wording).replace(r"\{key\}", "(?P<key>.+)").replace(r"\{value\}", ".+")))
    for kind, wordings in needles.SENTENCES.items()
    for wording in wordings
]


def reword(samples: Iterable[Sample], seed: int) -> Iterator[Sample]:
    """Yield the samples whose questions can be worded otherwise: one needle's, and the contracts' that have wordings.

    The wording depends on the seed and the sample alone; ``about["taught"]`` says whether any training has it: the last
    of each list stays out of all.
    """
    for sample in samples:
        wordings = _wordings(sample)
        if wordings:
            question = random.Random(f"{seed} {sample.sample_id}").choice(wordings)
            about = sample.about | {"taught": question != wordings[-1]}
            yield replace(sample, sample_id=f"{sample.sample_id}~reworded", question=question, about=about)


def _wordings(sample: Sample) -> list[str]:
    if category := sample.about.get("category"):
        return [one for name, known in contracts.REWORDED.items() if name == category for one in known]
    if len(sample.facts) != 1:
        return []
    for kind, pattern in _PATTERNS:
        if (found := pattern.fullmatch(sample.facts[0])) and found["key"] in sample.question:
            return [wording.format(key=found["key"]) for wording in needles.REWORDED[kind]]
    return []
