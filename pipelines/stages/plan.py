"""Plan: the readings of a run, which of them are answered, and where the others resume.

The plan is the only place that decides what is read again. It uses no engine. Each bucket of the corpus is planned by a
task of its own, which writes its plan and its work to the store; this process sees counts and blocks of work. An
archive, which is one stream, is planned by one task.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store.buckets import FEW, WHOLE, Bucket, buckets
from infra.store.delta import Table
from infra.store.documents import documents_count
from infra.store.plans import Block, WorkItem, write_plan, write_work
from infra.store.resume_points import find_past, versions_of
from infra.store.runs import withheld_runs
from infra.store.schemas import PLAN, PlannedReading, SegmentRange, reading_item
from infra.store.segments import segment_range, write_places, write_stream
from infra.store.turns import unfinished_runs
from memagent.records import Question, Turn
from pipelines.stages.planned_readings import (
    Chosen,
    PlanRequest,
    RequestedReadings,
    archive_readings,
    document_readings,
    named_questions,
)


def mark_answered(request: PlanRequest, questions: Sequence[pa.Table], bucket: Bucket) -> pa.Table:
    """Return the rows of all questions, with what answers them: their own answer, or else another version's newest."""
    reader, corpus = request.reader, request.corpus
    columns = ["reading_id", "content_hash", "question", "policy_id", "run_id", "answered_at"]
    mine = (pc.field("config_hash") == reader.config_hash) & bucket.contains("content_hash")
    answers = Table(corpus.store, "answers").read(corpus.name, columns, mine)
    known = answers["reading_id"].combine_chunks()
    others = answers.slice(0, 0)
    if not request.reread:  # any version of the policy, without withheld runs
        versions = versions_of(reader.policy.name, answers["policy_id"])
        others = answers.filter(pc.is_in(answers["policy_id"], value_set=versions))
        withheld = pa.array(withheld_runs(corpus), pa.string())
        others = others.filter(pc.invert(pc.is_in(others["run_id"], value_set=withheld)))
        others = others.sort_by([("answered_at", "descending")])
    marked = [PLAN.empty_table()]
    for rows in questions:
        if not rows.num_rows:
            continue
        same = others.filter(pc.equal(others["question"], rows["question"][0]))
        newest = pc.index_in(rows["content_hash"], value_set=same["content_hash"].combine_chunks())
        by = pc.if_else(
            pc.is_in(rows["reading_id"], value_set=known), rows["reading_id"], same["reading_id"].take(newest)
        )
        state = pc.if_else(pc.is_valid(by), "answered", rows["state"])
        marked.append(_with(rows, state=state, answered_by=pc.fill_null(by, "")))
    return pa.concat_tables(marked)


