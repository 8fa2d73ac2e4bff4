"""Plan: the readings of a run, which of them are answered, and where the others resume.

The plan is the only place that decides what is read again. It uses no engine. Each bucket of the corpus is planned by a
task of its own, which writes its plan and its work to the store; this process sees counts and blocks of work.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.tasks import run_tasks
from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.buckets import FEW, Bucket, buckets
from infra.tables.delta import Table
from infra.tables.documents import current_documents, documents_count, mark_superseded
from infra.tables.past import find_past, policy_name
from infra.tables.plans import Block, WorkItem, write_plan, write_work
from infra.tables.quarantine import reading_item
from infra.tables.rows import AnswerRow, DocumentRow, PlannedReading, Scope, SegmentedRow
from infra.tables.schemas import PLAN
from infra.tables.segments import segment_range, segmented
from infra.tables.turns import unfinished_runs
from memagent.records import Question, Turn, reading_names, stable_hash

_BLOCK_CONVERSATIONS = 64
"""Largest block, unless a single stream is larger: small, since a block's answers are written together."""
_LARGE_BLOCK = 2_048
"""Largest block of a large run, in which an engine gets many of them."""
_BLOCKS_PER_ENGINE = 64


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked of a corpus."""

    corpus: Corpus
    reader: ReaderSpec
    questions: tuple[Question, ...]
    run_id: str
    engines: int = 1
    """Number of engines among which the work is divided."""
    archive: bool = False
    """Read all documents as one stream."""
    reread: bool = False
    """Read again what other versions of the policy have answered."""
    dry: bool = False
    """Count only, and write nothing."""


class QuestionCounts(TypedDict):
    """Work that is left of a question."""

    readings: int
    segments: int
    tokens: int


class BucketPlan(TypedDict):
    """Counts of a bucket's plan, and its work."""

    documents: int
    """Documents that are asked about; duplicates count separately."""
    readings: int
    answered: int
    continued: int
    carried_segments: int
    pending: int
    """Readings that are not answered, each once."""
    pending_documents: int
    unsegmented: int
    """Documents that are asked about and could not be segmented; the quarantine says why."""
    left: dict[str, QuestionCounts]
    """By question text."""
    matched: list[str]
    """Ids of the questions that are about any document."""
    blocks: list[Block]


_COUNTS = (
    "documents",
    "readings",
    "answered",
    "continued",
    "carried_segments",
    "pending",
    "pending_documents",
    "unsegmented",
)


@dataclass(slots=True)
class Plan:
    """The readings of a run, counted; the rows are in the store (`infra.tables.plans`)."""

    buckets: list[Bucket]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    """See `BucketPlan`."""
    left: dict[str, QuestionCounts] = field(default_factory=dict)
    """By question text."""
    blocks: list[Block] = field(default_factory=list)
    """Those with the longest readings first."""
    unmatched: list[Question] = field(default_factory=list)
    """Questions about documents that are not in the corpus."""

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
        for name in _COUNTS:
            self.counts[name] += done[name]  # type: ignore[literal-required]
        for question, more in done["left"].items():
            counts = self.left.setdefault(question, {"readings": 0, "segments": 0, "tokens": 0})
            counts["readings"] += more["readings"]
            counts["segments"] += more["segments"]
            counts["tokens"] += more["tokens"]
        self.blocks += done["blocks"]


def make_plan(request: PlanRequest) -> Plan:
    """Plan the readings of some questions over a corpus whose documents are segmented.

    An answer counts for a document as long as its text, the question and the reading configuration are the same and it
    was given by a version of the same policy; with `reread`, by this version. An interrupted reading resumes; a changed
    document is read from its first changed segment, with `reread` only from this version's own memory.
    """
    corpus = request.corpus
    size = 1 if request.archive else documents_count(corpus) * len(request.questions)
    parts = buckets(size)
    if len(parts) > 1:
        mark_superseded(corpus)
    plan = Plan(parts)
    matched: set[str] = set()
    work = partial(plan_bucket, request=request, named=_named(request), unfinished=unfinished_runs(corpus))
    for done in run_tasks(work, parts, small=size <= FEW):
        plan.add(done)
        matched.update(done["matched"])
    plan.unmatched = [question for question in request.questions if question.question_id not in matched]
    plan.blocks.sort(key=lambda block: -block["longest"])
    return plan


