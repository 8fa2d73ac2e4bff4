"""The tables: the types of their rows, and the columns made of them. `corpus` partitions every Delta table.

A type is what `pyarrow.Table.to_pylist` gives. A read of some of a table's columns gives rows with these alone.
"""

import typing
from collections.abc import Sequence
from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, Union

import pyarrow as pa
import pyarrow.compute as pc

from memagent.quality.verdicts import VerdictKind
from memagent.records import Json, Level

Int32 = Annotated[int, "int32"]
Float32 = Annotated[float, "float32"]
Text = Annotated[str, "large_string"]
"""That a model or a person wrote. Offsets of 32 bits end at 2 GiB of a column, where a run's texts do not."""
Ids = Annotated[list[Int32], "large_list"]
"""Token ids, for the same reason."""

Scope = Literal["document", "archive"]
Ended = Literal["completed", "completed with warnings", "failed", "paused"]
"""How a run ended: paused, if its budget was spent and readings are left; with warnings, if some of it failed, but not
more than `memagent.config.Config.max_failed`."""
RunStatus = Literal["running", "stopped"] | Ended


class NewDocument(TypedDict):
    """A row of `documents` without the columns that `infra.store.documents.DocumentWriter` fills in."""

    doc_id: str  # its path under the source that it was found under; of a table's row <file>#<row>
    content_hash: str  # of the text
    title: str  # of the document itself, or its file name
    source: str  # where it was read from
    source_stamp: str  # size and time, or ETag: an unchanged one is not opened again; of a sample its texts' hashes
    media_type: str
    encoding: str  # that the text was decoded from
    size_bytes: int  # of the source
    chars: int  # of the text
    state: Literal["present", "superseded", "deleted"]  # present | superseded (by another version of it) | deleted
    first_seen: datetime  # when the document was first there
    page_starts: NotRequired[Sequence[int] | None]  # offsets in the text of the pages of a PDF; null: no pages
    warnings: Sequence[str] | None  # parts not read, or read by OCR; null: none


class DocumentRow(NewDocument):
    """Append-only: the newest row of a (doc_id, content_hash) is its present state."""

    corpus: str
    seen_at: datetime  # when this row's state was noted


class TextRow(TypedDict):
    """Append-only, apart from the documents: no read of metadata opens a file that holds texts."""

    corpus: str
    content_hash: str  # of the text
    text: Text


class SourceRow(TypedDict):
    """Append-only: the newest row of a source. Written after its documents, it is their commit record."""

    corpus: str
    source: str
    doc_id: str  # of the file; its rows have <doc_id>#<row>
    source_stamp: str
    state: Literal["read", "failed", "dismissed", "deleted"]  # read | failed | dismissed | deleted
    documents: int
    run_id: str
    seen_at: datetime


class SegmentRange(TypedDict):
    """Where the segments of a document stand: rows `first_row` to `first_row` + `segments` of a part."""

    content_hash: str
    part: str  # path relative to the store
    first_row: int
    segments: Int32


class SegmentedRow(SegmentRange):
    """Where the segments of a document stand: the commit record of the segment parts."""

    corpus: str
    segment_key: str
    tokenizer: str
    segment_tokens: Int32
    boundary: str
    cutting_version: Int32  # of the rules by which the text was cut (`memagent.reading.segmenting`)
    tokens: int
    written_at: datetime


class SegmentRow(TypedDict):
    """The segments of documents; a part has those of several."""

    content_hash: str
    index: Int32  # from 0
    char_start: int  # in the document's text
    char_end: int
    segment_hash: str
    text: Text
    token_ids: list[Int32]


class TurnRow(TypedDict):
    """The turn log. Key: reading_id, span, step."""

    reading_id: str
    span: Int32
    step: Int32
    kind: str  # update | merge | answer | carried
    content_hash: str
    segment_index: Int32
    response_ids: Ids
    response: Text
    memory_ids: Ids
    memory: Text  # after the turn
    changed: bool  # whether it changed the memory
    prompt_tokens: Int32
    cached_tokens: Int32
    finish_reason: str
    seconds: float
    logprobs: Annotated[list[Float32], "large_list"] | None  # of each response token; null: not kept
    confidence: Float32 | None  # of the least sure conversation of its span so far; the answer's: of all spans
    weight_version: str
    carried_from: str
    policy_id: str
    run_id: str
    written_at: datetime


class EvidenceRow(TypedDict):
    """A piece of evidence (`memagent.records.Evidence`); without a quote its place is -1."""

    content_hash: str
    segment_index: Int32
    char_start: int
    char_end: int
    quote: str
    quote_start: int
    quote_end: int
    verbatim: bool  # the quote says the answer word for word; else it supports it


