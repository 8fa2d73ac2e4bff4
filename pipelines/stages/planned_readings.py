"""Which readings are asked for: a question and a document each, or a question and all documents, concatenated."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from infra.readers import ReaderSpec
from infra.store.buckets import WHOLE, Bucket, one_of
from infra.store.delta import Table
from infra.store.documents import current_documents
from infra.store.location import Corpus
from infra.store.schemas import PLACES, PLAN, PlannedReading, SegmentRange
from infra.store.segments import inline, segmented_table
from memagent.records import Question, reading_names, stable_hash

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

    def among(self, documents: pa.Table) -> pa.Table:
        """Return those of the documents whose readings are among them."""
        seen = documents["seen_at"]
        if self.since is not None:
            documents = documents.filter(pc.greater_equal(seen, pa.scalar(self.since, seen.type)))
        if self.until is not None:
            documents = documents.filter(pc.less(documents["seen_at"], pa.scalar(self.until, seen.type)))
        return documents


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
    """Read all documents concatenated."""
    reread: bool = False
    """Read again what other versions of the policy have answered."""
    chosen: Chosen | None = None
    """A backfill: only some of them."""
    guess: "SegmentGuess | None" = None
    """A dry run: count only, write nothing and start nothing, and guess the segments of documents that have none."""


@dataclass(slots=True)
class RequestedReadings:
    """The readings that are asked for, and where their segments are: columns, since few of many rows are looked at."""

    rows: list[pa.Table]
    """Their rows (`PLAN`), a table a question."""
    documents: int
    """Documents that are asked about; duplicates count separately."""
    unsegmented: int
    """Documents that are asked about and have no segments."""
    matched: list[tuple[str, str]]
    """See `pipelines.stages.plan.BucketPlan`."""
    places: pa.Table
    """Where the segments of the documents are (`PLACES`)."""
    streams: dict[str, pa.Table] = field(default_factory=dict)
    """The places of an archive's documents in reading order, by content hash of their list."""
    grown: set[str] = field(default_factory=set)
    """Ids of the documents that had an earlier version."""

    def stream(self, row: PlannedReading) -> list[str]:
        """Return the content hashes of a reading's documents, in reading order."""
        if row["scope"] == "document":
            return row["stream"]
        hashes: list[str] = self.streams[row["content_hash"]]["content_hash"].to_pylist()
        return hashes

    def places_of(self, content_hashes: Iterable[str]) -> dict[str, SegmentRange]:
        """Return where the segments of some documents are, by content hash."""
        wanted = pa.array(set(content_hashes), pa.string())
        found: list[SegmentRange] = self.places.filter(
            pc.is_in(self.places["content_hash"], value_set=wanted)
        ).to_pylist()
        return {row["content_hash"]: row for row in found}


@dataclass(frozen=True, slots=True)
class _Documents:
    """The present documents, and where the segments of each are."""

    rows: pa.Table
    """Those that have segments, in the order of the corpus: their columns and those of `places`."""
    uncut: list[str]
    """Ids of those that have none."""
    places: pa.Table

    def chosen(self, question: Question, named: Collection[str]) -> pa.Table:
        if not question.documents:
            return self.rows
        if question.question_id in named:
            names = pa.array(dict.fromkeys(question.documents), pa.string())
            places = pc.index_in(names, value_set=self.rows["doc_id"].combine_chunks())
            return self.rows.take(places.drop_null())
        return self.rows.filter(pa.array([_is_about(question, doc_id) for doc_id in self.ids()], pa.bool_()))

    def ids(self) -> list[str]:
        ids: list[str] = self.rows["doc_id"].to_pylist()
        return ids


def _find_documents(request: PlanRequest, bucket: Bucket, columns: Sequence[str]) -> _Documents:
    corpus, reader = request.corpus, request.reader
    documents = current_documents(corpus, ["doc_id", "content_hash", "chars", *columns], bucket)
    if request.chosen is not None:
        documents = request.chosen.among(documents)
    places = segmented_table(corpus, reader.tokenizer, reader.reading, bucket, columns=[*PLACES.names, "tokens"])
    if request.guess is not None:
        places = _with_guesses(places, documents, request.guess)
    places = places.set_column(places.column_names.index("part"), "part", pc.dictionary_encode(places["part"]))
    positions = pc.index_in(documents["content_hash"], value_set=places["content_hash"].combine_chunks())
    cut = pc.is_valid(positions)
    rows, found = documents.filter(cut), places.take(positions.filter(cut))
    for name in ("part", "first_row", "segments", "tokens"):
        rows = rows.append_column(name, found[name])
    return _Documents(rows, documents["doc_id"].filter(pc.invert(cut)).to_pylist(), places)