def plan_bucket(
    bucket: Bucket, request: PlanRequest, named: Collection[str], unfinished: Collection[str]
) -> BucketPlan:
    """Plan a bucket, and write its plan and its work.

    Args:
        bucket: whose documents.
        request: what is asked.
        named: ids of the questions whose documents are named one by one.
        unfinished: runs that may have left half-read readings.
    """
    corpus, reader = request.corpus, request.reader
    columns = ["doc_id", "content_hash", "title", "first_seen", "seen_at"]
    documents: list[DocumentRow] = current_documents(corpus, columns, bucket).to_pylist()
    places = segmented(corpus, reader.tokenizer, reader.reading, bucket)
    cut = [document for document in documents if document["content_hash"] in places]
    rows = _rows(request, cut, places, named=named)
    _mark_answered(request, rows, bucket)
    pending = {row["reading_id"]: row for row in rows if row["state"] != "answered"}
    grown = {document["doc_id"] for document in cut if document["seen_at"] > document["first_seen"]}
    past = find_past(corpus, reader, pending, unfinished=unfinished, grown=grown, reread=request.reread)
    _mark_continued(rows, past)
    if not request.dry:
        write_plan(corpus.store, request.run_id, bucket, pa.Table.from_pylist(rows, schema=PLAN))
    items = [_item(row, places, past.get(reading, [])) for reading, row in pending.items()]
    uncut = [document["doc_id"] for document in documents if document["content_hash"] not in places]
    asked = [question for question in request.questions if question.question_id in named or not question.documents]
    return {
        "documents": max((len(row["stream"]) for row in rows), default=0)
        if request.archive
        else len({row["doc_id"] for row in rows}),
        "readings": len(rows),
        "answered": sum(row["state"] == "answered" for row in rows),
        "continued": sum(row["state"] == "continued" for row in rows),
        "carried_segments": sum(row["carried_segments"] for row in rows if row["state"] == "continued"),
        "pending": len(pending),
        "pending_documents": len({name for row in pending.values() for name in row["stream"]}),
        "unsegmented": sum(any(_is_about(q, doc_id, q in asked) for q in request.questions) for doc_id in uncut),
        "left": _left(pending, items),
        "matched": sorted({row["question_id"] for row in rows}),
        "blocks": _write_blocks(request, items, bucket),
    }


def _named(request: PlanRequest) -> frozenset[str]:
    """Return the ids of the questions whose `documents` are all ids of documents, not patterns."""
    names = {name for question in request.questions for name in question.documents}
    if not names:
        return frozenset()
    among = pc.field("doc_id").isin(pa.array(sorted(names), pa.string()))
    corpus = request.corpus
    known = set(Table(corpus.store, "documents").read(corpus.name, ["doc_id"], among)["doc_id"].to_pylist())
    return frozenset(q.question_id for q in request.questions if q.documents and known.issuperset(q.documents))


def _is_about(question: Question, doc_id: str, exactly: bool) -> bool:
    if exactly or not question.documents:
        return not question.documents or doc_id in question.documents
    return any(doc_id == pattern or fnmatchcase(doc_id, pattern) for pattern in question.documents)


def _rows(
    request: PlanRequest, documents: Sequence[DocumentRow], places: dict[str, SegmentedRow], named: Collection[str]
) -> list[PlannedReading]:
    by_id = {document["doc_id"]: document for document in documents}
    rows: list[PlannedReading] = []
    reader = request.reader
    for question in request.questions:
        names = reading_names(question.text, reader.policy.policy_id, reader.config_hash)
        if question.question_id in named:
            chosen = [by_id[name] for name in dict.fromkeys(question.documents) if name in by_id]
        else:
            chosen = [document for document in documents if _is_about(question, document["doc_id"], False)]
        if request.archive and chosen:
            rows.append(_row(names, question, chosen, places=places, scope="archive"))
        elif not request.archive:
            rows += [_row(names, question, [one], places=places, scope="document") for one in chosen]
    return rows


def _row(
    names: Callable[[Sequence[str]], str],
    question: Question,
    documents: Sequence[DocumentRow],
    places: dict[str, SegmentedRow],
    scope: Scope,
) -> PlannedReading:
    stream = [document["content_hash"] for document in documents]
    single, first = scope == "document", places[stream[0]]
    return {
        "reading_id": names(stream),
        "doc_id": documents[0]["doc_id"] if single else "",
        "title": documents[0]["title"] if single else f"{len(documents)} documents",
        "content_hash": stream[0] if single else stable_hash(stream),
        "stream": stream,
        "question_id": question.question_id,
        "question": question.text,
        "gold": list(question.answers) if question.answers is not None else None,
        "scope": scope,
        "state": "new",
        "segments": first["segments"] if single else sum(places[name]["segments"] for name in stream),
        "tokens": first["tokens"] if single else sum(places[name]["tokens"] for name in stream),
        "answered_by": "",
        "carried_from": "",
        "carried_segments": 0,
    }


