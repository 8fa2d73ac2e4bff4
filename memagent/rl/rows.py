"""The course of harvested rows."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from memagent.errors import UsageError
from memagent.harvest import Qa, teachable
from memagent.records import Segment
from memagent.rl.courses import Cut
from memagent.rl.exercises import Exercise, nothing, window
from memagent.tasks.samples import Sample

_HELD = 64
"""Documents whose segments are kept at once."""


@dataclass(frozen=True)
class RowCourse:
    """Harvested rows: the row's own documents, or its evidence among segments of other documents.

    Every epoch has all rows in an order of its own.
    """

    cut: Cut
    rows: Sequence[Qa]
    text: Callable[[str], str]
    """Gives the text of a content hash."""
    seed: int
    _kept: dict[str, list[Segment]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise UsageError("there are no rows to learn from: memagent harvest CORPUS")

    def exercise(self, number: int) -> Exercise:
        """Return exercise `number`."""
        epoch, place = divmod(number, len(self.rows))
        order = list(range(len(self.rows)))
        random.Random(f"{self.seed} epoch {epoch}").shuffle(order)
        row = self.rows[order[place]]
        rng = random.Random(f"{self.seed} rows {number}")
        own = [segment for name in row.stream for segment in self._of(name)]
        evidence = {(name, index) for name, index in row.evidence}
        wanted = [i for i, segment in enumerate(own) if (segment.content_hash, segment.index) in evidence]
        chosen = [own[i] for i in window(len(own), wanted, self.cut.most, rng)]
        sample = Sample(f"qa-{row.qa_id[:12]}-{epoch}", row.source, 0, nothing, row.question, row.answers, "part")
        return Exercise(sample, tuple(self._among(chosen, set(row.stream), rng)))

    def _among(self, chosen: list[Segment], own: set[str], rng: random.Random) -> list[Segment]:
        """Put distractors around a short text, up to the training length; the text keeps its order."""
        size = rng.randint(len(chosen), max(len(chosen), self.cut.most))
        others = [name for row in self.rows for name in row.stream if name not in own]
        result = list(chosen)
        while len(result) < size and others:
            parts = self._of(rng.choice(others))
            result.insert(rng.choice((0, len(result))), rng.choice(parts))
        return result

    def _of(self, name: str) -> list[Segment]:
        if name not in self._kept:
            if len(self._kept) > _HELD:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = [replace(segment, content_hash=name) for segment in self.cut(self.text(name))]
        return self._kept[name]


def fit_rows(rows: Sequence[Qa], low: float, high: float) -> list[Qa]:
    """Return the rows that a policy can learn from (`memagent.harvest.teachable`).

    Raises:
        UsageError: none are left, or all ask for nothing: a policy would learn to say one thing.
    """
    kept = [row for row in rows if teachable(row, low, high)]
    if not kept:
        raise UsageError(f"of {len(rows)} rows none can be learnt from: all are settled or hopeless by their pass rate")
    if len({frozenset(row.answers) for row in kept}) < 2 and len(kept) > 1:
        raise UsageError(
            f"all {len(kept)} rows have the same answer: a policy would learn to say nothing else. Harvest more, "
            "or add a course: --data needles"
        )
    return kept
