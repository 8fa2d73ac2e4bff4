"""The history of a reading's memory: what each of its conversations changed, as the turn log tells it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, TypedDict

from infra.store.location import Corpus
from infra.store.turns import turn_table
from memagent.reading.boundaries import sentence_ends
from memagent.reading.conversations import span_ranges
from memagent.reading.engine import CUT, LOST
from memagent.reading.folding import locate
from memagent.records import TurnKind
from pipelines.views.formatting import plain, rounded

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_KEPT_CHARS = 60
"""That are shown of a passage that stayed, at each of its ends."""
_NOTED_MOST = 3
_NOTED_CHARS = 8
"""Shorter pieces of a memory occur in a segment by chance."""


@dataclass(frozen=True, slots=True)
class DiffPassage:
    """A stretch of a memory."""

    kind: Literal["same", "added", "removed"]
    text: str


class ReadSegment(NamedTuple):
    """A segment that a reading has read."""

    span: int
    step: int
    """Its place in the span, from 0."""
    mark: str
    """``u`` memory unchanged, ``c`` changed, ``r`` unchanged since the model repeated itself or said nothing; ``k``
    and ``C`` as ``u`` and ``c``, but carried over from an earlier version of the document."""


@dataclass
class MemoryChange:
    """A conversation after which the memory of its span was another one."""

    kind: TurnKind
    span: int
    step: int
    content_hash: str
    segment: int
    """Of the document, from 0; -1: spans were merged."""
    before: str
    after: str
    cut: bool
    """Whether the limit of tokens ended it, or a repetition."""
    characters: tuple[int, int] | None = None
    """First and last character (exclusive) of the segment in its document, once they are looked up (`locate_in`)."""
    noted: list[tuple[int, int]] = field(default_factory=list)
    """Characters of the document that the memory took up word for word."""

    @property
    def where(self) -> str:
        """The conversation as people are shown it."""
        if self.kind == "merge":
            return "The memories of the spans are put together"
        span = f", span {self.span + 1}" if self.span else ""
        return f"Segment {self.segment + 1:,}{span}" + (", carried over" if self.kind == "carried" else "")

    @cached_property
    def parts(self) -> list[DiffPassage]:
        """The memory, with what was added and removed."""
        return difference(plain(self.before), plain(self.after))

    def locate_in(self, text: str, start: int, end: int) -> None:
        """Look up its place in the document's text, where its segment begins at `start` and ends before `end`."""
        self.characters = (start, end)
        self.noted = [(start + a, start + b) for a, b in noted_spans(self.before, self.after, text[start:end])]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The conversation in which a reader was least sure."""

    kind: Literal["update", "merge", "answer"]
    segment: int
    """As of a `MemoryChange`."""
    confidence: float


@dataclass(frozen=True, slots=True)
class ShownChanges:
    """Some changes of a memory, for a page that has no room for all."""

    changes: Sequence[MemoryChange]
    left_out: int


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """How the memory of a reading changed."""

    changes: list[MemoryChange]
    read: list[ReadSegment]
    spans: int
    answer_cut: str
    """Finish reason of an answer that was cut off, else empty."""
    doubt: Doubt | None
    """None: it is not known, or there was none."""

    @property
    def documents(self) -> list[str]:
        """The content hashes of the documents that changed the memory."""
        return list(dict.fromkeys(change.content_hash for change in self.changes if change.content_hash))

    def shown(self, most: int, first: int = 0) -> ShownChanges:
        """Return at most `most` changes from number `first` on, from an earlier one if fewer would be left."""
        first = max(0, min(first, len(self.changes) - most))
        changes = self.changes[first : first + most]
        return ShownChanges(changes, len(self.changes) - len(changes))

    def stream(self, segments: int, carried: int) -> tuple[str, list[int]]:
        """Lay the reading out over its stream, of so many `segments` by the plan. The first `carried` were carried
        over; the log does not have all of them.

        Returns one letter per segment, its mark or ``n`` (not read); and the position of each change, -1 of a merge.
        """
        length = max([segments, *(one.step + 1 for one in self.read if self.spans == 1)])
        starts = [span.start for span in span_ranges(length, self.spans)]
        strip = ["n"] * length
        strip[:carried] = "k" * min(length, carried)
        for one in self.read:
            if one.span < len(starts) and (position := starts[one.span] + one.step) < length:
                strip[position] = one.mark
        positions = [
            -1 if change.kind == "merge" or change.span >= len(starts) else starts[change.span] + change.step
            for change in self.changes
        ]
        return "".join(strip), positions


class _LoggedTurn(TypedDict):
    reading_id: str
    span: int
    step: int
    kind: TurnKind
    content_hash: str
    segment_index: int
    memory: str
    changed: bool
    finish_reason: str
    confidence: float | None


def histories(corpus: Corpus, reading_ids: Iterable[str], run_id: str = "") -> dict[str, MemoryHistory]:
    """Return the histories of a corpus's readings by reading_id, as far as the turn log has them.

    The log of the run that gave the answers is searched first, and others only where a reading was resumed.
    """
    wanted, found = set(reading_ids), dict[str, MemoryHistory]()
    for runs in ([run_id], None) if run_id else (None,):
        if found.keys() == wanted:
            break
        turns: dict[str, list[_LoggedTurn]] = defaultdict(list)
        for turn in turn_table(corpus, wanted - found.keys(), list(_LoggedTurn.__annotations__), runs).to_pylist():
            turns[turn["reading_id"]].append(turn)
        found |= {
            reading_id: _history(logged)
            for reading_id, logged in turns.items()
            if runs is None or any(turn["step"] == 0 for turn in logged)
        }
    return found


def _history(turns: Sequence[_LoggedTurn]) -> MemoryHistory:
    """Return the history that turns tell, which are in the log's order: spans, then merges, then the answer."""
    reads = [turn for turn in turns if turn["kind"] in ("update", "carried")]
    merged = next((turn["span"] for turn in turns if turn["kind"] == "merge"), None)
    memories: dict[int, str] = defaultdict(str)
    changes = []
    for turn in turns:
        if turn["changed"] and turn["kind"] != "answer":
            changes.append(
                MemoryChange(
                    kind=turn["kind"],
                    span=turn["span"],
                    step=turn["step"],
                    content_hash=turn["content_hash"],
                    segment=turn["segment_index"],
                    before=memories[turn["span"]],
                    after=turn["memory"],
                    cut=turn["finish_reason"] in CUT,
                )
            )
            memories[turn["span"]] = turn["memory"]
    ends = [turn["finish_reason"] for turn in turns if turn["kind"] == "answer"]
    return MemoryHistory(
        changes,
        [ReadSegment(turn["span"], turn["step"], _mark(turn)) for turn in reads],
        1 + max((turn["span"] for turn in reads), default=0) if merged is None else merged,
        ends[-1] if ends and ends[-1] in CUT else "",
        _doubt(turns),
    )