def _mark_answered(request: PlanRequest, rows: list[PlannedReading], bucket: Bucket) -> None:
    reader, corpus = request.reader, request.corpus
    columns = ["reading_id", "content_hash", "question", "policy_id", "answered_at"]
    mine, inside = pc.field("config_hash") == reader.config_hash, bucket.contains("content_hash")
    table = Table(corpus.store, "answers").read(corpus.name, columns, mine if inside is None else mine & inside)
    answers: list[AnswerRow] = table.sort_by("answered_at").to_pylist()
    known = {answer["reading_id"] for answer in answers}
    by_policy = {
        (answer["content_hash"], answer["question"]): answer["reading_id"]
        for answer in answers
        if policy_name(answer["policy_id"]) == reader.policy.name
    }
    for row in rows:
        other = None if request.reread else by_policy.get((row["content_hash"], row["question"]))
        answer = row["reading_id"] if row["reading_id"] in known else other
        if answer is not None:
            row["state"], row["answered_by"] = "answered", answer


def _mark_continued(rows: list[PlannedReading], past: dict[str, list[Turn]]) -> None:
    for row in rows:
        turns = past.get(row["reading_id"])
        if turns and row["state"] == "new":
            row["state"] = "continued"
            carried = [turn for turn in turns if turn.kind == "carried"]
            if carried:
                row["carried_from"], row["carried_segments"] = carried[-1].carried_from, carried[-1].step + 1


def _item(row: PlannedReading, places: dict[str, SegmentedRow], past: list[Turn]) -> WorkItem:
    lanes = {turn.lane: turn.step + 1 for turn in past if turn.kind in ("update", "carried")}
    return {
        "reading_id": row["reading_id"],
        "question_id": row["question_id"],
        "question": row["question"],
        "scope": row["scope"],
        "content_hash": row["content_hash"],
        "item": reading_item(row),
        "places": [segment_range(places[name]) for name in row["stream"]],
        "past": json.dumps([asdict(turn) for turn in past]) if past else "",
        "left": max(0, row["segments"] - sum(lanes.values())),
        "carried_from": row["carried_from"],
        "carried_segments": row["carried_segments"],
    }


def _left(pending: dict[str, PlannedReading], items: Sequence[WorkItem]) -> dict[str, QuestionCounts]:
    result: dict[str, QuestionCounts] = {}
    for item in items:
        row = pending[item["reading_id"]]
        counts = result.setdefault(row["question"], {"readings": 0, "segments": 0, "tokens": 0})
        counts["readings"] += 1
        counts["segments"] += item["left"]
        counts["tokens"] += round(row["tokens"] * item["left"] / row["segments"]) if row["segments"] else 0
    return result


def _write_blocks(request: PlanRequest, items: list[WorkItem], bucket: Bucket) -> list[Block]:
    """Write the work, longest streams first, and cut it into blocks of similar size.

    Questions on one stream stay together: they share its segments and prompt prefixes. With little work the blocks are
    smaller, so every engine gets some.
    """
    if request.dry or not items:
        return []
    streams: dict[tuple[str, ...], list[WorkItem]] = defaultdict(list)
    for item in items:
        streams[tuple(place["content_hash"] for place in item["places"])].append(item)
    groups = sorted(streams.values(), key=lambda group: -sum(item["left"] for item in group))
    file = write_work(request.corpus.store, request.run_id, bucket, [item for group in groups for item in group])
    total = sum(item["left"] + 1 for item in items) * bucket.count
    share = total // (_BLOCKS_PER_ENGINE * request.engines)
    most = min(max(_BLOCK_CONVERSATIONS, min(_LARGE_BLOCK, share)), math.ceil(total / (2 * request.engines)))
    blocks: list[Block] = []
    first = 0
    for group in groups:
        if not blocks or blocks[-1]["conversations"] >= most:
            blocks.append({"file": file, "first": first, "rows": 0, "conversations": 0, "longest": 0, "again": False})
        block = blocks[-1]
        block["rows"] += len(group)
        block["conversations"] += sum(item["left"] + 1 for item in group)
        block["longest"] = max(block["longest"], *(item["left"] + 1 for item in group))
        first += len(group)
    return blocks
