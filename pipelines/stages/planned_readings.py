"""Which readings are asked for: a question and a document each, or a question and the archive as one stream."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.buckets import Bucket
from infra.tables.delta import Table
from infra.tables.documents import current_documents
from infra.tables.rows import DocumentRow, PlannedReading, Scope, SegmentRange
from infra.tables.schemas import PLACES
from infra.tables.segments import segmented, segmented_table
from infra.tables.streams import inline
from memagent.records import Question, reading_names, stable_hash

Document = TypeVar("Document")
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class SegmentGuess:
    """How a text would be cut, as a sample of texts shows."""

    chars_per_token: float
    segment_tokens: float
    """Tokens of a segment on average."""

    def of(self, chars: int) -> tuple[int, int]:
        """Return about how many segments and tokens a text of so many characters has."""
        tokens = math.ceil(chars / self.chars_per_token)
        return max(1, math.ceil(tokens / self.segment_tokens)), tokens


Missing = Literal["missing", "failed"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which of the readings that are asked for a backfill does."""

    since: datetime | None = None
    """Only of documents whose present version was taken in then or later; None: however old."""
    until: datetime | None = None
    """Only of those that were taken in before; None: however new."""
    only: frozenset[Missing] = frozenset(("missing", "failed"))
    """Of those without an answer: the ones that failed in their last run, the others (missing), or both."""

    def has_document(self, document: DocumentRow) -> bool:
        """Tell whether a document's readings are among them."""
        seen = document["seen_at"]
        return (self.since is None or seen >= self.since) and (self.until is None or seen < self.until)


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
    chosen: Chosen | None = None
    """A backfill: only some of them."""
    guess: "SegmentGuess | None" = None
    """A dry run: count only, write nothing and start nothing, and guess the segments of documents that have none."""


@dataclass(slots=True)
class RequestedReadings:
    """The readings that are asked for, and where their segments are."""

    rows: list[PlannedReading]
    documents: int
    """Documents that are asked about; duplicates count separately."""
    unsegmented: int
    """Documents that are asked about and have no segments."""
    matched: list[tuple[str, str]]
    """See `pipelines.stages.plan.BucketPlan`."""
    places: dict[str, "_Place"] = field(default_factory=dict)
    """By content hash of the document."""
    streams: dict[str, pa.Table] = field(default_factory=dict)
    """The places (`PLACES`) of an archive's documents in reading order, by content hash of their list."""
    grown: set[str] = field(default_factory=set)
    """Ids of the documents that had an earlier version."""

    def stream(self, row: PlannedReading) -> list[str]:
        """Return the content hashes of a reading's documents, in reading order."""
        if row["scope"] == "document":
            return row["stream"]
        hashes: list[str] = self.streams[row["content_hash"]]["content_hash"].to_pylist()
        return hashes


class _Place(SegmentRange):
    """Where a document's segments are, and how many tokens they have."""

    tokens: int


def _guessed(content_hash: str, chars: int, guess: SegmentGuess) -> _Place:
    segments, tokens = guess.of(chars)
    return {"content_hash": content_hash, "part": "", "first_row": 0, "segments": segments, "tokens": tokens}


@dataclass(frozen=True, slots=True)
class _Stream:
    """What a reading reads."""

    scope: Scope
    doc_id: str
    title: str
    content_hash: str
    hashes: list[str]
    """As rows have them."""
    documents: int
    segments: int
    tokens: int


def document_readings(request: PlanRequest, bucket: Bucket, named: Collection[str]) -> RequestedReadings:
    """Return the readings of a bucket's documents, each by itself.

    Args:
        request: what is asked.
        bucket: whose documents.
        named: ids of the questions whose documents are named one by one (`named_questions`).
    """
    corpus, reader = request.corpus, request.reader
    columns = ["doc_id", "content_hash", "title", "chars", "first_seen", "seen_at"]
    documents: list[DocumentRow] = current_documents(corpus, columns, bucket).to_pylist()
    if request.chosen is not None:
        documents = [document for document in documents if request.chosen.has_document(document)]
    places: dict[str, _Place] = dict(segmented(corpus, reader.tokenizer, reader.reading, bucket))
    if request.guess is not None:
        uncut = {row["content_hash"]: row["chars"] for row in documents if row["content_hash"] not in places}
        places |= {name: _guessed(name, chars, request.guess) for name, chars in uncut.items()}
    by_id = {
        document["doc_id"]: _Stream(
            scope="document",
            doc_id=document["doc_id"],
            title=document["title"],
            content_hash=content_hash,
            hashes=[content_hash],
            documents=1,
            segments=segment_range["segments"],
            tokens=segment_range["tokens"],
        )
        for document in documents
        if (segment_range := places.get(content_hash := document["content_hash"]))
    }
    rows: list[PlannedReading] = []
    for question in request.questions:
        name = reading_names(question.text, reader.policy.policy_id, reader.config_hash)
        rows += [_row(name(stream.hashes), question, stream) for stream in _chosen(question, by_id, named)]
    return RequestedReadings(
        rows,
        documents=len({row["doc_id"] for row in rows}),
        unsegmented=_count_asked(request, (d["doc_id"] for d in documents if d["doc_id"] not in by_id), named),
        matched=_matched(request.questions, by_id),
        places=places,
        grown={document["doc_id"] for document in documents if document["seen_at"] > document["first_seen"]},
    )


