"""The report's details: memories of readings and passages of documents, as many as the size limit allows."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from infra.store import Store
from infra.tables.delta import Table
from infra.tables.rows import EvidenceRow
from pipelines.report.data import Row, Run, load_texts
from pipelines.report.html import size
from pipelines.report.timeline import noted, timelines, unpack

_READINGS_AT_ONCE = 1_000
_CHARS_AT_ONCE = 20_000_000
_MEMORY_SHARE = 0.6
"""Share of the room for memories; the documents' passages get the rest, and what memories leave."""
_SAFE = 0.97
"""Sizes of passages are known before they are written as JSON; this is for what that adds."""
_PLACE_BYTES = 100
"""What is added to each change later: where its segment and its words stand in the document."""


@dataclass(frozen=True, slots=True)
class Place:
    """A run of characters of a document that the report points at."""

    start: int
    end: int


Bounds = list[tuple[int, int]]
"""First and last character (exclusive) of each segment of a document."""


@dataclass(slots=True)
class Details:
    """What fits the file."""

    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By reading_id."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By content hash."""
    memories_left_out: int = 0
    documents_left_out: int = 0


def gather(store: Store, run: Run, rows: list[Row], chars: dict[str, int], room: int) -> Details:
    """Collect memories and passages of `rows` into at most `room` bytes.

    Readings that found something come first: they are what people look up. `chars` has the length
    of each document by content hash.
    """
    details = Details()
    room = int(room * _SAFE)
    answered = [row for row in rows if row.answer is not None]
    answered.sort(key=lambda row: not (row.answer and row.answer["found"]))
    left = room - _take_memories(store, run, answered, room=int(room * _MEMORY_SHARE), details=details)
    shown: dict[str, list[Row]] = defaultdict(list)
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


def _take_memories(store: Store, run: Run, rows: list[Row], room: int, details: Details) -> int:
    used = 0
    for start in range(0, len(rows), _READINGS_AT_ONCE):
        batch = rows[start : start + _READINGS_AT_ONCE]
        logged = timelines(store, run, batch)
        for row in batch:
            timeline = logged.get(row.reading_id)
            if timeline is None:
                details.memories_left_out += 1
                continue
            needed = size(timeline) + _PLACE_BYTES * len(timeline["changes"])
            if used + needed > room:
                details.memories_left_out += 1
                continue
            used += needed
            details.memories[row.reading_id] = timeline
        if used > room * 0.98:
            details.memories_left_out += len(rows) - start - len(batch)
            break
    return used


def _touched(row: Row, timeline: dict[str, Any] | None) -> list[str]:
    hashes = [place["content_hash"] for place in row.evidence]
    hashes += [change["document"] for change in (timeline or {}).get("changes", []) if change["document"]]
    # Where nothing was taken up, the document itself is what one looks at.
    hashes += [row.plan["content_hash"]] if row.plan["scope"] == "document" else []
    return list(dict.fromkeys(hashes))


def _batches(hashes: list[str], chars: dict[str, int]) -> Iterator[list[str]]:
    """Cut `hashes` so that the texts of one batch fit in memory comfortably."""
    batch: list[str] = []
    size = 0
    for content_hash in hashes:
        batch.append(content_hash)
        size += chars.get(content_hash, 0)
        if size > _CHARS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _places(content_hash: str, text: str, cuts: list[Bounds], rows: list[Row], details: Details) -> list[Place]:
    """Return what to show of a document; writes the place of each change into the timelines on the way."""
    evidence: list[Place] = []
    taken: list[Place] = []
    changed: list[Place] = []
    for row in rows:
        spots = [spot for spot in row.evidence if spot["content_hash"] == content_hash]
        for spot in spots:
            quoted = spot["quote_start"] is not None and spot["quote_start"] >= 0
            evidence.append(
                Place(spot["quote_start"], spot["quote_end"]) if quoted else Place(spot["char_start"], spot["char_end"])
            )
        timeline = details.memories.get(row.reading_id)
        bounds = _choose(cuts, row, spots)
        if timeline is None or bounds is None:
            continue
        for change, (before, after) in zip(timeline["changes"], unpack(timeline["changes"]), strict=True):
            if change["document"] != content_hash or not 0 <= change["segment"] < len(bounds):
                continue
            start, end = bounds[change["segment"]]
            change["span"] = [start, end]
            change["noted"] = [[start + a, start + b] for a, b in noted(before, after, text[start:end])]
            taken += [Place(a, b) for a, b in change["noted"]]
            changed += [] if change["noted"] else [Place(start, end)]
    return evidence + taken + changed


