"""Harvest: which answered questions may teach, with their provenance.

Pure rules over rows; where rows come from and go to is the stage's business. A row is one question on one
stream with the answers that count as right, and says why it is believed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from memagent.records import digest
from memagent.scoring import normalise

Source = Literal["feedback", "gold", "agreement", "generated"]
TRUST: tuple[Source, ...] = ("feedback", "gold", "agreement", "generated")
"""Whom to believe first where two sources differ: people who saw the answer, then who wrote the question."""
Split = Literal["train", "validation", "test"]
_SHARES = (0.8, 0.9)
_SIMILAR = 0.8


@dataclass(frozen=True, slots=True)
class Qa:
    """One row of the `qa` table."""

    question: str
    answers: tuple[str, ...]
    """Right answers; one empty text where the stream does not say."""
    stream: tuple[str, ...]
    """Content hashes of what was read, in reading order."""
    documents: tuple[str, ...]
    """Ids of the documents; the split goes by them, so that a changed document stays on its side."""
    source: Source
    reading_id: str = ""
    policy_id: str = ""
    share: float | None = None
    """Of sampled readings, those that agreed."""
    pass_rate: float | None = None
    """Of the policy's sampled readings, those that were right."""
    evidence: tuple[tuple[str, int], ...] = ()
    """(content hash, segment index) of what the answer stands in, where that is known."""
    tags: tuple[str, ...] = field(default=())
    """Tags of the documents, by which sources are excluded."""

    @property
    def qa_id(self) -> str:
        """Names the row by what is asked of what; asking again is not a new row."""
        return digest(normalise(self.question) or self.question, list(self.stream))


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that does not teach, and why."""

    row: Qa
    reason: str


@dataclass(frozen=True, slots=True)
class Harvest:
    """What came of some rows."""

    kept: list[Qa]
    dropped: list[Dropped]

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows were dropped for which reason."""
        counts: dict[str, int] = defaultdict(int)
        for one in self.dropped:
            counts[one.reason] += 1
        return dict(sorted(counts.items()))


def gather(rows: Iterable[Qa], exclude: Iterable[str] = (), least_share: float = 0.0) -> Harvest:
    """Choose the rows that teach, one for each question on a stream.

    Dropped are: rows without a question or an answer; with a tag of `exclude`; agreed on by less than
    `least_share` of the sampled readings; contradicted by a row of the same source (both go: neither is
    believed more); said by a better source; and near-duplicates on the same stream.
    """
    banned = set(exclude)
    dropped: list[Dropped] = []
    by_id: dict[str, list[Qa]] = defaultdict(list)
    for row in rows:
        reason = _unfit(row, banned, least_share)
        if reason:
            dropped.append(Dropped(row, reason))
        else:
            by_id[row.qa_id].append(row)
    chosen: list[Qa] = []
    for same in by_id.values():
        chosen += _settle(same, dropped)
    return Harvest(_distinct(chosen, dropped), dropped)


def split_of(documents: Sequence[str], seed: int = 0) -> Split:
    """Return the side that a row is on, from its documents' ids alone: 80, 10 and 10 in a hundred.

    All questions on a document are on one side. A row over several documents goes by all of them, so an
    archive's rows and its documents' rows may differ in side; `leaks` finds that.
    """
    draw = int(digest(seed, sorted(documents))[:12], 16) / 16**12
    return "train" if draw < _SHARES[0] else "validation" if draw < _SHARES[1] else "test"


def leaks(rows: Iterable[Qa], seed: int = 0) -> set[str]:
    """Return ids of the rows on several documents that would show a held-out document in training."""
    known = list(rows)
    held = {d for row in known if split_of(row.documents, seed) != "train" for d in row.documents}
    return {row.qa_id for row in known if split_of(row.documents, seed) == "train" and held & set(row.documents)}


def agreement(answers: Sequence[tuple[str, bool]]) -> tuple[str, float]:
    """Return the answer that most of some sampled readings gave, and their share (self-consistency, 2203.11171).

    Args:
        answers: (answer, found) of each reading; a failed one counts as an answer of its own, so that it
            lowers the share.

    Raises:
        ValueError: no reading.
    """
    if not answers:
        raise ValueError("agreement needs at least one reading")
    counts: dict[str, list[str]] = defaultdict(list)
    for answer, found in answers:
        counts[normalise(answer) if found else ""].append(answer if found else "")
    best = max(counts.values(), key=len)
    return best[0], len(best) / len(answers)


def teachable(row: Qa, low: float = 0.0, high: float = 1.0) -> bool:
    """Whether a row is neither hopeless nor settled: low < pass rate < high; unknown rates are tried."""
    return row.pass_rate is None or low < row.pass_rate < high


def _unfit(row: Qa, banned: set[str], least_share: float) -> str:
    if not row.question.strip():
        return "no question"
    if not row.answers or (len(row.answers) > 1 and not all(answer.strip() for answer in row.answers)):
        return "no answer"
    if not row.stream or not row.documents:
        return "no document"
    if banned & set(row.tags):
        return "excluded"
    if row.share is not None and row.share < least_share:
        return "no agreement"
    return ""


def _settle(same: list[Qa], dropped: list[Dropped]) -> list[Qa]:
    """Decide between rows that ask the same of the same stream."""
    ranked = sorted(same, key=lambda row: TRUST.index(row.source))
    best = [row for row in ranked if row.source == ranked[0].source]
    dropped += [Dropped(row, "a better source") for row in ranked[len(best) :]]
    if len({frozenset(map(normalise, row.answers)) for row in best}) > 1:
        dropped += [Dropped(row, "contradictory") for row in best]
        return []
    dropped += [Dropped(row, "duplicate") for row in best[1:]]
    seen = {place for row in best for place in row.evidence}
    return [replace(best[0], evidence=tuple(sorted(seen)))]


def _distinct(rows: list[Qa], dropped: list[Dropped]) -> list[Qa]:
    """Drop questions that differ from an earlier one on the same stream in little but their wording."""
    kept: list[Qa] = []
    by_stream: dict[tuple[str, ...], list[tuple[set[str], Qa]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (TRUST.index(row.source), row.qa_id)):
        words = set(normalise(row.question).split())
        answers = frozenset(map(normalise, row.answers))
        near = [
            other
            for others, other in by_stream[row.stream]
            if _overlap(words, others) >= _SIMILAR and frozenset(map(normalise, other.answers)) == answers
        ]
        if near:
            dropped.append(Dropped(row, "near-duplicate"))
        else:
            by_stream[row.stream].append((words, row))
            kept.append(row)
    return kept


def _overlap(one: set[str], two: set[str]) -> float:
    return len(one & two) / len(one | two) if one or two else 1.0
