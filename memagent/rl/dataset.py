"""Tasks: questions with gold over texts of at most so many segments, as plain data.

A dataset gives them by number, the same at every call, so that a training run that goes on needs to
remember nothing but how far it was.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from memagent.config import ReadingConfig
from memagent.conversations import ListStream
from memagent.metrics import normalise
from memagent.records import Segment
from memagent.registry import Registry
from memagent.segmenting import segments
from memagent.tasks.grading import judge
from memagent.tasks.sample import Sample
from memagent.tokens import Tokenizer

_LURED = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """A sample, and the segments of it that are read."""

    sample: Sample
    """Without its text: its pieces are none."""
    segments: tuple[Segment, ...]

    @property
    def sample_id(self) -> str:
        """Name of the task."""
        return self.sample.sample_id

    @property
    def question(self) -> str:
        """What is asked."""
        return self.sample.question

    @property
    def gold(self) -> tuple[str, ...]:
        """Right answers; one empty text where the segments do not say."""
        return self.sample.answers

    def stream(self) -> ListStream:
        """Return what a reading reads."""
        return ListStream(self.segments)

    def judge(self, answer: str) -> float:
        """Score an answer by the task's own measure, 0 to 1; empty: "not found"."""
        return judge(self.sample, answer).score


class Dataset(Protocol):
    """A source of tasks."""

    def task(self, number: int) -> Task:
        """Return task `number`, from 0 without end; the same number gives the same task."""


@dataclass(frozen=True)
class Cut:
    """How texts become segments."""

    tokenizer: Tokenizer
    reading: ReadingConfig
    most: int
    """Segments of a task at most (``rollout.segments``)."""

    def __call__(self, text: str) -> list[Segment]:
        """Return the segments of a text."""
        return list(
            segments(
                "", text, self.tokenizer, segment_tokens=self.reading.segment_tokens, boundary=self.reading.boundary
            )
        )


@dataclass(frozen=True)
class DatasetRequest:
    """What a data set is made from: ``--data NAME``, ``NAME=ARGUMENT`` or ``NAME:ARGUMENT``."""

    argument: str
    """What stands after the name; empty: nothing."""
    cut: Cut
    texts: Callable[[], Sequence[str]]
    """Gives the texts of ``--text`` that something can be planted in."""
    seed: int
    """Of the training's tasks (``stage.seed``)."""
    validation_seed: int
    """Of the validation's, which must differ."""
    store_url: str
    """Where harvested rows and their documents are."""


@dataclass(frozen=True, slots=True)
class DatasetSplits:
    """What a run learns from, and what it is validated with."""

    train: Dataset
    validation: Dataset
    gone: int = 0
    """Rows that are left out, since their documents are no longer there."""


DatasetFactory = Callable[[DatasetRequest], DatasetSplits]
"""Makes both sides of a data set. Tasks that train must not validate."""

DATASETS: Registry[DatasetFactory] = Registry(
    "memagent.datasets",
    "data set",
    {
        "qa": "pipelines.training.data:harvested",
        "needles": "memagent.rl.sources:needles",
        "contracts": "memagent.rl.sources:contracts",
    },
)


def dataset_name(given: str) -> str:
    """Return the name of the data set that ``NAME``, ``NAME=ARGUMENT`` or ``NAME:ARGUMENT`` asks for."""
    return given.split("=")[0].split(":")[0]


def make_task(
    sample: Sample, name: str, cut: Sequence[Segment], most: int, rng: random.Random, *, scattered: bool = False
) -> Task:
    """Make a task of a sample and its text's segments, at most `most` of them.

    `scattered` takes the others from anywhere in the text rather than from around the facts, and many that read like
    what is asked for: so a few segments tempt as a long text does.
    """
    places = [(s.char_start, s.char_end) for s in cut]
    text = "".join(segment.text for segment in cut)
    wanted = {
        i
        for fact in sample.facts
        if (at := text.find(fact)) >= 0
        for i, (start, end) in enumerate(places)
        if start < at + len(fact) and end > at
    }
    if len(cut) <= most:
        chosen = list(range(len(cut)))
    elif scattered:
        near = lures(cut, " ".join((sample.question, *sample.answers, *sample.facts)))
        chosen = scatter(len(cut), sorted(wanted), most, rng=rng, tempting=near)
    else:
        chosen = window(len(cut), sorted(wanted), most, rng)
    kept = replace(sample, sample_id=name, pieces=nothing, facts=())
    return Task(kept, tuple(cut[i] for i in chosen))


def window(count: int, wanted: Sequence[int], most: int, rng: random.Random) -> list[int]:
    """Choose at most `most` of `count` segments: the wanted ones (the first of them, if there are too many), and a
    run of their neighbours around them at random, in order.
    """
    kept = list(wanted[:most])
    if not kept:
        size = min(count, rng.randint(1, most))
        first = rng.randint(0, count - size)
        return list(range(first, first + size))
    size = rng.randint(len(kept), max(len(kept), min(most, count)))
    chosen = set(kept)
    low, high = kept[0], kept[-1]
    inside = [i for i in range(low, high) if i not in chosen]
    rng.shuffle(inside)
    while len(chosen) < size and inside:
        chosen.add(inside.pop())
    while len(chosen) < size:
        before = low > 0 and (high >= count - 1 or rng.random() < 0.5)
        low, high = (low - 1, high) if before else (low, high + 1)
        chosen.add(low if before else high)
    return sorted(chosen)


def scatter(
    count: int, wanted: Sequence[int], most: int, rng: random.Random, tempting: Sequence[int] = ()
) -> list[int]:
    """Choose the wanted segments and others from anywhere, at most `most` in all, in order.

    Half of the others, about, are of the `tempting` ones, where there are any.
    """
    kept = list(wanted[:most])
    others = [i for i in range(count) if i not in kept]
    lures = [i for i in tempting if i not in kept]
    size = rng.randint(max(1, len(kept)), max(1, len(kept), min(most, count)))
    chosen = set(kept)
    while len(chosen) < size:
        chosen.add(rng.choice(lures if lures and rng.random() < _LURED else others))
        lures = [i for i in lures if i not in chosen]
    return sorted(chosen)


def lures(cut: Sequence[Segment], said: str, count: int = 10) -> list[int]:
    """Return the segments that share most with a text, words that are rare in the document counting most."""
    words = [set(normalise(segment.text).split()) for segment in cut]
    known = Counter(word for found in words for word in found)
    asked = set(normalise(said).split())
    weight = {i: sum(1.0 / known[word] for word in found & asked) for i, found in enumerate(words)}
    return sorted(weight, key=lambda i: -weight[i])[:count]


@dataclass(frozen=True, slots=True)
class Mixed:
    """Several datasets, each with a share of the tasks."""

    datasets: tuple[Dataset, ...]
    shares: tuple[float, ...]
    seed: int

    def task(self, number: int) -> Task:
        """Return task `number` of the dataset that the draw falls on."""
        rng = random.Random(f"{self.seed} mix {number}")
        return rng.choices(self.datasets, self.shares)[0].task(number)


def nothing() -> Iterator[str]:
    """Return no pieces: the text of a sample that is elsewhere."""
    return iter(())