def _with(rows: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
    return rows


def without_answer(request: PlanRequest, rows: pa.Table, chosen: Chosen) -> pa.Table:
    """Return the readings of a backfill."""
    failures = Table(request.corpus.store, "quarantine").read(
        request.corpus.name, ["item"], pc.field("stage") == "read"
    )
    failed = set(failures["item"].to_pylist())
    rows = rows.filter(pc.not_equal(rows["state"], "answered"))
    left: list[PlannedReading] = rows.select(["doc_id", "question"]).to_pylist()
    return rows.filter(
        pa.array([("failed" if reading_item(row) in failed else "missing") in chosen.only for row in left], pa.bool_())
    )


def mark_continued(rows: pa.Table, past: dict[str, list[Turn]]) -> pa.Table:
    """Return the rows with the state of those that go on from a memory, and whose memory it is."""
    begun = {reading_id: carried_from(turns) for reading_id, turns in past.items() if turns}
    if not begun:
        return rows
    at = pc.index_in(rows["reading_id"], value_set=pa.array(begun, pa.string()))
    at = pc.if_else(pc.equal(rows["state"], "new"), at, None)
    origins = pa.array([origin for origin, _ in begun.values()], pa.string()).take(at)
    segments = pa.array([count for _, count in begun.values()], pa.int32()).take(at)
    return _with(
        rows,
        state=pc.if_else(pc.is_valid(at), "continued", rows["state"]),
        carried_from=pc.fill_null(origins, ""),
        carried_segments=pc.fill_null(segments, 0),
    )


def carried_from(past: Sequence[Turn]) -> tuple[str, int]:
    """Return the reading whose memory a reading goes on from, and how many of its segments that has read."""
    carried = [turn for turn in past if turn.kind == "carried"]
    return (carried[-1].carried_from, carried[-1].step + 1) if carried else ("", 0)


_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 2_048
"""Conversations of a block, unless a single stream has more."""
_SHARES = 32
"""A block has this share of the conversations that are left for an engine (guided self-scheduling, Polychronopoulos and
Kuck 1987): large ones cost little, and small ones at the end let all engines end together."""


class BucketPlan(TypedDict):
    """Counts of a bucket's plan, and its work."""

    counts: dict[str, int]
    """As `Plan.counts`."""
    left: dict[str, Counter[str]]
    """As `Plan.left`."""
    matched: list[tuple[str, str]]
    """By id of the questions that match a document: the names and patterns that match one; empty: all documents."""
    blocks: list[Block]


@dataclass(slots=True)
class Plan:
    """The readings of a run, counted; the rows are in the store (`infra.store.plans`)."""

    buckets: list[Bucket]
    counts: Counter[str] = field(default_factory=Counter)
    """`readings`; of these `answered`, `continued` (after `carried_segments`) and `pending`, not answered, each once.
    `documents` that are asked about, duplicates separately; `pending_documents`; and those that are `unsegmented`, for
    reasons that are in the quarantine."""
    left: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By question text: `readings`, `segments` and `tokens` that are left."""
    blocks: list[Block] = field(default_factory=list)
    """Those with the longest readings first."""
    unmatched: list[Question] = field(default_factory=list)
    """Questions about documents of which none is in the corpus."""
    missing: dict[str, list[str]] = field(default_factory=dict)
    """By question_id: the names and patterns of documents that are not in the corpus."""

    @property
    def segments(self) -> int:
        """Segments that are still to be read."""
        return sum(counts["segments"] for counts in self.left.values())

    @property
    def conversations(self) -> int:
        """Conversations that are still to be run: one per segment that is left, and the answers."""
        return self.segments + self.counts["pending"]

    def add(self, done: BucketPlan) -> None:
        """Add the counts of a bucket."""
        self.counts.update(done["counts"])
        for question, more in done["left"].items():
            self.left[question].update(more)
        self.blocks += done["blocks"]


def make_plan(request: PlanRequest) -> Plan:
    """Plan the readings of some questions over a corpus whose documents are segmented.

    An answer counts for a document as long as its text, the question and the reading configuration are the same and it
    was given by a version of the same policy; with `reread`, by this version. An interrupted reading resumes; a changed
    document is read from its first changed segment, with `reread` only from this version's own memory.
    """
    corpus = request.corpus
    documents = documents_count(corpus)
    size = documents if request.archive else documents * len(request.questions)
    parts = [WHOLE] if request.archive else buckets(size)
    plan = Plan(parts)
    matched: set[tuple[str, str]] = set()
    work = partial(plan_bucket, request=request, named=named_questions(request), unfinished=unfinished_runs(corpus))
    # A dry run starts no Ray: its buckets are planned one after another.
    for done in run_job(work, parts, corpus.store, local=size <= FEW or request.guess is not None):
        plan.add(done)
        matched.update((question_id, name) for question_id, name in done["matched"])
    if request.chosen is None:  # which questions are about no document, the digest has said
        plan.unmatched = _unmatched(request.questions, matched, plan.missing)
    plan.blocks.sort(key=lambda block: (-block["longest"], -block["conversations"]))
    return plan


def _unmatched(
    questions: Sequence[Question], matched: set[tuple[str, str]], missing: dict[str, list[str]]
) -> list[Question]:
    """Return the questions that are about no document; note in `missing` which documents each question lacks."""
    unmatched = []
    for question in questions:
        names = list(dict.fromkeys(question.documents)) or [""]
        lacking = [name for name in names if (question.question_id, name) not in matched]
        if lacking:
            missing[question.question_id] = [name for name in lacking if name]
        if lacking == names:
            unmatched.append(question)
    return unmatched


def plan_bucket(
    bucket: Bucket, request: PlanRequest, named: Collection[str], unfinished: Collection[str]
) -> BucketPlan:
    """Plan a bucket, and write its plan and its work.

    `named` are the questions whose documents are named one by one, `unfinished` the runs that may have left half-read
    readings.
    """
    corpus, reader = request.corpus, request.reader
    asked = archive_readings(request, named) if request.archive else document_readings(request, bucket, named)
    rows = mark_answered(request, asked.rows, bucket)
    if request.chosen is not None:
        rows = without_answer(request, rows, request.chosen)
    left: list[PlannedReading] = rows.filter(pc.not_equal(rows["state"], "answered")).to_pylist()
    pending = {row["reading_id"]: row for row in left}
    past = find_past(
        corpus, reader, pending, unfinished=unfinished, grown=asked.grown, streams=asked.stream, reread=request.reread
    )
    rows = mark_continued(rows, past)
    files, unread = defaultdict[str, str](str), {row["content_hash"] for row in left}
    if request.guess is None:
        write_plan(corpus.store, request.run_id, bucket, rows)
        for content_hash, documents in asked.streams.items():
            write_stream(corpus, content_hash, documents)
            if content_hash in unread:
                files[content_hash] = write_places(corpus.store, request.run_id, content_hash, documents)
    places = asked.places_of(row["content_hash"] for row in pending.values() if row["scope"] == "document")
    items = [_item(row, places, files[row["content_hash"]], past.get(name, [])) for name, row in pending.items()]
    continued = rows.filter(pc.equal(rows["state"], "continued"))
    counts = {
        "documents": asked.documents if request.chosen is None else pc.count_distinct(rows["doc_id"]).as_py(),
        "readings": rows.num_rows,
        "answered": rows.num_rows - len(left),
        "continued": continued.num_rows,
        "carried_segments": pc.sum(continued["carried_segments"], min_count=0).as_py(),
        "pending": len(pending),
        "pending_documents": sum({row["content_hash"]: row["documents"] for row in pending.values()}.values()),
        "unsegmented": asked.unsegmented,
    }
    return {
        "counts": counts,
        "left": _left(pending, items),
        "matched": asked.matched,
        "blocks": _write_blocks(request, items, asked, bucket),
    }


def _item(row: PlannedReading, places: Mapping[str, SegmentRange], stream: str, past: list[Turn]) -> WorkItem:
    """Return the work of a reading; `stream` is the file with the places of an archive."""
    spans = {turn.span: turn.step + 1 for turn in past if turn.kind in ("update", "carried")}
    origin, carried_segments = carried_from(past)
    return {
        "reading_id": row["reading_id"],
        "question_id": row["question_id"],
        "question": row["question"],
        "scope": row["scope"],
        "content_hash": row["content_hash"],
        "item": reading_item(row),
        "documents": row["documents"],
        "places": [segment_range(places[row["content_hash"]])] if row["scope"] == "document" else [],
        "stream": stream,
        "past": json.dumps([asdict(turn) for turn in past]) if past else "",
        "left": max(0, row["segments"] - sum(spans.values())),
        "carried_from": origin,
        "carried_segments": carried_segments,
    }


def _left(pending: dict[str, PlannedReading], items: Sequence[WorkItem]) -> dict[str, Counter[str]]:
    result: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        row = pending[item["reading_id"]]
        tokens = round(row["tokens"] * item["left"] / row["segments"]) if row["segments"] else 0
        result[row["question"]].update(readings=1, segments=item["left"], tokens=tokens)
    return dict(result)


def _reading_order(group: list[WorkItem]) -> tuple[int, str, int]:
    """Return the key of the questions on one stream: short documents share a row group, which is then read once."""
    first_range = group[0]["places"][0] if group[0]["places"] else None
    return (
        -sum(item["left"] for item in group),
        first_range["part"] if first_range else "",
        first_range["first_row"] if first_range else 0,
    )


def _write_blocks(request: PlanRequest, items: list[WorkItem], asked: RequestedReadings, bucket: Bucket) -> list[Block]:
    """Write the work, longest streams first, then in the order of segments, and cut it into smaller and smaller blocks.

    Questions on one stream stay together: they share its segments and prompt prefixes.
    """
    if request.guess is not None or not items:
        return []
    streams: dict[str, list[WorkItem]] = defaultdict(list)
    for item in items:
        streams[item["content_hash"]].append(item)
    groups = sorted(streams.values(), key=_reading_order)
    file = write_work(request.corpus.store, request.run_id, bucket, [item for group in groups for item in group])
    left = sum(item["left"] + 1 for item in items) * bucket.count
    blocks: list[Block] = []
    first = most = 0
    for group in groups:
        if not blocks or blocks[-1]["conversations"] >= most:
            most = min(max(_SMALLEST_BLOCK, left // (_SHARES * request.engines)), _LARGEST_BLOCK)
            blocks.append({"file": file, "first": first, "rows": 0, "conversations": 0, "longest": 0})
        block, conversations = blocks[-1], sum(item["left"] + 1 for item in group)
        block["rows"] += len(group)
        block["conversations"] += conversations
        block["longest"] = max(block["longest"], *(item["left"] + 1 for item in group))
        first += len(group)
        left -= conversations
    return blocks
