"""The report's details: memories of readings and passages of documents, up to the size limit."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import pyarrow as pa
import pyarrow.dataset as ds

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.rows import EvidenceRow
from pipelines.report.data import ReportedRun, ReportRow, load_texts
from pipelines.report.html import size
from pipelines.views.memory import Timeline, noted, timelines, unpack

_READINGS_AT_ONCE = 1_000
_CHARS_AT_ONCE = 20_000_000
_UNKNOWN_CHARS = 100_000
"""Counted for a document whose length is not known: one of many that changed the memory of a large archive."""
_MEMORY_SHARE = 0.6
"""Share of the room for memories; passages of documents get the rest."""
_SAFE = 0.97
"""Margin for what JSON escapes add to the sizes of passages."""
_SPAN_BYTES = 100
"""Size of `Change.characters` and `Change.noted`, which are added later."""


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A span of characters of a document that the report refers to."""

    start: int
    end: int


class Excerpt(TypedDict):
    """Passages of a document, as ``document.js`` reads them."""

    chars: int
    """Characters of the document."""
    pieces: list[tuple[int, str]]
    """Offset of the first character, and text."""


class _Segmented(TypedDict):
    content_hash: str
    part: str
    first_row: int
    segments: int


Bounds = list[tuple[int, int]]
"""First and last character (exclusive) of each segment of a document."""


@dataclass(slots=True)
class Details:
    """The memories and passages that fit the file."""

    memories: dict[str, Timeline] = field(default_factory=dict)
    """By reading_id."""
    documents: dict[str, Excerpt] = field(default_factory=dict)
    """By content hash."""
    memories_left_out: int = 0
    documents_left_out: int = 0


