"""The report's details: memories of readings and passages of documents, up to the size limit."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.store.buckets import groups_of
from infra.store.documents import document_texts
from infra.store.location import Corpus
from infra.store.segments import Bounds, fitting, segment_bounds
from memagent.records import Json
from pipelines.report.data import ReportRow
from pipelines.report.html import size
from pipelines.views.memory import MemoryHistory, histories
from pipelines.views.passages import Excerpt, Span, excerpt, place_of

_READINGS_AT_ONCE = 1_000
_CHARS_AT_ONCE = 20_000_000
_UNKNOWN_CHARS = 100_000
"""Counted for a document whose length is not known: one of many that changed the memory of a large archive."""
_MEMORY_SHARE = 0.6
"""Share of the room for memories; passages of documents get the rest."""
_SAFE = 0.97
"""Margin for what JSON escapes add to the sizes of passages."""
_SPAN_BYTES = 100
"""Size of a change's characters, which are looked up later."""


@dataclass(slots=True)
class Details:
    """The memories and passages that fit the file."""

    memories: dict[str, MemoryHistory] = field(default_factory=dict)
    """By reading_id."""
    documents: dict[str, Excerpt] = field(default_factory=dict)
    """By content hash."""
    memories_left_out: int = 0
    documents_left_out: int = 0


def gather(corpus: Corpus, rows: list[ReportRow], chars: dict[str, int], room: int) -> Details:
    """Collect memories and passages of `rows` into at most `room` bytes.

    Readings that found an answer come first. `chars` has the length of each document by content hash.
    """
    details = Details()
    room = int(room * _SAFE)
    answered = [row for row in rows if row.answer is not None]
    answered.sort(key=lambda row: not row.found)
    left = room - _take_memories(corpus, answered, room=int(room * _MEMORY_SHARE), details=details)
    shown: dict[str, list[ReportRow]] = defaultdict(list)
    for row in answered:
        for content_hash in _touched(row, details.memories.get(row.reading_id)):
            shown[content_hash].append(row)
    todo = len(shown)
    sizes = ((name, chars.get(name, _UNKNOWN_CHARS)) for name in shown)
    for batch in groups_of(sizes, _CHARS_AT_ONCE):
        texts = dict(document_texts(corpus, batch))
        bounds = segment_bounds(corpus, batch)
        for content_hash in batch:
            allowance, todo = max(0, left // todo), todo - 1
            passages, places = None, []
            if (text := texts.get(content_hash)) is not None:
                places = _places(content_hash, text, bounds[content_hash], rows=shown[content_hash], details=details)
                passages = excerpt(text, places, allowance)
            if passages is None:
                details.documents_left_out += bool(places)
                continue
            details.documents[content_hash] = passages
            left -= size(passages)
    return details


def timeline(row: ReportRow, history: MemoryHistory, document: Callable[[str], object]) -> Json:
    """Return a history as ``reading.js`` reads it; `document` names a document by its content hash."""
    strip, positions = history.stream(row.plan["segments"] or 0, (row.answer or row.plan)["carried_segments"] or 0)
    changes = [
        {
            "kind": change.kind,
            "position": position,
            "span": change.span,
            "document": document(change.content_hash) if change.content_hash else -1,
            "segment": change.segment,
            "memory": pack(change.before, change.after),
            "cut": change.cut,
        }
        | ({"characters": change.characters, "noted": change.noted} if change.characters else {})
        for change, position in zip(history.changes, positions, strict=True)
    ]
    return {"strip": strip, "changes": changes, "cut": history.answer_cut}


def pack(before: str, after: str) -> tuple[int, int, str]:
    """Encode a memory as a difference from the one before: (head, tail, the text between).

    `head` and `tail` are the lengths of the common prefix and suffix in UTF-16 units, as JavaScript counts.
    """
    head = _shared(before, after)
    room = min(len(before), len(after)) - head
    tail = _shared(before[::-1][:room], after[::-1][:room])
    return _units(after[:head]), _units(after[len(after) - tail :]), after[head : len(after) - tail]


def _shared(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _take_memories(corpus: Corpus, rows: list[ReportRow], room: int, details: Details) -> int:
    used = 0
    for start in range(0, len(rows), _READINGS_AT_ONCE):
        batch = rows[start : start + _READINGS_AT_ONCE]
        logged = histories(corpus, [row.reading_id for row in batch])
        for row in batch:
            history, needed = logged.get(row.reading_id), room
            if history is not None:
                needed = size(timeline(row, history, str)) + _SPAN_BYTES * len(history.changes)
            if history is None or used + needed > room:
                details.memories_left_out += history is not None  # a turn log may be gone
                continue
            used += needed
            details.memories[row.reading_id] = history
        if used > room * 0.98:
            details.memories_left_out += len(rows) - start - len(batch)
            break
    return used


def _touched(row: ReportRow, history: MemoryHistory | None) -> list[str]:
    """Return the content hashes of the documents that a reading's details refer to."""
    hashes = [evidence["content_hash"] for evidence in row.evidence]
    hashes += history.documents if history else []
    hashes += [row.plan["content_hash"]] if row.plan["scope"] == "document" else []
    return list(dict.fromkeys(hashes))


def _places(
    content_hash: str, text: str, segmentations: list[Bounds], rows: list[ReportRow], details: Details
) -> list[Span]:
    """Return what to show of a document; also looks up the place of each change of a memory in it."""
    evidence: list[Span] = []
    noted: list[Span] = []
    changed: list[Span] = []
    for row in rows:
        evidence += [place_of(spot) for spot in row.evidence if spot["content_hash"] == content_hash]
        read = [spot for spot in (row.answer and row.answer["evidence"]) or () if spot["content_hash"] == content_hash]
        history = details.memories.get(row.reading_id)
        bounds = fitting(segmentations, row.plan["segments"] if row.plan["scope"] == "document" else None, read)
        if history is None or bounds is None:
            continue
        for change in history.changes:
            if change.content_hash == content_hash and 0 <= change.segment < len(bounds):
                change.locate_in(text, *bounds[change.segment])
                noted += [Span(*place) for place in change.noted]
                changed += [] if change.noted else [Span(*bounds[change.segment])]
    return evidence + noted + changed
