"""The type of each table's rows: what `pyarrow.Table.to_pylist` gives, column by column as in `schemas`.

A read of some of a table's columns gives rows with these alone; a type says what a column holds where it was read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from memagent.quality.verdicts import VerdictKind
from memagent.records import Level

Scope = Literal["document", "archive"]
Ended = Literal["completed", "completed with warnings", "failed", "paused"]
"""How a run ended: paused, if its budget was spent and readings are left; with warnings, if some of it failed, but not
more than `memagent.config.Config.max_failed`."""


class NewDocument(TypedDict):
    """A row of `documents` without the columns that `infra.store.documents.DocumentWriter` fills in."""

    doc_id: str
    content_hash: str
    title: str
    source: str
    source_stamp: str
    media_type: str
    encoding: str
    size_bytes: int
    chars: int
    state: Literal["present", "superseded", "deleted"]
    first_seen: datetime
    page_starts: NotRequired[Sequence[int] | None]
    """Offsets in the text at which the pages of a PDF begin."""
    warnings: Sequence[str] | None
    """As `infra.sources.base.Parsed` has them."""


class DocumentRow(NewDocument):
    """A row of `documents`: the newest of a (doc_id, content_hash) is its present state."""

    corpus: str
    seen_at: datetime


class SourceRow(TypedDict):
    """A row of `sources`: the newest of a source says how far it was read."""

    corpus: str
    source: str
    doc_id: str
    source_stamp: str
    state: Literal["read", "failed", "dismissed", "deleted"]
    documents: int
    run_id: str
    seen_at: datetime


class SegmentRange(TypedDict):
    """Where the segments of a document stand: rows `first_row` to `first_row` + `segments` of a part."""

    content_hash: str
    part: str
    first_row: int
    segments: int


class SegmentedRow(SegmentRange):
    """A row of `segmented`, the commit record of the segment parts."""

    corpus: str
    segment_key: str
    tokenizer: str
    segment_tokens: int
    boundary: str
    cutting_version: int
    """See `memagent.reading.segmenting`."""
    tokens: int
    written_at: datetime


class EvidenceRow(TypedDict):
    """A piece of evidence (`memagent.records.Evidence`); without a quote its place is -1."""

    content_hash: str
    segment_index: int
    char_start: int
    char_end: int
    quote: str
    quote_start: int
    quote_end: int
    verbatim: bool


class AnswerRow(TypedDict):
    """A row of `answers`."""

    corpus: str
    reading_id: str
    question_id: str
    question: str
    scope: Scope
    content_hash: str
    stream: list[str]
    """Content hashes in reading order; empty where there are very many (`infra.store.segments`)."""
    policy_id: str
    config_hash: str
    answer: str
    found: bool
    confidence: float | None
    """See `memagent.records.ReadingResult`; null where the engine gives none."""
    evidence: list[EvidenceRow]
    segments: int
    conversations: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    engine_seconds: float | None
    carried_from: str
    carried_segments: int
    run_id: str
    answered_at: datetime
    memories_cut: int | None
    """See `memagent.records.ReadingResult`."""
    memory_empty: bool | None
    confidence_level: Level | None
    """See `memagent.records.ReadingResult`, as of `warnings`."""
    warnings: list[str] | None


class FailureRow(TypedDict):
    """A row of `quarantine`: what could not be ingested, segmented, planned or read, and why."""

    corpus: str
    stage: Literal["ingest", "segment", "plan", "read"]
    item: str
    reason: str
    detail: str
    run_id: str
    at: datetime


class RunRow(TypedDict):
    """A row of `runs`; `config` and `summary` are JSON, the summary empty until the run ends."""

    corpus: str
    run_id: str
    kind: str
    status: Literal["running", "stopped"] | Ended
    started_at: datetime
    ended_at: datetime | None
    """None while it is running, or was broken off."""
    config: str
    summary: str
    withheld: bool | None
    """Whether its answers are shown to nobody."""


class PlannedReading(TypedDict):
    """A row of a run's plan: a reading that the run is about."""

    reading_id: str
    doc_id: str
    title: str
    content_hash: str
    stream: list[str]
    """Content hashes in reading order; empty where there are very many (`infra.store.segments`)."""
    documents: int
    question_id: str
    question: str
    gold: list[str] | None
    scope: Scope
    state: Literal["answered", "continued", "new"]
    segments: int
    tokens: int
    answered_by: str
    carried_from: str
    carried_segments: int


class ScoreRow(TypedDict):
    """A row of `scores`: a metric of a task and length, with its 95% interval."""

    corpus: str
    score_id: str
    run_id: str
    suite: str
    task: str
    length: int
    policy_id: str
    method: str
    control: str
    metric: str
    value: float
    low: float
    high: float
    n: int
    failed: int
    seed: int
    samples: str
    scored_at: datetime


class SegmentName(TypedDict):
    """Names a segment of a document."""

    content_hash: str
    segment_index: int


class SpanRow(TypedDict):
    """Characters of a document."""

    content_hash: str
    char_start: int
    char_end: int


class QaRow(TypedDict):
    """A row of `qa` (`memagent.quality.curation.Qa`)."""

    corpus: str
    qa_id: str
    question: str
    answers: list[str]
    stream: list[str]
    documents: list[str]
    source: str
    reading_id: str
    policy_id: str
    share: float | None
    pass_rate: float | None
    evidence: list[SegmentName]
    tags: list[str]
    split: str
    split_version: int | None
    run_id: str
    harvested_at: datetime
    spans: list[SpanRow] | None
    """None where unknown."""


class FeedbackRow(TypedDict):
    """A row of `feedback`: what somebody said of an answer."""

    corpus: str
    reading_id: str
    verdict: VerdictKind
    answer: str
    given_at: datetime
    reviewer: str | None
    """Empty: a file of verdicts."""
    comment: str | None
    spans: list[SpanRow] | None
    decides: bool | None


class ResultRow(TypedDict):
    """A row of an evaluation's ``results.parquet``: a sample, judged."""

    sample_id: str
    task: str
    length: int
    depth: float | None
    question: str
    gold: list[str]
    answer: str | None
    score: float
    exact: float
    reading_id: str
    tokens: int | None
    seconds: float | None
    segments: int | None
    confidence: float | None
    failure: str
    lost_step: int | None
    lost_segment: int | None