def _choose(cuts: list[Bounds], row: Row, spots: list[EvidenceRow]) -> Bounds | None:
    """Return the segmentation that the reading had: the one that agrees with its evidence and length."""
    for bounds in cuts:
        if row.plan["scope"] == "document" and len(bounds) != row.plan["segments"]:
            continue
        if all(
            spot["segment_index"] < len(bounds)
            and bounds[spot["segment_index"]] == (spot["char_start"], spot["char_end"])
            for spot in spots
        ):
            return bounds
    return None


def _segment_bounds(store: Store, run: Run, hashes: list[str]) -> dict[str, list[Bounds]]:
    """Return the segmentations of documents, the newest first."""
    columns = ["content_hash", "part", "first_row", "segments", "written_at"]
    wanted = ds.field("content_hash").isin(pa.array(hashes, pa.string()))
    placed = Table(store, "segmented").read(run.corpus, columns, wanted).sort_by([("written_at", "descending")])
    by_part: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for place in placed.to_pylist():
        by_part[place["part"]].append(place)
    result: dict[str, list[Bounds]] = defaultdict(list)
    for part, places in by_part.items():
        table = store.read_part(part, columns=["char_start", "char_end"])
        for place in places:
            rows = table.slice(place["first_row"], place["segments"])
            pairs = zip(rows["char_start"].to_pylist(), rows["char_end"].to_pylist(), strict=True)
            result[place["content_hash"]].append(list(pairs))
    return result


_CONTEXTS = (2_000, 800, 300, 120)
"""Characters on either side of a place, widest first."""
_WHOLE = 400_000
"""Characters of a document that is embedded whole at most: the browser lays all of it out."""
_LONGEST = 2_000
"""Characters of one place at most; evidence is a sentence or two, a segment can be a chapter."""


def excerpt(text: str, places: list[Place], allowance: int) -> dict[str, Any] | None:
    """Choose what of `text` to show.

    Args:
        text: the document.
        places: what must be seen, most important first.
        allowance: bytes at most, in UTF-8.

    Returns:
        ``chars`` (of the document) and ``pieces``, a list of (first character, text); the whole
        document where it fits, else windows around the places, as wide as the allowance lets them
        be. None where not even one place fits.
    """
    if len(text) <= min(_WHOLE, allowance) and _size(text) <= allowance:
        return {"chars": len(text), "pieces": [[0, text]] if text else []}
    wanted = [Place(max(0, p.start), min(p.end, p.start + _LONGEST, len(text))) for p in places]
    for context in _CONTEXTS:
        pieces = _cut(text, wanted, context)
        if pieces and sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
    while wanted:
        pieces = _cut(text, wanted, _CONTEXTS[-1])
        if sum(_size(piece) for _, piece in pieces) <= allowance:
            return {"chars": len(text), "pieces": pieces}
        wanted = wanted[: len(wanted) // 2]
    return None


def _cut(text: str, places: list[Place], context: int) -> list[tuple[int, str]]:
    spans: list[list[int]] = []
    for place in sorted(places, key=lambda p: p.start):
        low, high = _low(text, place.start - context), _high(text, place.end + context)
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(high, spans[-1][1])
        else:
            spans.append([low, high])
    return [(low, text[low:high]) for low, high in spans]


def _low(text: str, at: int) -> int:
    """Move to where a word begins."""
    if at <= 0:
        return 0
    space = text.find(" ", at, at + 40)
    return at if space < 0 else space + 1


def _high(text: str, at: int) -> int:
    """Move to where a word ends."""
    if at >= len(text):
        return len(text)
    space = text.rfind(" ", at - 40, at)
    return at if space < 0 else space


def _size(text: str) -> int:
    return len(text.encode("utf-8"))
