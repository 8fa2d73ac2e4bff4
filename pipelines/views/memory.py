"""How the memory of a reading changed, as differences that a page can show."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal, NotRequired, TypedDict, cast

from infra.store.location import Corpus, Store
from infra.store.turns import turn_table
from memagent.reading.conversations import span_ranges
from memagent.reading.engine import CUT
from memagent.reading.evidence import locate
from memagent.records import TurnKind
from pipelines.io.answers import rounded
from pipelines.report.data import ReportedRun, ReportRow
from pipelines.views.formatting import plain

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_KEPT_CHARS = 60
"""That are shown of a passage that stayed, at each of its ends."""


@dataclass(frozen=True, slots=True)
class DiffPassage:
    """A stretch of a memory."""

    kind: Literal["same", "added", "removed"]
    text: str


def difference(before: str, after: str) -> list[DiffPassage]:
    """Return `after` with what was added to `before` and removed from it; what stays the same is shortened."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    parts: list[DiffPassage] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(DiffPassage("same", "".join(new[c:d])))
            continue
        if b > a:
            parts.append(DiffPassage("removed", "".join(old[a:b])))
        if d > c:
            parts.append(DiffPassage("added", "".join(new[c:d])))
    joined = [DiffPassage(kind, "".join(part.text for part in group)) for kind, group in groupby(parts, _kind)]
    return [_shortened(part) for part in joined]


def _kind(part: DiffPassage) -> Literal["same", "added", "removed"]:
    return part.kind


def _shortened(part: DiffPassage) -> DiffPassage:
    if part.kind != "same" or len(part.text) <= 3 * _KEPT_CHARS:
        return part
    return DiffPassage("same", f"{part.text[:_KEPT_CHARS]} … {part.text[-_KEPT_CHARS:]}")


_NOTED_MOST = 3
_NOTED_CHARS = 8
"""Shorter pieces of a memory occur in a segment by chance."""


class MemoryChange(TypedDict):
    """A turn that changed the memory, as ``reading.js`` reads it."""

    kind: str
    position: int
    """Segment of the stream; -1 for a merge of spans."""
    span: int
    document: str
    """Content hash."""
    segment: int
    """Segment of the document."""
    memory: list[int | str]
    """See `pack`."""
    cut: bool
    prompt: int
    cached: int
    seconds: float
    characters: NotRequired[list[int]]
    """First and last character (exclusive) of the segment in its document."""
    noted: NotRequired[list[list[int]]]
    """Characters of the document that the memory took up word for word."""


class Timeline(TypedDict):
    """How a reading's memory developed."""

    strip: str
    """One letter per segment of the stream: ``u`` read and memory unchanged, ``c`` changed, ``r`` repetition; ``k`` and
    ``C`` as ``u`` and ``c``, but carried over from an earlier version of the document; ``n`` not read."""
    changes: list[MemoryChange]
    cut: str
    """Finish reason of an answer that was cut off, else empty."""


class _LoggedTurn(TypedDict):
    reading_id: str
    span: int
    step: int
    kind: str
    content_hash: str
    segment_index: int
    memory: str
    changed: bool
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str
    seconds: float


def timelines(store: Store, run: ReportedRun, rows: Iterable[ReportRow]) -> dict[str, Timeline]:
    """Return the timelines of readings by reading_id."""
    by_reading = {row.reading_id: row for row in rows}
    turns: dict[str, list[_LoggedTurn]] = defaultdict(list)
    for turn in turn_table(Corpus(store, run.corpus), by_reading, list(_LoggedTurn.__annotations__)).to_pylist():
        turns[turn["reading_id"]].append(turn)
    return {reading_id: _timeline(by_reading[reading_id], logged) for reading_id, logged in turns.items()}


def pack(before: str, after: str) -> list[int | str]:
    """Encode a memory as a difference from the one before: [head, tail, the text between].

    `head` and `tail` are the lengths of the common prefix and suffix in UTF-16 units, as JavaScript counts.
    """
    head = _shared(before, after)
    room = min(len(before), len(after)) - head
    tail = _shared(before[::-1][:room], after[::-1][:room])
    return [_units(after[:head]), _units(after[len(after) - tail :]), after[head : len(after) - tail]]


def noted(before: str, after: str, text: str) -> list[tuple[int, int]]:
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
    parts = re.split(r"\n|(?<=[.;])\s+", memory)
    return [line for part in parts if (line := part.strip(" \t\r-*•.;"))]


