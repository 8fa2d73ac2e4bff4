"""Training tasks: questions with gold answers over texts of limited length.

A dataset returns them by number, always the same, so a resumed run only needs to know its position.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from memagent.config import ReadingConfig
from memagent.evaluation.metrics import JUDGEMENTS, normalise
from memagent.evaluation.records import Columns
from memagent.evaluation.texts import Sample
from memagent.reading.conversations import ListStream
from memagent.reading.evidence import says
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer
from memagent.records import Segment
from memagent.registry import Registry
from memagent.rl.config import AuditKind
from memagent.rl.reward import strict_score

_LURED = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """A sample, and the segments to read."""

    sample: Sample
    """The sample, without its text; of its facts those that are in the segments."""
    segments: tuple[Segment, ...]
    memories: tuple[str, ...] = ()
    """The memory after each segment, of a reading that the teacher is to follow (`LoggedReading`); empty: of none."""

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
        """Right answers; one empty text if the segments do not contain it."""
        return self.sample.answers

    @property
    def text(self) -> str:
        """What is read, with a line between parts that do not follow one another."""
        return segment_places(self.segments)[0]

    def stream(self) -> ListStream:
        """Return what a reading reads."""
        return ListStream(self.segments)

    def evidence(self) -> tuple[bool, ...] | None:
        """Return of each segment whether it holds evidence: a fact of the sample, or else a gold answer.

        None where the question has an answer and no segment is known to hold it.
        """
        if not any(gold.strip() for gold in self.gold):
            return (False,) * len(self.segments)
        text, places = segment_places(self.segments)
        held = [False] * len(places)
        for fact in filter(None, self.sample.facts):
            at = text.find(fact)
            while at >= 0:
                held = [
                    one or (start < at + len(fact) and end > at) for one, (start, end) in zip(held, places, strict=True)
                ]
                at = text.find(fact, at + 1)
        if not any(held) and not JUDGEMENTS.issuperset(map(normalise, self.gold)):
            held = [says(segment.text, self.gold) for segment in self.segments]
        return tuple(held) if any(held) else None

    def judge(self, answer: str) -> float:
        """Score an answer by the strict form of the task's own metric, 0 to 1; an empty answer is "not found"."""
        return strict_score(self.sample, answer)


def segment_places(segments: Sequence[Segment]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of segments, with a line between those that do not follow one another, and their places in it."""
    text, places = "", []
    for before, segment in zip((None, *segments), segments, strict=False):
        follows = before and (before.content_hash, before.char_end) == (segment.content_hash, segment.char_start)
        text += "" if follows or before is None else "\n"
        places.append((len(text), len(text) + len(segment.text)))
        text += segment.text
    return text, places


@dataclass(frozen=True, slots=True)
class LoggedReading:
    """A reading of a document by any model that gave a right answer, as the turn log has it."""

    content_hash: str
    bounds: Sequence[tuple[int, int]]
    """First and last character (exclusive) of each segment that it read, in order."""
    changes: Mapping[int, str]
    """The memory after each segment that changed it, by the segment's number."""


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
    """The arguments of a dataset: ``--data NAME``, ``NAME=ARGUMENT`` or ``NAME:ARGUMENT``."""

    argument: str
    """The text after the name; may be empty."""
    cut: Cut
    texts: Callable[[], Sequence[str]]
    """Returns the texts of ``--text``, in which needles are planted."""
    seed: int
    """Seed of the training tasks (``stage.seed``)."""
    validation_seed: int
    """Seed of the validation tasks, a different one."""
    store_url: str
    """Store of the harvested rows and their documents."""
    columns: Columns = field(default_factory=Columns)
    """Columns of a file, where they are of no known format."""
    split: bool = True
    """Hold out a part for validation; else validation has a set of its own, and this one's is not asked for."""
    taught: bool = False
    """The tasks are for the teacher (``rollout.teacher``)."""


@dataclass(frozen=True, slots=True)
class DatasetSplits:
    """Training and validation datasets."""

    train: Dataset
    validation: Dataset
    gone: int = 0
    """Rows that were left out because their documents are gone."""
    allowed: Mapping[AuditKind, float] = field(default_factory=dict)
    """Share of the tasks that may violate the audit, by kind; the recipe may allow more."""


DatasetFactory = Callable[[DatasetRequest], DatasetSplits]
"""Makes the training and validation datasets, which must not share tasks."""

DATASETS: Registry[DatasetFactory] = Registry(
    "memagent.datasets",
    "data set",
    {
        "qa": "pipelines.training.data:harvested",
        "file": "pipelines.training.data:from_file",
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

    With `scattered`, the other segments come from the whole text rather than from around the facts, many of them
    similar to the question: a few segments are then as distracting as a long text.
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
    kept = tuple(cut[i] for i in chosen)
    text = segment_places(kept)[0]
    facts = tuple(fact for fact in sample.facts if fact in text)
    return Task(replace(sample, sample_id=name, pieces=nothing, facts=facts), kept)


def window(count: int, wanted: Sequence[int], most: int, rng: random.Random, least: int = 1) -> list[int]:
    """Choose `least` to `most` of `count` segments, in order: the wanted ones (the first ones, if there are too many)
    and a random window of neighbours around them.
    """
    kept = list(wanted[:most])
    if not kept:
        size = min(count, rng.randint(least, most))
        first = rng.randint(0, count - size)
        return list(range(first, first + size))
    largest = max(len(kept), min(most, count))
    size = rng.randint(min(max(least, len(kept)), largest), largest)
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
    """Return the segments most similar to a text; words that are rare in the document count most."""
    words = [set(normalise(segment.text).split()) for segment in cut]
    known = Counter(word for found in words for word in found)
    asked = set(normalise(said).split())
    weight = {i: sum(1.0 / known[word] for word in found & asked) for i, found in enumerate(words)}
    return sorted(weight, key=lambda i: -weight[i])[:count]


@dataclass(frozen=True, slots=True)
class Mixed:
    """A mixture of datasets with weights."""

    datasets: tuple[Dataset, ...]
    shares: tuple[float, ...]
    seed: int

    def task(self, number: int) -> Task:
        """Return task `number`, of a dataset drawn by weight."""
        rng = random.Random(f"{self.seed} mix {number}")
        return rng.choices(self.datasets, self.shares)[0].task(number)


def nothing() -> Iterator[str]:
    """An empty text: the sample's segments are kept instead."""
    return iter(())