def gather(store: Store, run: ReportedRun, rows: list[ReportRow], chars: dict[str, int], room: int) -> Details:
    """Collect memories and passages of `rows` into at most `room` bytes.

    Readings that found an answer come first. `chars` has the length of each document by content hash.
    """
    details = Details()
    room = int(room * _SAFE)
    answered = [row for row in rows if row.answer is not None]
    answered.sort(key=lambda row: not (row.answer and row.answer["found"]))
    left = room - _take_memories(store, run, answered, room=int(room * _MEMORY_SHARE), details=details)
    shown: dict[str, list[ReportRow]] = defaultdict(list)
    for row in answered:
        for content_hash in _touched(row, details.memories.get(row.reading_id)):
            shown[content_hash].append(row)
    todo = len(shown)
    for batch in _batches(list(shown), chars):
        texts = load_texts(store, run, batch)
        bounds = _segment_bounds(store, run, batch)
        for content_hash in batch:
            allowance, todo = max(0, left // todo), todo - 1
            passages, places = None, []
            if content_hash in texts:
                places = _places(
                    content_hash, texts[content_hash], bounds[content_hash], rows=shown[content_hash], details=details
                )
                passages = excerpt(texts[content_hash], places, allowance)
            if passages is None:
                details.documents_left_out += bool(places)
                continue
            details.documents[content_hash] = passages
            left -= size(passages)
    return details


def _take_memories(store: Store, run: ReportedRun, rows: list[ReportRow], room: int, details: Details) -> int:
    used = 0
    for start in range(0, len(rows), _READINGS_AT_ONCE):
        batch = rows[start : start + _READINGS_AT_ONCE]
        logged = timelines(store, run, batch)
        for row in batch:
            timeline = logged.get(row.reading_id)
            if timeline is None:
                details.memories_left_out += 1
                continue
            needed = size(timeline) + _SPAN_BYTES * len(timeline["changes"])
            if used + needed > room:
                details.memories_left_out += 1
                continue
            used += needed
            details.memories[row.reading_id] = timeline
        if used > room * 0.98:
            details.memories_left_out += len(rows) - start - len(batch)
            break
    return used


def _touched(row: ReportRow, timeline: Timeline | None) -> list[str]:
    """Return the content hashes of the documents that a reading's details refer to."""
    hashes = [evidence["content_hash"] for evidence in row.evidence]
    hashes += [change["document"] for change in (timeline["changes"] if timeline else []) if change["document"]]
    hashes += [row.plan["content_hash"]] if row.plan["scope"] == "document" else []
    return list(dict.fromkeys(hashes))


def _batches(hashes: list[str], chars: dict[str, int]) -> Iterator[list[str]]:
    """Split `hashes` into batches whose texts fit in memory."""
    batch: list[str] = []
    size = 0
    for content_hash in hashes:
        batch.append(content_hash)
        size += chars.get(content_hash, _UNKNOWN_CHARS)
        if size > _CHARS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _places(
    content_hash: str, text: str, segmentations: list[Bounds], rows: list[ReportRow], details: Details
) -> list[ShownPlace]:
    """Return what to show of a document; also adds the spans of each change to the timelines."""
    evidence: list[ShownPlace] = []
    taken: list[ShownPlace] = []
    changed: list[ShownPlace] = []
    for row in rows:
        spots = [spot for spot in row.evidence if spot["content_hash"] == content_hash]
        for spot in spots:
            quoted = spot["quote_start"] is not None and spot["quote_start"] >= 0
            evidence.append(
                ShownPlace(spot["quote_start"], spot["quote_end"])
                if quoted
                else ShownPlace(spot["char_start"], spot["char_end"])
            )
        timeline = details.memories.get(row.reading_id)
        bounds = _segmentation_of(row, segmentations, spots)
        if timeline is None or bounds is None:
            continue
        for change, (before, after) in zip(timeline["changes"], unpack(timeline["changes"]), strict=True):
            if change["document"] != content_hash or not 0 <= change["segment"] < len(bounds):
                continue
            start, end = bounds[change["segment"]]
            change["characters"] = [start, end]
            change["noted"] = [[start + a, start + b] for a, b in noted(before, after, text[start:end])]
            taken += [ShownPlace(a, b) for a, b in change["noted"]]
            changed += [] if change["noted"] else [ShownPlace(start, end)]
    return evidence + taken + changed


def _segmentation_of(row: ReportRow, segmentations: list[Bounds], spots: Sequence[EvidenceRow]) -> Bounds | None:
    """Return the segmentation that fits a reading's evidence and number of segments."""
    for bounds in segmentations:
        if row.plan["scope"] == "document" and len(bounds) != row.plan["segments"]:
            continue
        if all(
            spot["segment_index"] < len(bounds)
            and bounds[spot["segment_index"]] == (spot["char_start"], spot["char_end"])
            for spot in spots
        ):
            return bounds
    return None


def _segment_bounds(store: Store, run: ReportedRun, hashes: list[str]) -> dict[str, list[Bounds]]:
    """Return the segmentations of documents, newest first."""
    columns = ["content_hash", "part", "first_row", "segments", "written_at"]
    selected = ds.field("content_hash").isin(pa.array(hashes, pa.string()))
    table = Table(store, "segmented").read(run.corpus, columns, selected).sort_by([("written_at", "descending")])
    by_part: dict[str, list[_Segmented]] = defaultdict(list)
    for document in table.to_pylist():
        by_part[document["part"]].append(document)
    result: dict[str, list[Bounds]] = defaultdict(list)
    for part, documents in by_part.items():
        segments = store.read_part(part, columns=["char_start", "char_end"])
        for document in documents:
            rows = segments.slice(document["first_row"], document["segments"])
            pairs = zip(rows["char_start"].to_pylist(), rows["char_end"].to_pylist(), strict=True)
            result[document["content_hash"]].append(list(pairs))
    return result


_CONTEXTS = (2_000, 800, 300, 120)
"""Characters of context on either side of a place, widest first."""
_WHOLE = 400_000
"""Longest document that is embedded whole, in characters: the browser lays out all of it."""
_LONGEST = 2_000
"""Most characters of one place; evidence is short, but a segment can be a chapter."""


def excerpt(text: str, places: list[ShownPlace], allowance: int) -> Excerpt | None:
    """Choose the passages of `text` to show.

    Args:
        text: the document.
        places: spans to show, most important first.
        allowance: most bytes, in UTF-8.

    Returns:
        The whole document if it fits, else windows around the places, as wide as the allowance permits. None if not
        even one place fits.
    """
    if len(text) <= min(_WHOLE, allowance) and _size(text) <= allowance:
        return {"chars": len(text), "pieces": [(0, text)] if text else []}
    shown = [ShownPlace(max(0, p.start), min(p.end, p.start + _LONGEST, len(text))) for p in places]
    for context in _CONTEXTS:
        pieces = _cut(text, shown, context)
        if pieces and sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
    while shown:
        pieces = _cut(text, shown, _CONTEXTS[-1])
        if sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
        shown = shown[: len(shown) // 2]
    return None


def _cut(text: str, places: list[ShownPlace], context: int) -> list[tuple[int, str]]:
    spans: list[list[int]] = []
    for piece in sorted(places, key=lambda p: p.start):
        low, high = _low(text, piece.start - context), _high(text, piece.end + context)
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(high, spans[-1][1])
        else:
            spans.append([low, high])
    return [(low, text[low:high]) for low, high in spans]


def _low(text: str, offset: int) -> int:
    """Return the start of a word near an offset."""
    if offset <= 0:
        return 0
    space = text.find(" ", offset, offset + 40)
    return offset if space < 0 else space + 1


def _high(text: str, offset: int) -> int:
    """Return the end of a word near an offset."""
    if offset >= len(text):
        return len(text)
    space = text.rfind(" ", offset - 40, offset)
    return offset if space < 0 else space


def _size(text: str) -> int:
    return len(text.encode("utf-8"))