class AnswerRow(TypedDict):
    """Append-only: of several rows of a reading, the first counts."""

    corpus: str
    reading_id: str  # hash of texts, question, the model's version and the reading configuration
    question_id: str  # as the questions file has it
    question: Text
    scope: Scope  # document | archive
    content_hash: str  # of the document; of the list of documents for an archive
    stream: list[str]  # content hashes in reading order; empty for very many: see `infra.store.segments`
    policy_id: str  # the model's version
    config_hash: str  # of the reading configuration
    answer: Text  # empty: not found
    found: bool  # whether the documents say it
    confidence: Float32 | None  # the lowest of its conversations' mean probabilities; null: not known
    evidence: list[EvidenceRow]  # places that the answer came from
    segments: Int32  # read for it
    conversations: Int32  # with the model
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float  # from its first conversation to its answer
    engine_seconds: float | None  # its share of the engine's time (`infra.cluster.reading_worker`)
    carried_from: str  # the reading whose memory this one went on from, if any
    carried_segments: Int32
    run_id: str  # that answered
    answered_at: datetime  # when
    memories_cut: Int32 | None  # updates by its segments: at `reading.memory_tokens`, repetitions, empty ones
    memory_empty: bool | None  # whether it answered from an empty memory
    confidence_level: Level | None  # low | medium | high; null: the reader declares none
    warnings: list[str] | None  # what speaks against the answer


Stage = Literal["ingest", "segment", "plan", "read"]


class FailureRow(TypedDict):
    """What could not be ingested, segmented, planned or read, and why."""

    corpus: str
    stage: Stage  # ingest | segment | plan | read
    item: str
    reason: str  # a short stable word
    detail: str
    run_id: str
    at: datetime


class RunRow(TypedDict):
    """A row per run from its first second."""

    corpus: str
    run_id: str
    kind: str  # ingest | ask | digest | backfill | evaluate | agreement | harvest | train
    status: RunStatus  # running, stopped (broken off), completed, completed with warnings, failed or paused
    started_at: datetime
    ended_at: datetime | None  # null while it is running, or was broken off
    config: str  # JSON, without secrets
    summary: str  # JSON; short until the run ends
    withheld: bool | None  # whether its answers are hidden (`infra.store.runs`)


class PlannedReading(TypedDict):
    """``runs/<run_id>/plan/<bucket>.parquet``: which readings a run is about."""

    reading_id: str
    doc_id: str  # empty for an archive
    title: str
    content_hash: str
    stream: list[str]  # as in `answers`
    documents: int
    question_id: str
    question: Text
    gold: list[str] | None  # null: not known; [""]: the documents do not say
    scope: Scope
    state: Literal["answered", "continued", "new"]  # answered (before this run) | continued | new
    segments: Int32
    tokens: int
    answered_by: str  # reading_id of the answer that counts, for state answered
    carried_from: str
    carried_segments: Int32


class ScoreRow(TypedDict):
    """Metrics of tasks and lengths, each with its 95% interval."""

    corpus: str
    score_id: str
    run_id: str
    suite: str
    task: str  # "all" for the mean over the tasks of a length
    length: int  # tokens asked for; 0 where texts are as long as they are
    policy_id: str
    method: str
    control: str  # empty: none
    metric: str
    value: float
    low: float  # 95% interval
    high: float
    n: int
    failed: int  # of n; each counts 0
    seed: int
    samples: str  # JSON: the suite
    scored_at: datetime


PolicyStatus = Literal["candidate", "promoted", "refused", "retired"]
PolicyJson = Annotated[Json | None, "string"]


class PolicyRow(TypedDict):
    """Model versions and what became of them."""

    corpus: str  # always POLICIES_OF: policies belong to the store, not to a corpus
    policy_id: str
    name: str  # the lineage, for example nano
    path: str  # folder relative to the store; empty: the lineage's base model
    parent: str  # policy_id
    status: PolicyStatus  # candidate | promoted | refused | retired
    reason: str  # of the last change of status
    data_version: int | None  # Delta version of the qa table that it learnt from
    run_id: str  # of the training
    config: PolicyJson  # JSON: the recipe
    metrics: PolicyJson  # JSON: of the training's best step
    promotion: PolicyJson  # JSON: what was compared, and how it came out
    commit: str  # version of the code
    made_at: datetime
    changed_at: datetime


class SegmentName(TypedDict):
    """Names a segment of a document."""

    content_hash: str
    segment_index: Int32


class SpanRow(TypedDict):
    """Characters of a document."""

    content_hash: str
    char_start: int
    char_end: int


class QaRow(TypedDict):
    """Questions that may teach, with their provenance (`memagent.quality.curation.Qa`)."""

    corpus: str
    qa_id: str
    question: str
    answers: list[str]  # [""]: the stream does not say
    stream: list[str]  # content hashes in reading order
    documents: list[str]  # doc_ids; the split goes by them
    source: str  # feedback | gold | agreement | generated
    reading_id: str
    policy_id: str
    share: float | None  # of sampled readings, those that agreed
    pass_rate: float | None  # of readings, those that were right
    evidence: list[SegmentName]
    tags: list[str]
    split: str  # train | validation | promotion | test
    split_version: Int32 | None  # of the rule that the split is by
    run_id: str  # of the harvest
    harvested_at: datetime
    spans: list[SpanRow] | None  # where the documents say the answer; null where unknown