def document_readings(request: PlanRequest, bucket: Bucket, named: Collection[str]) -> RequestedReadings:
    """Return the readings of a bucket's documents, each by itself; `named` is of `named_questions`."""
    found = _find_documents(request, bucket, ["title", "first_seen", "seen_at"])
    rows = [_of_documents(request, question, found.chosen(question, named)) for question in request.questions]
    grown = found.rows.filter(pc.greater(found.rows["seen_at"], found.rows["first_seen"]))
    return RequestedReadings(
        rows,
        documents=pc.count_distinct(pa.concat_tables([PLAN.empty_table(), *rows])["doc_id"]).as_py(),
        unsegmented=_count_asked(request, found.uncut, named),
        matched=_matched(request.questions, found),
        places=found.places,
        grown=set(grown["doc_id"].to_pylist()),
    )


def _of_documents(request: PlanRequest, question: Question, documents: pa.Table) -> pa.Table:
    """Return the rows (`PLAN`) of a question's readings of documents."""
    count, reader = documents.num_rows, request.reader
    if not count:
        return PLAN.empty_table()
    name = reading_names(question.text, reader.policy.policy_id, reader.config_hash)
    hashes = documents["content_hash"].combine_chunks()
    same = {"documents": 1, "scope": "document", **_new(question)}
    own = {
        "reading_id": pa.array([name([content_hash]) for content_hash in hashes.to_pylist()], pa.string()),
        "content_hash": hashes,
        "stream": pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), hashes),
    }
    own |= {column: documents[column] for column in ("doc_id", "title", "segments", "tokens")}
    constant = {
        field.name: pa.repeat(pa.scalar(same[field.name], field.type), count) for field in PLAN if field.name in same
    }
    return pa.table(own | constant).select(PLAN.names).cast(PLAN)


def archive_readings(request: PlanRequest, named: Collection[str]) -> RequestedReadings:
    """Return a reading for each question: of all documents that it is about, concatenated.

    Where segments are is held as Arrow columns; of a document this process has some 1.5 KB at most.
    """
    found, reader = _find_documents(request, WHOLE, []), request.reader
    same: dict[tuple[str, ...], list[Question]] = defaultdict(list)  # about the same documents: one stream
    for question in request.questions:
        same[question.documents].append(question)
    result = RequestedReadings(
        [],
        documents=0,
        unsegmented=_count_asked(request, found.uncut, named),
        matched=_matched(request.questions, found),
        places=found.places,
    )
    for questions in same.values():
        places = found.chosen(questions[0], named)
        if not places.num_rows:
            continue
        hashes: list[str] = places["content_hash"].to_pylist()
        content_hash = stable_hash(hashes)
        result.streams[content_hash] = places.select(PLACES.names)
        result.documents = max(result.documents, len(hashes))
        for question in questions:
            row = {
                "reading_id": reading_names(question.text, reader.policy.policy_id, reader.config_hash)(hashes),
                "doc_id": "",
                "title": f"{len(hashes)} documents",
                "content_hash": content_hash,
                "stream": inline(hashes),
                "documents": len(hashes),
                "scope": "archive",
                "segments": pc.sum(places["segments"]).as_py(),
                "tokens": pc.sum(places["tokens"]).as_py(),
                **_new(question),
            }
            result.rows.append(pa.Table.from_pylist([row], schema=PLAN))
    return result


def _new(question: Question) -> dict[str, object]:
    """Return what all readings of a question have in common that are not planned yet."""
    return {
        "question_id": question.question_id,
        "question": question.text,
        "gold": list(question.answers) if question.answers is not None else None,
        "state": "new",
        "answered_by": "",
        "carried_from": "",
        "carried_segments": 0,
    }


def _with_guesses(table: pa.Table, documents: pa.Table, guess: SegmentGuess) -> pa.Table:
    known = table["content_hash"].combine_chunks()
    uncut = documents.filter(pc.invert(pc.is_in(documents["content_hash"], value_set=known)))
    chars = dict(zip(uncut["content_hash"].to_pylist(), uncut["chars"].to_pylist(), strict=True))
    guesses = {name: guess.of(count) for name, count in chars.items()}
    rows = [
        {"content_hash": name, "part": "", "first_row": 0, "segments": segments, "tokens": tokens}
        for name, (segments, tokens) in guesses.items()
    ]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])


def named_questions(request: PlanRequest) -> frozenset[str]:
    """Return the ids of the questions whose `documents` are all ids of documents, not patterns."""
    names = {name for question in request.questions for name in question.documents}
    if not names:
        return frozenset()
    table = Table(request.corpus.store, "documents")
    known = set(table.read(request.corpus.name, ["doc_id"], one_of("doc_id", names))["doc_id"].to_pylist())
    return frozenset(q.question_id for q in request.questions if q.documents and known.issuperset(q.documents))


def _matched(questions: Iterable[Question], documents: _Documents) -> list[tuple[str, str]]:
    """Return which names and patterns of the questions' documents are a document's; "" for all documents."""
    names = {(question.question_id, name) for question in questions for name in question.documents or ("",)}
    if not documents.rows.num_rows:
        return []
    ids = set(documents.ids()) if any(name for _, name in names) else set()
    return [
        (question_id, name)
        for question_id, name in sorted(names)
        if not name or name in ids or (_MAGIC.search(name) and any(fnmatchcase(i, name) for i in ids))
    ]


def _count_asked(request: PlanRequest, doc_ids: Iterable[str], named: Collection[str]) -> int:
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
