"""Where readings resume: interrupted ones from their own turns, changed documents from their earlier version.

The memory after segment k depends on segments up to k alone. So an interrupted reading resumes after its last turn, and
a changed document from its first changed segment.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.rows import AnswerRow, PlannedReading, SegmentedRow
from infra.tables.segments import segment_hashes, segmented
from infra.tables.turns import carry, resume_points
from memagent.records import Turn

_Stream = tuple[str, ...]


def find_past(
    corpus: Corpus,
    reader: ReaderSpec,
    pending: Mapping[str, PlannedReading],
    *,
    unfinished: Collection[str],
    grown: Collection[str],
    reread: bool,
) -> dict[str, list[Turn]]:
    """Return the turns from which readings resume, by reading_id.

    Args:
        corpus: whose documents are read.
        reader: the policy and how it reads.
        pending: the readings that are not answered, by reading_id.
        unfinished: runs that did not come to their end; only their turns are searched for half-read readings.
        grown: ids of the documents that had an earlier version.
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
        and reader.reading.lanes_of(row["segments"]) == 1  # the spans of lanes depend on the length of the stream
    ]
    if not fresh:
        return past
    earlier = _earlier_answers(corpus, reader, fresh, reread)
    if not earlier:
        return past
    return past | _carried(corpus, reader, fresh, earlier)


def _carried(
    corpus: Corpus, reader: ReaderSpec, rows: Sequence[PlannedReading], earlier: Mapping[str, AnswerRow]
) -> dict[str, list[Turn]]:
    """Return, for readings that have an earlier one, its memories over the segments that both share."""
    hashes = {name for answer in earlier.values() for name in answer["stream"]}
    hashes |= {name for row in rows if row["reading_id"] in earlier for name in row["stream"]}
    places = segmented(corpus, reader.tokenizer, reader.reading, hashes=hashes)
    shared: dict[tuple[_Stream, _Stream], int] = {}  # questions on one document share it
    keep: dict[str, int] = {}
    for row in rows:
        answer = earlier.get(row["reading_id"])
        if answer is not None:
            streams = (tuple(answer["stream"]), tuple(row["stream"]))
            if streams not in shared:
                shared[streams] = _shared_segments(corpus.store, *streams, places)
            if shared[streams]:
                keep[row["reading_id"]] = shared[streams]
    logs = resume_points(corpus, {earlier[new]["reading_id"] for new in keep})
    carried = {new: carry(logs.get(earlier[new]["reading_id"], []), new, count) for new, count in keep.items()}
    return {new: turns for new, turns in carried.items() if turns}


def _earlier_answers(
    corpus: Corpus, reader: ReaderSpec, rows: Sequence[PlannedReading], reread: bool
) -> dict[str, AnswerRow]:
    """Return the last answer to the same question over an earlier version of the same document, by reading_id."""
    if not rows:
        return {}
    doc_ids = pa.array({row["doc_id"] for row in rows if row["scope"] == "document"}, pa.string())
    versions = Table(corpus.store, "documents").read(
        corpus.name, ["doc_id", "content_hash"], pc.field("doc_id").isin(doc_ids)
    )
    document_of = dict(zip(versions["content_hash"].to_pylist(), versions["doc_id"].to_pylist(), strict=True))
    columns = ["reading_id", "stream", "scope", "question", "policy_id", "content_hash", "answered_at", "segments"]
    same = pc.field("content_hash").isin(pa.array(document_of, pa.string())) | (pc.field("scope") == "archive")
    same &= pc.field("config_hash") == reader.config_hash
    last: dict[tuple[str, str], AnswerRow] = {}
    for answer in Table(corpus.store, "answers").read(corpus.name, columns, same).sort_by("answered_at").to_pylist():
        mine = answer["policy_id"] == reader.policy.policy_id
        if reader.reading.lanes_of(answer["segments"]) > 1:
            continue
        if mine or (not reread and policy_name(answer["policy_id"]) == reader.policy.name):
            document = "" if answer["scope"] == "archive" else document_of[answer["content_hash"]]
            last[document, answer["question"]] = answer
    keys = {row["reading_id"]: (row["doc_id"], row["question"]) for row in rows}
    return {reading_id: last[key] for reading_id, key in keys.items() if key in last}


def _shared_segments(store: Store, old: _Stream, new: _Stream, places: Mapping[str, SegmentedRow]) -> int:
    """Count the segments that two streams share at their beginning."""
    count = 0
    for before, after in zip(old, new, strict=False):
        if before not in places or after not in places:
            return count
        if before == after:
            count += int(places[before]["segments"])
            continue
        hashes = (segment_hashes(store, places[name]) for name in (before, after))
        for one, other in zip(*hashes, strict=False):
            if one != other:
                return count
            count += 1
        return count
    return count


def policy_name(policy_id: str) -> str:
    """Return the name that all versions of a policy share."""
    return policy_id.rpartition("@")[0]
