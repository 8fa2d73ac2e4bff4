"""The changes of a reading's memory, from the turn log."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NotRequired, TypedDict, cast

from infra.store import Corpus, Store
from infra.tables.turns import turn_table
from memagent.engine import CUT
from memagent.evidence import locate
from memagent.parallel_spans import span_ranges
from pipelines.report.data import ReportedRun, ReportRow

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


class _Turn(TypedDict):
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
    turns: dict[str, list[_Turn]] = defaultdict(list)
    for turn in turn_table(Corpus(store, run.corpus), by_reading, list(_Turn.__annotations__)).to_pylist():
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


def _timeline(row: ReportRow, turns: list[_Turn]) -> Timeline:
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


def _mark(turn: _Turn) -> str:
    if turn["kind"] == "carried":
        return "C" if turn["changed"] else "k"
    return "c" if turn["changed"] else "r" if turn["finish_reason"] == "repetition" else "u"


def _change(turn: _Turn, position: int, before: str) -> MemoryChange:
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
