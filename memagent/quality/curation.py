"""Curation: which answered questions become training rows, with their provenance.

Pure rules over rows; reading and writing rows is up to the stages. A row is a question on a stream with its accepted
answers and the source that vouches for them.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from memagent.evaluation.metrics import normalise
from memagent.quality.verdicts import as_meant
from memagent.records import TextSpan, stable_hash

Source = Literal["feedback", "gold", "agreement", "generated"]
TRUST: tuple[Source, ...] = ("feedback", "gold", "agreement", "generated")
"""Sources by trust, most trusted first: people who reviewed the answer, then the author of the question."""
VOUCHED: tuple[Source, ...] = ("feedback", "gold")
"""Sources that are people's or given; the others are a policy's own words, which cannot tell a better policy."""
Split = Literal["train", "validation", "promotion", "test"]
"""What a document is for: to train on, to choose a training's step by, to decide on promotion, only to report on."""
SPLITS: tuple[Split, ...] = ("train", "validation", "promotion", "test")
SPLIT_VERSION = 2
"""Version 1 had no promotion documents: all that are neither for training nor for validation were for the test. As
version 2 takes its promotion documents from these, no policy of either version was trained or chosen on them."""
_ENDS = (0.8, 0.9, 0.98)
"""Where a split ends, as shares of all documents."""
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
    """Ids of the documents (`families`); the split goes by them, so that a changed document stays on its side."""
    source: Source
    reading_id: str = ""
    policy_id: str = ""
    share: float | None = None
    """Share of sampled readings that agreed."""
    pass_rate: float | None = None
    """Share of the policy's sampled readings that were right."""
    evidence: tuple[tuple[str, int], ...] = ()
    """(content hash, segment index) of the segments that hold the answer, where known, as they were cut then."""
    tags: tuple[str, ...] = field(default=())
    """Tags of the documents, by which sources are excluded."""
    spans: tuple[TextSpan, ...] = ()
    """Where the documents say the answer, for any segmentation; empty where unknown."""

    @property
    def qa_id(self) -> str:
        """Identifies the row by question and stream: asking again gives the same row."""
        return stable_hash(as_meant(self.question), list(self.stream))


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that was dropped, and why."""

    row: Qa
    reason: str


@dataclass(frozen=True, slots=True)
class Harvest:
    """The kept and the dropped rows."""

    kept: list[Qa]
    dropped: list[Dropped]

    @property
    def reasons(self) -> dict[str, int]:
        """Number of dropped rows by reason."""
        return dict(sorted(Counter(dropped.reason for dropped in self.dropped).items()))


def gather(
    rows: Iterable[Qa],
    exclude: Iterable[str] = (),
    least_share: float = 0.0,
    rejected: Mapping[str, Collection[str]] | None = None,
    disputed: Collection[str] = (),
) -> Harvest:
    """Choose the training rows, one for each question on a stream. The order of `rows` does not matter.

    Dropped are: rows without a question or an answer; with a tag of `exclude`; agreed on by less than `least_share` of
    the sampled readings; on what people dispute (`disputed`: qa_ids); saying what they rejected (`rejected`: by
    qa_id, `as_meant`); contradicted by a row of the same source (both go: neither is believed more); said by a better
    source; near-duplicates on the same stream; and those over documents on different sides of the split.
    """
    banned, refused = set(exclude), rejected or {}
    dropped: list[Dropped] = []
    by_id: dict[str, list[Qa]] = defaultdict(list)
    for row in rows:
        reason = _unfit(row, banned, least_share) or ("disputed" if row.qa_id in disputed else "")
        answers = tuple(answer for answer in row.answers if as_meant(answer) not in refused.get(row.qa_id, ()))
        if reason or not answers:
            dropped.append(Dropped(row, reason or "rejected"))
        else:
            by_id[row.qa_id].append(replace(row, answers=answers))
    chosen: list[Qa] = []
    for same in by_id.values():
        chosen += _settle(same, dropped)
    distinct = _distinct(chosen, dropped)
    apart = leaks(distinct)
    dropped += [Dropped(row, "on both sides of the split") for row in distinct if row.qa_id in apart]
    return Harvest([row for row in distinct if row.qa_id not in apart], dropped)


def families(documents: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the family of each document: the first document that ever shared a text with it.

    Copies are on their original's side of the split, and so a text is on one side only. `documents` are (doc_id,
    content_hash) of every version of every document, the oldest first.
    """
    parent: dict[str, str] = {}
    age: dict[str, int] = {}
    holder: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for doc_id, content_hash in documents:
        age.setdefault(parent.setdefault(doc_id, doc_id), len(age))
        first, second = root(doc_id), root(holder.setdefault(content_hash, doc_id))
        older, younger = sorted((first, second), key=age.__getitem__)
        parent[younger] = older
    return {name: root(name) for name in parent}