def _mark(turn: _LoggedTurn) -> str:
    if turn["kind"] == "carried":
        return "C" if turn["changed"] else "k"
    return "c" if turn["changed"] else "r" if turn["finish_reason"] in LOST else "u"


def _doubt(turns: Sequence[_LoggedTurn]) -> Doubt | None:
    """Return the doubt of a reading's turns, in order: the first that has the lowest of the lowest so far."""
    known = [(sure, turn) for turn in turns if (sure := rounded(turn["confidence"])) is not None]
    if len(known) < len(turns) or not known:
        return None
    confidence, turn = min(known, key=lambda one: (one[0], one[1]["kind"] == "answer"))
    kind = "update" if turn["kind"] == "carried" else turn["kind"]
    return Doubt(kind, turn["segment_index"], confidence) if confidence < 1 else None


def difference(before: str, after: str) -> list[DiffPassage]:
    """Return `after` with what was added to `before` and removed from it; what stays the same is shortened."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    parts: list[DiffPassage] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = "".join(old[a:b]), "".join(new[c:d])
        if kind == "equal":
            long = len(come) > 3 * _KEPT_CHARS
            parts.append(DiffPassage("same", f"{come[:_KEPT_CHARS]} … {come[-_KEPT_CHARS:]}" if long else come))
            continue
        parts += [DiffPassage("removed", gone)] if gone else []
        parts += [DiffPassage("added", come)] if come else []
    return parts


def noted_spans(before: str, after: str, text: str) -> list[tuple[int, int]]:
    """Return the character spans of a segment that a memory took up word for word, longest first."""
    old = set(_lines(before))
    spans = []
    for line in sorted((line for line in _lines(after) if line not in old), key=len, reverse=True):
        if len(line) >= _NOTED_CHARS and (span := locate(line, text)):
            spans.append(span)
        if len(spans) == _NOTED_MOST:
            break
    return spans


def _lines(memory: str) -> list[str]:
    sentences = (memory[start:end] for start, end in pairwise([0, *sentence_ends(memory), len(memory)]))
    parts = (part for sentence in sentences for part in re.split(r"\n|(?<=[.;])\s+", sentence))
    return [line for part in parts if (line := part.strip(" \t\r-*•.;。"))]