def archive_readings(request: PlanRequest, named: Collection[str]) -> RequestedReadings:
    """Return a reading for each question: of all documents that it is about, as one stream.

    Where segments are is held as Arrow columns; of a document this process has some 1.5 KB at most.

    Args:
        request: what is asked.
        named: as in `document_readings`.
    """
    corpus, reader = request.corpus, request.reader
    documents = current_documents(corpus, ["doc_id", "content_hash", "chars"])
    table = segmented_table(corpus, reader.tokenizer, reader.reading, columns=[*PLACES.names, "tokens"])
    if request.guess is not None:
        table = _with_guesses(table, documents, request.guess)
    table = table.set_column(table.column_names.index("part"), "part", pc.dictionary_encode(table["part"]))
    positions = pc.index_in(documents["content_hash"], value_set=table["content_hash"].combine_chunks())
    segmented_here = pc.is_valid(positions)
    uncut: list[str] = documents["doc_id"].filter(pc.invert(segmented_here)).to_pylist()
    ids: list[str] = documents["doc_id"].filter(segmented_here).to_pylist()
    by_id = dict(zip(ids, positions.filter(segmented_here).to_pylist(), strict=True))
    same: dict[tuple[str, ...], list[Question]] = defaultdict(list)  # about the same documents: one stream
    for question in request.questions:
        same[question.documents].append(question)
    unsegmented = _count_asked(request, uncut, named)
    result = RequestedReadings([], documents=0, unsegmented=unsegmented, matched=_matched(request.questions, by_id))
    for questions in same.values():
        chosen = _chosen(questions[0], by_id, named)
        if not chosen:
            continue
        places = table.take(pa.array(chosen, pa.int64()))
        hashes: list[str] = places["content_hash"].to_pylist()
        stream = _Stream(
            scope="archive",
            doc_id="",
            title=f"{len(hashes)} documents",
            content_hash=stable_hash(hashes),
            hashes=inline(hashes),
            documents=len(hashes),
            segments=pc.sum(places["segments"]).as_py(),
            tokens=pc.sum(places["tokens"]).as_py(),
        )
        result.streams[stream.content_hash] = places.select(PLACES.names)
        result.documents = max(result.documents, stream.documents)
        for question in questions:
            name = reading_names(question.text, reader.policy.policy_id, reader.config_hash)
            result.rows.append(_row(name(hashes), question, stream))
    return result


def _with_guesses(table: pa.Table, documents: pa.Table, guess: SegmentGuess) -> pa.Table:
    """Add guessed places for the documents that have no segments."""
    known = table["content_hash"].combine_chunks()
    uncut = documents.filter(pc.invert(pc.is_in(documents["content_hash"], value_set=known)))
    chars = dict(zip(uncut["content_hash"].to_pylist(), uncut["chars"].to_pylist(), strict=True))
    rows = [_guessed(name, count, guess) for name, count in chars.items()]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])


def named_questions(request: PlanRequest) -> frozenset[str]:
    """Return the ids of the questions whose `documents` are all ids of documents, not patterns."""
    names = {name for question in request.questions for name in question.documents}
    if not names:
        return frozenset()
    among = pc.field("doc_id").isin(pa.array(sorted(names), pa.string()))
    corpus = request.corpus
    known = set(Table(corpus.store, "documents").read(corpus.name, ["doc_id"], among)["doc_id"].to_pylist())
    return frozenset(q.question_id for q in request.questions if q.documents and known.issuperset(q.documents))


def _chosen(question: Question, by_id: Mapping[str, Document], named: Collection[str]) -> list[Document]:
    """Return the positions of a question's documents, in the order of the corpus or of the question."""
    if not question.documents:
        return list(by_id.values())
    if question.question_id in named:
        return [by_id[name] for name in dict.fromkeys(question.documents) if name in by_id]
    return [document for doc_id, document in by_id.items() if _is_about(question, doc_id)]


def _matched(questions: Iterable[Question], by_id: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return which names and patterns of the questions' documents are a document's; "" for all documents."""
    matches = []
    for question in questions:
        for name in question.documents or ("",):
            if (
                name in by_id
                or (by_id and not name)
                or (_MAGIC.search(name) and any(fnmatchcase(i, name) for i in by_id))
            ):
                matches.append((question.question_id, name))
    return matches


def _count_asked(request: PlanRequest, doc_ids: Iterable[str], named: Collection[str]) -> int:
    """Count the documents that any question is about."""
    return sum(
        any(
            doc_id in question.documents if question.question_id in named else _is_about(question, doc_id)
            for question in request.questions
        )
        for doc_id in doc_ids
    )


def _is_about(question: Question, doc_id: str) -> bool:
    if not question.documents:
        return True
    return any(doc_id == pattern or fnmatchcase(doc_id, pattern) for pattern in question.documents)


def _row(reading_id: str, question: Question, stream: _Stream) -> PlannedReading:
    return {
        "reading_id": reading_id,
        "doc_id": stream.doc_id,
        "title": stream.title,
        "content_hash": stream.content_hash,
        "stream": stream.hashes,
        "documents": stream.documents,
        "question_id": question.question_id,
        "question": question.text,
        "gold": list(question.answers) if question.answers is not None else None,
        "scope": stream.scope,
        "state": "new",
        "segments": stream.segments,
        "tokens": stream.tokens,
        "answered_by": "",
        "carried_from": "",
        "carried_segments": 0,
    }
