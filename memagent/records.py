"""The domain types that all packages share."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict, get_args

Json = dict[str, Any]
"""An object of JSON or TOML as it is read or written. Only at the edges: what crosses modules has a type of its own."""


def stable_hash(*parts: object) -> str:
    """Return a stable 32-digit hexadecimal hash of JSON-serialisable `parts`."""
    return hashlib.sha256(_json(*parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _json(*parts: object) -> str:
    return json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def text_hash(text: str) -> str:
    """Return the `content_hash` of a document's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a stable id."""

    corpus: str
    doc_id: str
    content_hash: str
    title: str
    source: str
    text: str
    size_bytes: int
    media_type: str
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of a document.

    `char_start` and `char_end` are offsets into the document's text, so that
    ``text[char_start:char_end] == segment.text`` and all segments joined give the document.
    """

    content_hash: str
    index: int
    char_start: int
    char_end: int
    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the documents it is asked of, and its gold answers, if any."""

    question_id: str
    text: str
    documents: tuple[str, ...] = ()
    """Document ids or globs; empty means every document of the corpus."""
    answers: tuple[str, ...] | None = None
    """Gold answers. None: not known. A single empty string: the documents do not say."""


TurnKind = Literal["update", "merge", "answer", "carried"]
Level = Literal["low", "medium", "high"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Of confidence, by held-out answers to questions of the same kind (`memagent.reading.scope`)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One conversation of a reading: a memory update or the final answer.

    A turn log row is this plus its provenance. `memory_ids` is the memory after the turn, so a reading can resume from
    any row.
    """

    reading_id: str
    span: int
    step: int
    kind: TurnKind
    content_hash: str
    """Document of the segment; empty for merges and answers."""
    segment_index: int
    """Index of the segment in its document; -1 if the turn read none."""
    response_ids: list[int]
    response: str
    memory_ids: list[int]
    memory: str
    changed: bool
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str
    seconds: float
    logprobs: list[float] | None = None
    """Of each of `response_ids`, where they are kept (`ReadingSpec.logprobs`)."""
    confidence: float | None = None
    """Of the least sure conversation of its span so far, of the answer's turn: of all spans. See `ReadingResult`."""
    weight_version: str = ""
    carried_from: str = ""
    """For a ``carried`` turn: the reading whose memory this one starts from."""

    def is_empty(self, no_memory: Sequence[int]) -> bool:
        """Tell whether its memory holds nothing; `no_memory` is what a reading begins with."""
        return list(self.memory_ids) in ([], list(no_memory))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A segment in which the memory gained the answer, and the sentence of the document that says or supports it."""

    content_hash: str
    segment_index: int
    char_start: int
    char_end: int
    quote: str
    """The document's text from `quote_start` to `quote_end`; empty where no sentence of the segment says the answer or
    supports it."""
    quote_start: int = -1
    quote_end: int = -1
    verbatim: bool = True
    """Whether the quote says the answer word for word. If not, it is a sentence that supports the answer best."""
    page: int | None = None
    """Of a PDF, from 1, where it is known: answers in the store have it."""
    document: str = ""
    """Id of the document, of answers in the store."""


class TextSpan(NamedTuple):
    """Characters of a document, whatever its segments are."""

    content_hash: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadingResult:
    """The result of one reading."""

    reading_id: str
    answer: str
    found: bool
    evidence: list[Evidence] = field(default_factory=list)
    segments: int = 0
    """Segments read now; those carried over from an earlier reading are not counted."""
    conversations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """Its share of the engine's time, if the worker measures it."""
    confidence: float | None = None
    """How sure the reader was where it was least sure: the lowest of its conversations' mean probabilities, from 0 to 1
    (`memagent.reading.engine.mean_probability`). "Not found" has one, too. None: the engine does not say."""
    confidence_level: Level | None = None
    """How far to trust the answer; None: the reader declares none, or confidence is not known."""
    memories_cut: int = 0
    """Updates by the segments read now whose response was cut off at `reading.memory_tokens`, repeated itself or held
    no text; the last two left the memory as it was."""
    memory_empty: bool = False
    """Whether it answered from an empty memory."""
    warnings: tuple[str, ...] = ()
    """What speaks against the answer (`memagent.reading.scope.check_answer`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model version."""

    policy_id: str
    name: str
    path: str
    defaults: Json = field(default_factory=dict)
    """Reading defaults from the model folder's ``reading.json``."""


def reading_id(stream: list[str], question: str, policy_id: str, config_hash: str) -> str:
    """Return the id of a reading: a hash of (stream, question, policy, reading config).

    `stream` is the list of content hashes in reading order. Equal work has an equal id, so it is never done twice."""
    return reading_names(question, policy_id, config_hash)(stream)


def reading_names(question: str, policy_id: str, config_hash: str) -> Callable[[Sequence[str]], str]:
    """Return `reading_id` as a function of the stream, much faster for many streams: the JSON of question, policy and
    configuration is made once. Content hashes are hexadecimal.
    """
    tail = _json(question, policy_id, config_hash)[1:].encode("utf-8", "surrogatepass")

    def name(stream: Sequence[str]) -> str:
        hashes = ",".join(f'"{content_hash}"' for content_hash in stream)
        return hashlib.sha256(b"[[%b],%b" % (hashes.encode(), tail)).hexdigest()[:32]

    return name


_HALF = re.compile(r"[\ud800-\udfff]")


def half(text: str) -> str | None:
    r"""Return the first half of a surrogate pair in a text, as ``\udXXX``; None: there is none."""
    match = _HALF.search(text)
    return f"\\u{ord(match[0]):04x}" if match else None


def mended(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair."""
    return _HALF.sub("\ufffd", text)


class ProgressCounts(TypedDict, total=False):
    """The counts of a run at a moment, those that its stage has; lines of ``progress.jsonl`` are such."""

    stage: str
    t: float
    """Seconds since the run began."""
    engine: str
    run: str
    """Which is waited for, or compacted."""
    done: int
    """Sources of an ingest, of `total`."""
    total: int
    quarantined: int
    bytes: int
    documents: int
    documents_total: int
    readings: int
    readings_total: int
    segments: int
    segments_total: int
    conversations: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    failures: int
    failures_by_reason: dict[str, int]
    memories_cut: int
    engine_deaths: int
    engine_milliseconds: int
    engines: int
    empty_memories: int
    in_flight: int
    step: int
    """Of a training, of `steps`."""
    steps: int
    row: dict[str, Any]
    """The metrics of a step that is done."""
    groups: int
    """With signal, of `groups_total`, of `sampled`."""
    groups_total: int
    sampled: int


Progress = Callable[[ProgressCounts], None]
"""Is called with the counts of a run as they come."""