def split_of(documents: Sequence[str]) -> Split:
    """Return the split of a row, derived from its documents' ids: 80% train, 10% validation, 8% promotion, 2% test.

    All questions on a document are on one side. A row over several documents is on the side of the one that is
    held out most, so training sees no held-out document; `leaks` finds rows that mix.
    """
    return max(map(_side, documents), key=SPLITS.index, default="train")


def leaks(rows: Iterable[Qa]) -> set[str]:
    """Return the ids of rows over documents of different splits: they would leak a held-out document."""
    return {row.qa_id for row in rows if len(set(map(_side, row.documents))) > 1}


def agreement(answers: Sequence[tuple[str, bool] | None]) -> tuple[str, float]:
    """Return the answer that most of some sampled readings gave, and their share (self-consistency, 2203.11171).

    `answers` are (answer, found) of each; None for one that failed: it agrees with nothing, so that it lowers the
    share.

    Raises:
        ValueError: no reading.
    """
    if not answers:
        raise ValueError("agreement needs at least one reading")
    counts: dict[str, list[str]] = defaultdict(list)
    for drawn in answers:
        if drawn is not None:
            answer, found = drawn
            counts[as_meant(answer) if found else ""].append(answer if found else "")
    best = max(counts.values(), key=len, default=[])
    return (best[0] if best else ""), len(best) / len(answers)


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
    if row.source == "agreement" and row.answers == ("",):
        return "nothing found"  # readings that find nothing agree with each other even if there is an answer
    return ""


def _side(document: str) -> Split:
    # 0 stands where a seed could be given.
    draw = int(stable_hash(0, [document])[:12], 16) / 16**12
    return SPLITS[bisect_right(_ENDS, draw)]


def _settle(same: list[Qa], dropped: list[Dropped]) -> list[Qa]:
    """Resolve rows with the same question and stream."""
    ranked = sorted(same, key=lambda row: (TRUST.index(row.source), repr(row)))
    best = [row for row in ranked if row.source == ranked[0].source]
    dropped += [Dropped(row, "a better source") for row in ranked[len(best) :]]
    if len({frozenset(map(as_meant, row.answers)) for row in best}) > 1:
        dropped += [Dropped(row, "contradictory") for row in best]
        return []
    dropped += [Dropped(row, "duplicate") for row in best[1:]]
    evidence = {segment for row in best for segment in row.evidence}
    spans = {span for row in best for span in row.spans}
    return [replace(best[0], evidence=tuple(sorted(evidence)), spans=tuple(sorted(spans)))]


def _distinct(rows: list[Qa], dropped: list[Dropped]) -> list[Qa]:
    kept: list[Qa] = []
    by_stream: dict[tuple[str, ...], list[tuple[set[str], Qa]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (TRUST.index(row.source), row.qa_id)):
        words = set(normalise(row.question).split())
        answers = frozenset(map(as_meant, row.answers))
        near = [
            other
            for others, other in by_stream[row.stream]
            if len(words & others) >= _SIMILAR * len(words | others)
            and frozenset(map(as_meant, other.answers)) == answers
        ]
        if near:
            dropped.append(Dropped(row, "near-duplicate"))
        else:
            by_stream[row.stream].append((words, row))
            kept.append(row)
    return kept
