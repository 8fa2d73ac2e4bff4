"""Dry runs: what `ask` and `digest` would read, and how long it would take. They start no Ray and write nothing.

Documents that have no segments yet, and sources that are not ingested yet, are guessed by a sample of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from infra.engines.cpu_format import format_speed, parameters
from infra.readers import ReaderSpec
from infra.sources.base import Parsed, Refused
from infra.sources.diff import make_plan as make_ingest_plan
from infra.sources.discovery import list_sources
from infra.sources.listing import path_of
from infra.sources.sandbox import Guard
from infra.store.corpora import check_known, forgotten, sources_of
from infra.store.delta import Table
from infra.store.documents import check_documents, column_rows, current_sources, document_texts, documents_count
from infra.store.location import Corpus, Store
from infra.store.runs import ENDED, new_run_id
from infra.system.processes import usable_cores
from memagent.config import Config, IngestConfig
from memagent.errors import SourceError
from memagent.reading.segmenting import segments
from memagent.records import Question
from pipelines.ask import check_window, questions_or_default
from pipelines.stages.plan import Plan, make_plan
from pipelines.stages.planned_readings import PlanRequest, SegmentGuess
from pipelines.target import Target
from pipelines.views.formatting import number, plain

_LEAST_CONVERSATIONS = 50
"""Shorter runs tell little about the pace of a long one."""
_GPU_FLOPS = 5e13
"""Share of a GPU's peak that bulk reading reaches, measured with small models; a rule of thumb."""


class Estimate(TypedDict):
    """What a run would read."""

    corpus: str
    dry_run: bool
    sources_to_ingest: int
    """New and changed ones, which a dry run leaves alone."""
    documents: int
    readings: int
    readings_answered_before: int
    readings_to_read: int
    segments: int
    conversations: int
    prompt_tokens: int
    output_tokens_at_most: int
    estimated_seconds: float | None
    """None: unknown."""
    estimate_from: str
    """The source of the estimate."""
    unmatched_questions: list[str]
    """Their texts: they are about documents of which none is in the corpus."""
    outside_scope: list[str]
    """Texts of questions that the reader declares not to be trained for."""