def _shared(a: str, b: str) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _timeline(row: ReportRow, turns: list[_LoggedTurn]) -> Timeline:
    reads = [turn for turn in turns if turn["kind"] in ("update", "carried")]
    merges = [turn for turn in turns if turn["kind"] == "merge"]
    spans = merges[0]["span"] if merges else 1 + max((turn["span"] for turn in reads), default=0)
    length = max([row.plan["segments"] or 0, *(turn["step"] + 1 for turn in reads if spans == 1)])
    starts = [span.start for span in span_ranges(length, spans)]
    strip = ["n"] * length
    carried = (row.answer or row.plan)["carried_segments"] or 0
    strip[:carried] = "k" * min(length, carried)
    memories: dict[int, str] = defaultdict(str)
    changes: list[MemoryChange] = []
    for turn in [*reads, *merges]:
        position = starts[turn["span"]] + turn["step"] if turn["kind"] != "merge" and turn["span"] < len(starts) else -1
        if 0 <= position < length:
            strip[position] = _mark(turn)
        if turn["changed"]:
            changes.append(_change(turn, position, memories[turn["span"]]))
            memories[turn["span"]] = turn["memory"]
    ends = [turn["finish_reason"] for turn in turns if turn["kind"] == "answer"]
    return {"strip": "".join(strip), "changes": changes, "cut": ends[-1] if ends and ends[-1] in CUT else ""}


def _mark(turn: _LoggedTurn) -> str:
    if turn["kind"] == "carried":
        return "C" if turn["changed"] else "k"
    return "c" if turn["changed"] else "r" if turn["finish_reason"] == "repetition" else "u"


def _change(turn: _LoggedTurn, position: int, before: str) -> MemoryChange:
    return {
        "kind": turn["kind"],
        "position": position,
        "span": turn["span"],
        "document": turn["content_hash"],
        "segment": turn["segment_index"],
        "memory": pack(before, turn["memory"]),
        "cut": turn["finish_reason"] in CUT,
        "prompt": turn["prompt_tokens"],
        "cached": turn["cached_tokens"],
        "seconds": round(turn["seconds"], 3),
    }


def unpack(changes: Sequence[MemoryChange]) -> list[tuple[str, str]]:
    """Return the memories before and after each change."""
    memories: dict[int, str] = defaultdict(str)
    result = []
    for change in changes:
        before = memories[change["span"]]
        units = before.encode("utf-16-le", "surrogatepass")
        head, tail, between = cast(tuple[int, int, str], change["memory"])
        after = units[: 2 * head].decode("utf-16-le") + between + units[len(units) - 2 * tail :].decode("utf-16-le")
        memories[change["span"]] = after
        result.append((before, after))
    return result


MOST = 60
"""Changes on a page."""
_COLUMNS = [
    *("reading_id", "span", "step", "kind", "content_hash", "segment_index", "memory", "changed", "finish_reason"),
    "confidence",
]


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """A conversation after which the memory was another one."""

    segment: int
    """Of the document, from 1; 0: where spans were merged."""
    span: int
    content_hash: str
    carried: bool
    """Carried over from an earlier version of the document."""
    cut: bool
    """Whether the limit of tokens ended it."""
    parts: list[DiffPassage]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The conversation in which a reader was least sure."""

    kind: Literal["update", "merge", "answer"]
    segment: int
    """As of a `Change`."""
    confidence: float


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a memory, the first ones if there are very many."""

    changes: list[MemoryStep]
    segments: int
    """That were read."""
    left_out: int
    doubt: Doubt | None
    """None: it is not known, or there was none."""


class _Turn(TypedDict):
    span: int
    step: int
    kind: TurnKind
    content_hash: str
    segment_index: int
    memory: str
    changed: bool
    finish_reason: str
    confidence: float | None


def history(corpus: Corpus, reading_id: str, run_id: str) -> History:
    """Return how the memory of a reading changed, from the turn log: of its own run, or of all where it was resumed."""
    turns: list[_Turn] = turn_table(corpus, [reading_id], _COLUMNS, runs=[run_id]).to_pylist()
    if not any(turn["step"] == 0 for turn in turns):
        turns = turn_table(corpus, [reading_id], _COLUMNS).to_pylist()
    order = sorted(turns, key=lambda turn: (turn["kind"] == "merge", turn["span"], turn["step"]))
    memories: dict[int, str] = defaultdict(str)
    changes: list[MemoryStep] = []
    for turn in order:
        if not turn["changed"] or turn["kind"] == "answer":
            continue
        after = plain(turn["memory"])
        parts = difference(memories[turn["span"]], after)
        memories[turn["span"]] = after
        changes.append(
            MemoryStep(
                segment=_segment(turn),
                span=turn["span"],
                content_hash=turn["content_hash"],
                carried=turn["kind"] == "carried",
                cut=turn["finish_reason"] in CUT,
                parts=parts,
            )
        )
    read = sum(turn["kind"] in ("update", "carried") for turn in turns)
    return History(changes[:MOST], read, max(0, len(changes) - MOST), _doubt(order))


def _segment(turn: _Turn) -> int:
    return turn["segment_index"] + 1 if turn["kind"] in ("update", "carried") else 0


def _doubt(turns: Sequence[_Turn]) -> Doubt | None:
    """Return the doubt of a reading's turns, in order: the first that has the lowest of the lowest so far."""
    known = [(sure, turn) for turn in turns if (sure := rounded(turn["confidence"])) is not None]
    if len(known) < len(turns) or not known:
        return None
    confidence, turn = min(known, key=lambda one: (one[0], one[1]["kind"] == "answer"))
    kind = "update" if turn["kind"] == "carried" else turn["kind"]
    return Doubt(kind, _segment(turn), confidence) if confidence < 1 else None
