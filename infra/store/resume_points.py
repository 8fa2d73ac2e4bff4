"""Where readings resume: interrupted ones from their own turns, changed documents from their earlier version.

The memory after segment k depends on segments up to k alone. So an interrupted reading resumes after its last turn, and
a changed document from its first changed segment.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from infra.readers import ReaderSpec
from infra.store.buckets import one_of
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.runs import withheld_runs
from infra.store.schemas import PLACES, AnswerRow, PlannedReading, SegmentRange
from infra.store.segments import segment_hashes, segmented_table, stream_of
from infra.store.turns import carry, resume_points
from memagent.records import Turn


def find_past(
    corpus: Corpus,
    reader: ReaderSpec,
    pending: Mapping[str, PlannedReading],
    *,
    unfinished: Collection[str],
    grown: Collection[str],
    streams: Callable[[PlannedReading], list[str]],
    reread: bool,
) -> dict[str, list[Turn]]:
    """Return the turns from which readings resume, by reading_id.

    Args:
        pending: the readings that are not answered, by reading_id.
        unfinished: runs that did not come to their end; only their turns are searched for half-read readings.
        grown: ids of the documents that had an earlier version.
        streams: gives the content hashes that a reading reads.
        reread: continue from memories of this very policy version only.
    """
    past = resume_points(corpus, pending, unfinished)
    if not reader.goes_on:
        return past
    fresh = [
        row
        for reading_id, row in pending.items()
        if reading_id not in past
        and (row["scope"] == "archive" or row["doc_id"] in grown)
        and reader.reading.parallel_spans_of(row["segments"])
        == 1  # the spans of spans depend on the length of the stream
    ]
    if not fresh:
        return past
    earlier = _earlier_answers(corpus, reader, fresh, reread)
    if not earlier:
        return past
    fresh = [row for row in fresh if row["reading_id"] in earlier]
    return past | _carried(corpus, reader, fresh, earlier, streams=streams)


def _carried(
    corpus: Corpus,
    reader: ReaderSpec,
    rows: Sequence[PlannedReading],
    earlier: Mapping[str, AnswerRow],
    streams: Callable[[PlannedReading], list[str]],
) -> dict[str, list[Turn]]:
    """Return, for readings that have an earlier one, its memories over the segments that both share."""
    old = {answer["content_hash"]: answer for answer in earlier.values()}
    before = {content_hash: stream_of(corpus, answer) for content_hash, answer in old.items()}
    after = {content_hash: streams(row) for content_hash, row in {row["content_hash"]: row for row in rows}.items()}
    hashes = {name for stream in (*before.values(), *after.values()) for name in stream}
    places = _Places(segmented_table(corpus, reader.tokenizer, reader.reading, hashes=hashes, columns=PLACES.names))
    shared: dict[tuple[str, str], int] = {}  # questions on one document share it
    keep: dict[str, int] = {}
    for row in rows:
        key = (earlier[row["reading_id"]]["content_hash"], row["content_hash"])
        if key not in shared:
            shared[key] = _shared_segments(corpus.store, before[key[0]], after[key[1]], places)
        if shared[key]:
            keep[row["reading_id"]] = shared[key]
    logs = resume_points(corpus, {earlier[name]["reading_id"] for name in keep})
    carried = {name: carry(logs.get(earlier[name]["reading_id"], []), name, count) for name, count in keep.items()}
    return {name: turns for name, turns in carried.items() if turns}


class _Places:
    """Where the segments of documents are, by content hash."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._row = {name: row for row, name in enumerate(table["content_hash"].to_pylist())}
        self._segments: list[int] = table["segments"].to_pylist()

    def segments(self, content_hash: str) -> int | None:
        row = self._row.get(content_hash)
        return None if row is None else self._segments[row]

    def place(self, content_hash: str) -> SegmentRange:
        segment_range: SegmentRange = self._table.slice(self._row[content_hash], 1).to_pylist()[0]
        return segment_range


def _earlier_answers(
    corpus: Corpus, reader: ReaderSpec, rows: Sequence[PlannedReading], reread: bool
) -> dict[str, AnswerRow]:
    """Return the last answer to the same question over an earlier version of the same document, by reading_id."""
    if not rows:
        return {}
    doc_ids = {row["doc_id"] for row in rows if row["scope"] == "document"}
    # A superseded version has a row of its own that says so; files without such rows are not read.
    earlier = one_of("doc_id", doc_ids) & (pc.field("state") != "present")
    versions = Table(corpus.store, "documents").read(corpus.name, ["doc_id", "content_hash"], earlier)
    document_of = dict(zip(versions["content_hash"].to_pylist(), versions["doc_id"].to_pylist(), strict=True))
    columns = ["reading_id", "scope", "question", "policy_id", "content_hash", "answered_at", "segments", "run_id"]
    if any(row["scope"] == "archive" for row in rows):  # a document's is its own hash
        columns.append("stream")
    withheld = withheld_runs(corpus)
    same = one_of("content_hash", document_of) | (pc.field("scope") == "archive")
    same &= pc.field("config_hash") == reader.config_hash
    last: dict[tuple[str, str], AnswerRow] = {}
    for answer in Table(corpus.store, "answers").read(corpus.name, columns, same).sort_by("answered_at").to_pylist():
        mine = answer["policy_id"] == reader.policy.policy_id
        if reader.reading.parallel_spans_of(answer["segments"]) > 1 or answer["run_id"] in withheld:
            continue
        if mine or (not reread and policy_name(answer["policy_id"]) == reader.policy.name):
            document = "" if answer["scope"] == "archive" else document_of[answer["content_hash"]]
            answer.setdefault("stream", [answer["content_hash"]])
            last[document, answer["question"]] = answer
    keys = {row["reading_id"]: (row["doc_id"], row["question"]) for row in rows}
    return {reading_id: last[key] for reading_id, key in keys.items() if key in last}


def _shared_segments(store: Store, old: Sequence[str], new: Sequence[str], places: _Places) -> int:
    """Count the segments that two streams share at their beginning."""
    count = 0
    for before, after in zip(old, new, strict=False):
        lengths = places.segments(before), places.segments(after)
        if lengths[0] is None or lengths[1] is None:
            return count
        if before != after:
            if lengths == (1, 1):  # a text that is one segment and changed shares none: nothing to look up
                return count
            hashes = (segment_hashes(store, places.place(name)) for name in (before, after))
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(*hashes, strict=False))
            return count + sum(1 for _ in pairs)
        count += lengths[0]
    return count


def policy_name(policy_id: str) -> str:
    """Return the name that all versions of a policy share."""
    return policy_id.rpartition("@")[0]


def versions_of(name: str, policy_ids: pa.ChunkedArray) -> pa.Array:
    """Return those of some policy ids that are versions of a policy."""
    return pa.array([one for one in policy_ids.unique().to_pylist() if policy_name(one) == name], pa.string())