def estimate(corpus: Corpus, reader: ReaderSpec, plan: Plan, config: Config) -> Estimate:
    """Count the readings, segments and tokens of a plan, and estimate its time.

    The time comes from the last run of the same policy on this store, its engine's start with it; before there is
    one, from the model's size without a start, and says so.
    """
    tokens = 0
    for question, left in plan.left.items():
        overhead = reader.scheme.prompts.overhead(reader.tokenizer.encode(question))
        tokens += left["tokens"] + (left["segments"] + left["readings"]) * overhead
    conversations, pending = plan.conversations, plan.counts["pending"]
    expected = pace(corpus.store, reader, config)
    start = expected.start_seconds if conversations else 0.0
    return {
        "corpus": corpus.name,
        "dry_run": True,
        "sources_to_ingest": 0,
        "documents": plan.counts["documents"],
        "readings": plan.counts["readings"],
        "readings_answered_before": plan.counts["answered"],
        "readings_to_read": pending,
        "segments": plan.segments,
        "conversations": conversations,
        "prompt_tokens": tokens,
        "output_tokens_at_most": plan.segments * reader.reading.memory_tokens + pending * reader.reading.answer_tokens,
        "estimated_seconds": round(conversations / expected.rate + start, 1) if expected.rate else None,
        "estimate_from": expected.source,
        "unmatched_questions": [question.text for question in plan.unmatched],
        "outside_scope": reader.scheme.scope.outside(plan.left) if reader.scheme.scope else [],
    }


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the configured engines are expected to read."""

    rate: float | None
    """Conversations a second of all engines together; None: not known."""
    start_seconds: float
    """Seconds that an engine takes to start; 0 where no run has shown it."""
    source: str
    """The source of the figure."""


def pace(store: Store, reader: ReaderSpec, config: Config) -> Pace:
    """Expect the pace of the last run of the same policy on this store; before there is one, by the model's size.

    A short run tells little, and counts where there is no longer one.
    """
    return _by_last_run(store, reader, config) or _by_size(reader, config)


def _by_last_run(store: Store, reader: ReaderSpec, config: Config) -> Pace | None:
    runs = Table(store, "runs").read(columns=["run_id", "summary", "ended_at"], filters=ENDED).sort_by("ended_at")
    like = (reader.policy.name, config.engine.kind)
    short: Pace | None = None
    for row in reversed(runs.to_pylist()):
        summary = json.loads(row["summary"])
        conversations, seconds = summary.get("conversations", 0), summary.get("engine_seconds", 0)
        if (summary.get("policy"), summary.get("engine")) != like or not conversations or seconds <= 1:
            continue
        rate = conversations / seconds / summary["config"]["pool"]["max_size"] * config.pool.max_size
        start = max(0.0, summary.get("stage_seconds", {}).get("read", 0.0) - seconds)
        if conversations >= _LEAST_CONVERSATIONS:
            return Pace(rate, start, f"run {row['run_id']}")
        short = short or Pace(rate, start, f"run {row['run_id']}, a short one")
    return short


def _by_size(reader: ReaderSpec, config: Config) -> Pace:
    """Two operations for a parameter and a token of a full segment, its memory read and written."""
    size = parameters(Path(reader.folder)) if config.engine.kind == "vllm" else 0
    if not size:
        return Pace(None, 0.0, "no run of this policy of more than a second yet: the first one gives the rate")
    # On CPU one core is left to scheduling, and a matrix product shows what the others compute.
    cores = max(1, usable_cores() - 1)
    flops = _GPU_FLOPS * config.pool.gpus if config.pool.gpus else format_speed().flops * cores
    tokens = reader.reading.segment_tokens + 2 * reader.reading.memory_tokens
    rate = flops / (2 * size * tokens) * config.pool.max_size
    return Pace(
        rate, 0.0, f"the model's {size / 1e6:.0f}M parameters, within a factor of three; a first run gives the rate"
    )


_TEXTS = 12
"""Texts of a sample."""
_CHARS = 200_000
"""Characters of each at most."""
_FILE_BYTES = 4 * 2**20
"""Larger sources are not parsed for a sample."""
_USUAL_CHARS = 4.0
"""Characters of a token, where there is no text to look at."""
_FILL = 0.9
"""How full of tokens a segment is on average: it ends with a sentence."""


def ask_dry_run(
    asked: Target, questions: Sequence[Question], config: Config, *, archive: bool = False, reread: bool = False
) -> Estimate:
    """Estimate what `ask` would read, and how long it would take; arguments as there.

    The sources that would be looked at first are listed, and a few are parsed.

    Raises UsageError: the corpus is empty, or model, template and question do not fit together.
    """
    corpus, reader = asked.corpus, ReaderSpec(config)
    new = _new_sources(asked, config)
    if not new.sources:
        check_documents(corpus)
    check_window(reader, questions)
    guess = _guess(reader, [*new.texts, *_texts(corpus)])
    request = PlanRequest(
        corpus,
        reader,
        tuple(questions),
        run_id=new_run_id(),
        engines=config.pool.max_size,
        archive=archive,
        reread=reread,
        guess=guess,
    )
    plan = make_plan(request)
    if new.sources or new.gone:
        _add_new(plan, request, new, guess)
    found = estimate(corpus, reader, plan, config)
    return {**found, "sources_to_ingest": new.sources}


def digest_dry_run(name: str, questions: Sequence[Question] | None, config: Config, *, fetch: bool = True) -> Estimate:
    """Estimate what `digest` would read. Its sources are listed, and the default questions stay.

    Raises UsageError: there is no such corpus, or there are no default questions.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    defaults = questions_or_default(corpus, questions)
    return ask_dry_run(Target(corpus, tuple(sources_of(corpus)) if fetch else ()), defaults, config)


