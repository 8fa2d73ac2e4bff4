"""Harvested rows as a training dataset."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from memagent.curation import Qa, teachable
from memagent.errors import UsageError
from memagent.evidence import says
from memagent.metrics import normalise
from memagent.records import Segment
from memagent.rl.dataset import Cut, Task, nothing, window
from memagent.tasks.sample import Sample

_DRAWS = 10
"""Draws for each distractor: some texts offer few segments that do not answer the question."""
_FACT_CHARS = 400
_HELD = 64
"""Documents whose segments are cached."""
JUDGEMENTS = frozenset({"yes", "no"})
"""Answers that are no words of the text."""


@dataclass(frozen=True)
class RowDataset:
    """Questions on documents: the row's own documents, or its evidence among segments of other documents.

    Each epoch shuffles all rows.
    """

    cut: Cut
    rows: Sequence[Qa]
    text: Callable[[str], str]
    """Returns the text of a content hash."""
    seed: int
    alone: bool = False
    """Read a row's documents whole, and nothing beside them; of longer ones as many segments as a task may have."""
    _kept: dict[str, list[Segment]] = field(default_factory=dict)
    _asked: dict[tuple[str, str], list[Qa]] = field(default_factory=lambda: defaultdict(list))
    """Rows by normalised question and content hash."""
    _orders: dict[int, list[int]] = field(default_factory=dict)
    """The order of the rows in the present epoch."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise UsageError("there are no rows to learn from: memagent harvest CORPUS")
        for row in self.rows:
            for name in row.stream:
                self._asked[normalise(row.question), name].append(row)

    def task(self, number: int) -> Task:
        """Return task `number`.

        Raises:
            UsageError: no row is usable: their texts are too long, and none has evidence or its answer verbatim.
        """
        epoch, place = divmod(number, len(self.rows))
        order = self._order(epoch)
        rng = random.Random(f"{self.seed} rows {number}")
        for index in (*order[place:], *order[:place]):
            row = self.rows[index]
            own = self._own(row)
            wanted = self._wanted(row, own)
            if wanted is not None:
                break
        else:
            raise UsageError(
                f"none of {len(self.rows)} rows can be trained on: their answers are not found in the texts, which are "
                f"longer than {self.cut.most} segments (rollout.segments)"
            )
        # Where the answer is in a short text is not always known: it is read whole then.
        least = self.cut.most if self.alone or (any(row.answers) and not wanted) else 1
        chosen = [own[i] for i in window(len(own), wanted, self.cut.most, rng, least=least)]
        sample = Sample(
            f"{_name(row)}-{epoch}",
            row.source,
            0,
            pieces=nothing,
            question=row.question,
            answers=row.answers,
            match="exact",  # a part of an answer, or an answer among others, is not the answer
            facts=tuple(fact for segment in chosen for fact in _facts(segment, row)),
        )
        return Task(sample, tuple(chosen if self.alone else self._among(chosen, row, rng)))

    def left_out(self, count: int) -> tuple[int, int]:
        """Return how many of the first rows cannot be used (`task`), and of how many, at most `count`."""
        unusable = [self._wanted(row, self._own(row)) is None for row in self.rows[:count]]
        return sum(unusable), len(unusable)

    def rivals(self, task: Task) -> list[Qa]:
        """Return the rows that ask the same of another document in a task, and have other answers."""
        question, gold = normalise(task.question), frozenset(map(normalise, task.gold))
        own = next(row for row in self.rows if task.sample_id.startswith(_name(row)))
        names = {segment.content_hash for segment in task.segments}.difference(own.stream)
        asked = [row for name in sorted(names) for row in self._asked.get((question, name), ())]
        return [row for row in asked if frozenset(map(normalise, row.answers)) != gold]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = list(range(len(self.rows)))
            random.Random(f"{self.seed} epoch {epoch}").shuffle(self._orders[epoch])
        return self._orders[epoch]

    def _wanted(self, row: Qa, own: Sequence[Segment]) -> list[int] | None:
        """Return which of a text's segments hold the answer; None if that is unknown and the text is too long.

        Of several marked segments, those with the answer's own words. Segment indices are of the
        segmentation of their harvest: the answer's own words count more.
        """
        if not any(row.answers):
            return []
        marked = [i for i, segment in enumerate(own) if is_marked(segment, row)]
        if JUDGEMENTS.issuperset(map(normalise, row.answers)):  # "there is no appeal" has the word, not the verdict
            return marked if marked or len(own) <= self.cut.most else None
        holding = [i for i, segment in enumerate(own) if says(segment.text, row.answers)]
        if not holding:  # a cut may go through the answer
            pairs = enumerate(pairwise(segment.text for segment in own))
            holding = sorted(
                {j for i, (one, next_one) in pairs if says(one + next_one, row.answers) for j in (i, i + 1)}
            )
        wanted = [i for i in marked if i in holding] or holding or marked
        return wanted if wanted or len(own) <= self.cut.most else None

    def _among(self, chosen: list[Segment], row: Qa, rng: random.Random) -> list[Segment]:
        """Add distractors around a short text, up to the training length; the text keeps its order."""
        size = rng.randint(len(chosen), max(len(chosen), self.cut.most))
        others = [name for other in self.rows for name in other.stream if name not in row.stream]
        result = list(chosen)
        for _ in range(_DRAWS * (size - len(chosen)) if others else 0):
            if len(result) == size:
                break
            segment = rng.choice(self._of(rng.choice(others)))
            if not self._is_rival(segment, row):
                result.insert(rng.choice((0, len(result))), segment)
        return result

    def _is_rival(self, segment: Segment, row: Qa) -> bool:
        """Whether a segment of another text may answer the same question in another way."""
        return any(
            is_marked(segment, other) or says(segment.text, other.answers) or not (other.spans or other.evidence)
            for other in self._asked.get((normalise(row.question), segment.content_hash), ())
            if any(other.answers)
        )

    def _own(self, row: Qa) -> list[Segment]:
        return [segment for name in row.stream for segment in self._of(name)]

    def _of(self, name: str) -> list[Segment]:
        if name not in self._kept:
            if len(self._kept) > _HELD:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = [replace(segment, content_hash=name) for segment in self.cut(self.text(name))]
        return self._kept[name]


def _name(row: Qa) -> str:
    return f"qa-{row.qa_id[:12]}"


def _facts(segment: Segment, row: Qa) -> Iterator[str]:
    """Yield what a segment says of a row's answer, by the row's spans."""
    for name, start, end in row.spans:
        said = segment.text[max(0, start - segment.char_start) : max(0, end - segment.char_start)]
        if name == segment.content_hash and said:
            yield said[:_FACT_CHARS]


def is_marked(segment: Segment, row: Qa) -> bool:
    """Whether a row's evidence is in a segment."""
    if row.spans:
        return any(
            name == segment.content_hash and start < segment.char_end and end > segment.char_start
            for name, start, end in row.spans
        )
    return (segment.content_hash, segment.index) in row.evidence


def fit_rows(rows: Sequence[Qa], low: float, high: float) -> list[Qa]:
    """Return the rows that a policy can learn from (`memagent.curation.teachable`).

    Raises:
        UsageError: no row is left, or none has an answer to find: a policy would learn a constant answer.
    """
    kept = [row for row in rows if teachable(row, low, high)]
    if not kept:
        raise UsageError(f"of {len(rows)} rows none can be trained on: all have pass rate 0 or 1")
    if len({frozenset(row.answers) for row in kept}) < 2 and len(kept) > 1:
        raise UsageError(
            f"all {len(kept)} rows have the same answer: a policy would learn to say nothing else. Harvest more, "
            "or add a dataset: --data needles"
        )
    return kept