class FeedbackRow(TypedDict):
    """What people said about answers; which rows count, `memagent.quality.verdicts` says."""

    corpus: str
    reading_id: str
    verdict: VerdictKind  # accepted | rejected | corrected | withdrawn | comment
    answer: str  # what is right (empty: the documents do not say); of a rejection the correction, where that was shown
    given_at: datetime
    reviewer: str | None  # who; empty: a file of verdicts
    comment: Text | None
    spans: list[SpanRow] | None  # where the documents say the answer
    decides: bool | None  # settles a disagreement: what others said before no longer counts


class ResultRow(TypedDict):
    """``runs/<run_id>/results.parquet``: an evaluation's samples, judged."""

    sample_id: str
    task: str
    length: int
    depth: float | None
    question: str
    gold: list[str]
    answer: str | None  # empty: not found; null: the reading failed
    score: float
    exact: float
    reading_id: str
    tokens: int | None
    seconds: float | None  # its share of the engine's time
    segments: int | None
    confidence: Float32 | None  # as of its answer
    failure: str  # why a wrong answer is wrong (`memagent.evaluation.grading`); empty: it is right
    lost_step: int | None  # where the memory lost what it had noted
    lost_segment: int | None


_KINDS = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


def schema_of(row: type) -> pa.Schema:
    """Return the columns of a row's type (a `TypedDict`), `corpus` first; ``Annotated`` names another kind."""
    hints = typing.get_type_hints(row, include_extras=True)
    return pa.schema([(name, _kind(hints[name])) for name in sorted(hints, key=lambda name: name != "corpus")])


def _kind(hint: Any) -> pa.DataType:
    if typing.is_typeddict(hint):
        return pa.struct(list(schema_of(hint)))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        name = inner[1]
        return pa.large_list(_kind(inner[0]).value_type) if name == "large_list" else pa.type_for_alias(name)
    if origin in (list, Sequence):
        return pa.list_(_kind(inner[0]))
    if origin in (Union, UnionType, NotRequired):  # of a kind and None, or of texts
        return _kind(inner[0])
    return pa.string() if origin is Literal else _KINDS[hint]


class TableSpec(NamedTuple):
    """A Delta table."""

    row: type
    key: tuple[str, ...]
    """What a row is known by, beside its corpus."""
    schema: pa.Schema


def _table(row: type, *key: str) -> TableSpec:
    return TableSpec(row, key, schema_of(row))


TABLES = {
    "documents": _table(DocumentRow, "doc_id", "content_hash", "seen_at"),
    "texts": _table(TextRow, "content_hash"),
    "sources": _table(SourceRow, "source", "seen_at"),
    "segmented": _table(SegmentedRow, "segment_key"),
    "answers": _table(AnswerRow, "reading_id"),
    "quarantine": _table(FailureRow, "stage", "item", "reason"),
    "runs": _table(RunRow, "run_id"),
    "scores": _table(ScoreRow, "score_id"),
    "qa": _table(QaRow, "qa_id"),
    "feedback": _table(FeedbackRow, "reading_id", "given_at"),
    "policies": _table(PolicyRow, "policy_id"),
}
"""By name."""
DOCUMENTS, TEXTS, SOURCES = (TABLES[name].schema for name in ("documents", "texts", "sources"))
ANSWERS, QUARANTINE = (TABLES[name].schema for name in ("answers", "quarantine"))
QA, FEEDBACK = (TABLES[name].schema for name in ("qa", "feedback"))
EVIDENCE = pa.struct(list(schema_of(EvidenceRow)))
SEGMENTS = schema_of(SegmentRow)
TURNS = schema_of(TurnRow)
PLAN = schema_of(PlannedReading)
PLACES = schema_of(SegmentRange)
RESULTS = schema_of(ResultRow)
POLICIES_OF = "*"
"""In the place of a corpus."""


def now() -> datetime:
    """Return the current time, as tables store it."""
    return datetime.now(UTC)


def reading_item(row: PlannedReading) -> str:
    """Return how the quarantine names a reading: by its question's text, which may be asked under several ids."""
    return f"{row['doc_id'] or 'archive'} ? {row['question']}"


def reading_items(rows: pa.Table) -> pa.ChunkedArray:
    """Return how the quarantine names the readings of a plan's rows."""
    whose = pc.if_else(pc.equal(rows["doc_id"], ""), "archive", rows["doc_id"])
    return pc.binary_join_element_wise(whose, rows["question"].cast(pa.string()), " ? ")


def failure_row(corpus: str, stage: Stage, item: str, *, reason: str, detail: str, run_id: str) -> FailureRow:
    """Return a row of the quarantine, of now.

    Args:
        stage: that failed.
        item: a source, a document, a question, or document and question.
        reason: a short stable word.
        detail: what a person needs to know.
    """
    return {
        "corpus": corpus,
        "stage": stage,
        "item": item,
        "reason": reason,
        "detail": detail,
        "run_id": run_id,
        "at": now(),
    }