@dataclass(frozen=True, slots=True)
class _NewSources:
    """Sources that an ingest would open, and what a sample of them holds."""

    sources: int = 0
    rows: Sequence[pa.RecordBatch] = ()
    """`infra.sources.diff.WORK`, without those of the sample that have no text."""
    gone: Sequence[tuple[str, int]] = ()
    """Ids of sources that are gone, and how many documents each has."""
    texts: tuple[str, ...] = ()
    chars_per_byte: float = 1.0
    sample: Mapping[str, int] = field(default_factory=dict)
    """How many documents each source of the sample has."""

    def documents(self, source: str) -> int:
        """Return how many documents a source has; one that is not of the sample as many as those on average."""
        return self.sample.get(source) or max(1, round(sum(self.sample.values()) / max(1, len(self.sample))))


def _new_sources(asked: Target, config: Config) -> _NewSources:
    """List the sources and parse a few of those that are new or changed, each in a process of its own."""
    if not asked.sources:
        return _NewSources()
    known = current_sources(asked.corpus)
    plan = make_ingest_plan(list(asked.sources), known, config.ingest, sources_of(asked.corpus))
    rows, gone = plan.work, list[tuple[str, int]]()
    if not config.ingest.keep_deleted:
        lost = known.filter(pc.is_in(known["source"], value_set=plan.gone["source"].combine_chunks()))
        gone = list(column_rows(lost, "doc_id", "documents"))
    step = max(1, rows.num_rows // _TEXTS)
    sample = rows.filter(pc.less_equal(rows["size"], _FILE_BYTES))
    texts, textless, counts, excluded = list[str](), list[str](), dict[str, int](), forgotten(asked.corpus)
    chars = size = 0
    with closing(Guard(config.ingest)) as guard:
        for row in sample.take(pa.array(range(0, sample.num_rows, step)[:_TEXTS], pa.int64())).to_pylist():
            name, before = row["source"].rsplit("/", 1)[-1], len(texts)
            with suppress(SourceError):
                for record in guard.parse(path_of(row["source"], row["path"]), name):
                    if not isinstance(record, Refused) and record[1] not in excluded:
                        texts.append(record[0].text[:_CHARS])
                        chars += len(record[0].text)
            if len(texts) == before:
                textless.append(row["source"])
            else:
                counts[row["source"]], size = len(texts) - before, size + row["size"]
    left = rows.filter(pc.invert(pc.is_in(rows["source"], value_set=pa.array(textless, pa.large_string()))))
    found = _NewSources(rows.num_rows, left.to_batches(), gone)
    return replace(found, texts=tuple(texts[:_TEXTS]), chars_per_byte=chars / size if size else 1.0, sample=counts)


def _add_new(plan: Plan, request: PlanRequest, new: _NewSources, guess: SegmentGuess) -> None:
    """Add the readings of sources that are not ingested yet, and take those of gone ones away.

    A source that has changed or moved is among the documents already, with answers to its text before.
    """
    counts, read = plan.counts, 0
    # Questions that are new: what a changed document said before is planned for already.
    unread = {text for text, left in plan.left.items() if left["readings"] >= counts["documents"]}
    for doc_id, documents in new.gone:
        about = [question for question in request.questions if _is_about(question, doc_id)]
        counts["documents"] -= documents if about else 0
        for question in about:
            counts["readings"] -= documents
            counts["pending" if question.text in unread else "answered"] -= documents
            if question.text in unread:  # their parts are not looked up one by one
                left = plan.left[question.text]
                of = counts["documents"] + documents if request.archive else left["readings"]
                left.subtract({name: round(count * min(1.0, documents / max(1, of))) for name, count in left.items()})
    for batch in new.rows:
        for row in batch.to_pylist():
            about = [question for question in request.questions if _is_about(question, row["doc_id"])]
            known = row["known"] or bool(row["was"])
            documents = 1 if known else new.documents(row["source"])
            cut, tokens = guess.of(round(row["size"] * new.chars_per_byte))
            counts["documents"] += documents if about and not known else 0
            for question in about if not known else [each for each in about if each.text not in unread]:
                left = plan.left[question.text]
                left["segments"] += max(cut, documents)
                left["tokens"] += tokens
                if not request.archive:
                    left["readings"] += documents
                    counts["answered" if known else "readings"] += -1 if known else documents
                    read += documents
    for name in ("documents", "readings", "answered", "pending"):
        counts[name] = max(0, counts[name])
    matched = {question.question_id for question in plan.unmatched if question.text in plan.left}
    plan.unmatched = [question for question in plan.unmatched if question.question_id not in matched]
    if request.archive:  # a new document makes another stream, which goes on from the last one's memory
        whole = len(plan.left)
        counts["readings"], counts["answered"] = whole, 0
        read = max(0, whole - counts["pending"])
        for left in plan.left.values():
            left["readings"] = 1
    counts["pending"] += read


def _is_about(question: Question, doc_id: str) -> bool:
    return not question.documents or any(doc_id == name or fnmatchcase(doc_id, name) for name in question.documents)


def _texts(corpus: Corpus) -> Iterator[str]:
    if not documents_count(corpus):
        return
    hashes = Table(corpus.store, "documents").read(corpus.name, ["content_hash"])["content_hash"]
    step = max(1, len(hashes) // _TEXTS)
    wanted = hashes.take(pa.array(range(0, len(hashes), step)[:_TEXTS])).to_pylist()
    for _, text in islice(document_texts(corpus, wanted), _TEXTS):
        yield text[:_CHARS]


def _guess(reader: ReaderSpec, texts: Sequence[str]) -> SegmentGuess:
    """Cut a sample of texts as the reader would, and measure the pieces."""
    chars = tokens = full = full_tokens = 0
    for text in texts:
        pieces = segments("", text, reader.tokenizer, reader.reading.segment_tokens, boundary=reader.reading.boundary)
        cut = [len(piece.token_ids) for piece in pieces]
        chars, tokens = chars + len(text), tokens + sum(cut)
        full, full_tokens = full + len(cut) - 1, full_tokens + sum(cut[:-1])
    usual = reader.reading.segment_tokens * (_FILL if reader.reading.boundary == "soft" else 1.0)
    return SegmentGuess(chars / tokens if tokens else _USUAL_CHARS, full_tokens / full if full > 0 else usual)


def explain(paths: Sequence[str], options: IngestConfig) -> Iterator[tuple[str, Parsed | Refused]]:
    """Yield each source with a text that an ingest would take from it, or would refuse; nothing is written.

    What is refused as a whole has an empty row.

    Raises UsageError: a source does not exist or matches nothing.
    """
    listing = list_sources(list(paths))
    for bad in listing.unusable:
        yield bad.source, Refused("", bad.reason, bad.detail)
    with closing(Guard(options)) as guard:
        for source in listing.sources():
            try:
                for record in guard.parse(source.path, source.source.rsplit("/", 1)[-1]):
                    yield source.source, record if isinstance(record, Refused) else record[0]
            except SourceError as error:
                yield source.source, Refused("", error.reason, error.detail)


def show(console: Console, source: str, taken: Parsed | Refused) -> None:
    """Print a document: what it is, its warnings, and its text page by page."""

    def line(words: str, style: str = "") -> None:
        console.print(Text(plain(words), style=style), soft_wrap=True)

    line(f"{source}#{taken.row}" if taken.row else source, "bold")
    if isinstance(taken, Refused):
        line(f"not read: {taken.reason}: {taken.detail}", "red")
        return
    starts = list(taken.page_starts or [0])
    pages = f", {number(len(starts))} pages" if taken.page_starts else ""
    facts = f"{taken.media_type}, {taken.encoding}, {number(len(taken.text))} characters{pages}"
    line(f"{facts}, title: {taken.title or 'none'}", "dim")
    for warning in taken.warnings:
        line(f"warning: {warning}", "yellow")
    for page, (start, end) in enumerate(zip(starts, [*starts[1:], len(taken.text)], strict=True), 1):
        if taken.page_starts:
            line(f"page {page}, from character {number(start)}", "dim")
        line(taken.text[start:end])
