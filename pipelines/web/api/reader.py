"""The reader of a server: one engine, loaded for its life, on which the readings of all requests are batched.

A request reads a text of its own, or a corpus of the store. Both give answers as they are found.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

import pyarrow.dataset as ds
from pydantic import BaseModel

from infra.cluster.loaded_engine import LoadedEngine, LocalEngine
from infra.readers import ReaderSpec
from infra.store.buckets import bucket_of
from infra.store.corpora import check_known, corpora
from infra.store.delta import Table
from infra.store.feedback import Reviews
from infra.store.location import Corpus, Store
from infra.store.runs import RunSummary, withheld_runs
from infra.store.schemas import AnswerRow
from memagent.config import Config
from memagent.errors import EmptyResponse, MemagentError, RequestError, UsageError
from memagent.questions import ask as make_question
from memagent.reading.conversations import ListStream, ReadingRequest, ReadingSpec
from memagent.reading.segmenting import segments
from memagent.records import Evidence, ReadingResult, Turn, half, reading_id, text_hash
from pipelines.answers import Answer, Answers
from pipelines.archive import AsyncAnswers
from pipelines.ask import AskRequest
from pipelines.runs import WITHHELD
from pipelines.target import Target
from pipelines.views.formatting import doubt, unanswered
from pipelines.views.passages import DocumentTexts, in_context, place_of
from pipelines.views.visible_answers import Citations, changed_since, reader_warnings
from pipelines.web.api.protocol import (
    About,
    ApiError,
    ChatRequest,
    EvidencePlace,
    FoundAnswer,
    ReadingProgress,
    Split,
    TokenUsage,
    question_of,
    text_and_question,
)


class CitedPassage(BaseModel):
    """A place in a document, with the text around it."""

    place: EvidencePlace
    before: str
    text: str
    """The quote; the segment where there is none."""
    after: str


class AnswerEvidence(BaseModel):
    """An answer, and the passages that it came from, best first."""

    question: str
    answer: str
    review: str
    """As in `FoundAnswer`."""
    warnings: list[str]
    """What speaks against the answer; whether it is withheld, or over other documents than now."""
    passages: list[CitedPassage]


def place(evidence: Evidence) -> EvidencePlace:
    """Return a piece of evidence as responses have it."""
    is_quoted = bool(evidence.quote)
    return EvidencePlace(
        document=evidence.document,
        quote=evidence.quote,
        quote_start=evidence.quote_start if is_quoted else None,
        quote_end=evidence.quote_end if is_quoted else None,
        verbatim=evidence.verbatim,
        segment=evidence.segment_index if evidence.segment_index >= 0 else None,
        segment_start=evidence.char_start,
        segment_end=evidence.char_end,
        page=evidence.page,
    )


def answer_evidence(corpus: Corpus, reading_id: str, around: int) -> AnswerEvidence:
    """Return the passages that an answer came from, with `around` characters before and after each place.

    Raises UsageError: there is no such corpus or answer.
    """
    check_known(corpus)
    table = Table(corpus.store, "answers").read(corpus.name, filters=ds.field("reading_id") == reading_id)
    rows: list[AnswerRow] = table.to_pylist()
    if not rows:
        raise UsageError(f"corpus {corpus.name!r} has no reading {reading_id!r}: take reading_id of an answer")
    row, texts, passages = rows[0], DocumentTexts(corpus.store), []
    review = Reviews(corpus, bucket_of(row["content_hash"])).of(row)
    for piece in Citations(corpus, rows).cite(row, review):
        if (text := texts.get(corpus.name, piece["content_hash"])) is None:  # it was forgotten
            continue
        before, said, after = in_context(text, place_of(piece), around)
        passages.append(CitedPassage(place=place(Evidence(**piece)), before=before, text=said, after=after))
    answer, status = (review.answer, review.status) if review else (row["answer"], "")
    warnings = [WITHHELD] if row["run_id"] in withheld_runs(corpus) else []
    warnings += [*reader_warnings(row["warnings"], status), *changed_since(corpus, rows).values()]
    return AnswerEvidence(question=row["question"], answer=answer, review=status, warnings=warnings, passages=passages)


def found_answer(given: Answer | ReadingResult) -> FoundAnswer:
    """Return an answer as responses have it."""
    return FoundAnswer(
        document=given.document if isinstance(given, Answer) else "",
        answer=given.answer,
        found=given.found,
        evidence=[place(one) for one in given.evidence],
        reading_id=given.reading_id,
        confidence=given.confidence_level,
        warnings=list(given.warnings),
        review=given.review if isinstance(given, Answer) else "",
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a reading ended."""

    about: About
    usage: TokenUsage
    finish_reason: str = "stop"
    says: str = ""
    """Which of the answers are withheld, and why others are lacking; empty: none."""


class TextReading:
    """The reading of a text that came with the request. Nothing of it is kept.

    It is iterated over once, and so is a `CorpusReading`; to end it early, cancel the task that does so.
    """

    def __init__(
        self, request: ReadingRequest, spec: ReadingSpec, run: Callable[..., object], about: About, most_tokens: int
    ) -> None:
        """Prepare a reading; `run` reads, as `HeldReader.run` does, and the counts are added to `about`. An answer has
        `most_tokens`, unless the request has a lower limit.
        """
        self._request, self._spec, self._run = request, spec, run
        self._about, self._most_tokens = about, most_tokens
        self._read = 0
        self._finish = "stop"
        self._lost = False  # a memory, which has the server's limit
        self._result: ReadingResult | None = None

    @property
    def progress(self) -> ReadingProgress:
        """Segments read so far."""
        return ReadingProgress(segments_read=self._read, segments=len(self._request.stream))

    async def answers(self) -> AsyncGenerator[FoundAnswer]:
        """Read, and yield the answer."""
        try:
            self._result = await self._run(self._request, self._spec, self._record)  # type: ignore[misc]
        except EmptyResponse as error:
            if self._lost or self._spec.config.answer_tokens >= self._most_tokens:
                raise
            raise RequestError("max_tokens leaves no room for an answer: raise it") from error
        yield found_answer(self._result)

    def ended(self) -> Ended:
        """Return its counts."""
        result = self._result
        assert result is not None, "answers() has ended"
        about = self._about.model_copy(
            update={"found": int(result.found), "segments": result.segments, "conversations": result.conversations}
        )
        usage = TokenUsage.of(result.prompt_tokens, result.cached_tokens, result.output_tokens)
        return Ended(about, usage, self._finish)

    def line(self, answer: FoundAnswer) -> str:
        """Return the answer with its warnings; "not found", which programs compare, with its question's alone."""
        said = answer.answer or self._spec.prompts.template.not_found
        return f"{said}{doubt('', answer.warnings if answer.found else self._about.warnings)}"

    def _record(self, turn: Turn) -> None:
        self._read += turn.kind == "update"
        self._lost = self._lost or (turn.kind != "answer" and turn.finish_reason == "empty")
        if turn.kind == "answer" and turn.finish_reason == "length":
            self._finish = "length"


class CorpusReading:
    """A question to a corpus: a run like ``memagent ask``, kept in the store, on the server's engine."""

    def __init__(self, corpus: Corpus, request: AskRequest, begin: Callable[..., object], about: About) -> None:
        """Prepare a run; `begin` has it run in a thread. The request has one question, and a running engine; the run's
        counts are added to `about`.

        Raises UsageError: the question does not fit the window.
        """
        self._corpus, self._request, self._begin, self._about = corpus, request, begin, about
        self._summary: RunSummary | None = None
        self._answered = 0

    @property
    def progress(self) -> ReadingProgress:
        """Documents that are answered so far."""
        return ReadingProgress(answers=self._answered)

    async def answers(self) -> AsyncGenerator[FoundAnswer]:
        """Yield the answer about each document as it is found, those that earlier runs gave first."""
        run = Answers(Target(self._corpus), self._request, progress=False, begin=self._begin)
        running = AsyncAnswers(run)
        try:
            async for answer in running:
                self._answered += 1
                yield found_answer(answer)
            await running
        finally:
            run.stop()
        self._summary = run.summary

    def ended(self) -> Ended:
        """Return the run's counts."""
        summary = self._summary
        assert summary is not None, "answers() has ended"
        counts = summary["readings"]
        if not counts["total"]:
            raise RequestError("no document of the corpus is one of `documents`")
        unread = counts.get("unread", 0)
        lacking = unanswered(summary)
        says = [f"without an answer: {lacking}"] if lacking else []
        if lacking and not self._answered:
            said = f"no reading of run {summary['run_id']} came to its end: {lacking}"
            # A client sends again what a server failed at, and each time a budget would be spent.
            raise RequestError(f"{said}: ask again to go on") if unread else MemagentError(said)
        read = {name: summary[name] for name in ("segments", "conversations", "run_id")}
        read |= {"readings": counts["total"], "found": counts["found"], "failed": counts["failed"], "unread": unread}
        says += [summary["withheld_answers"]["says"]] if "withheld_answers" in summary else []
        warnings = [*self._about.warnings, *says]
        usage = TokenUsage.of(summary["prompt_tokens"], summary["cached_tokens"], summary["output_tokens"])
        return Ended(self._about.model_copy(update={**read, "warnings": warnings}), usage, says="\n".join(says))

    def line(self, answer: FoundAnswer) -> str:
        """Return the document and its answer, or the answer of all documents, concatenated, with its warnings."""
        if not answer.found:
            return ""
        said = f"{answer.answer}{doubt(answer.review, answer.warnings)}"
        return said if self._request.archive else f"{answer.document}: {said}"


Reads = TextReading | CorpusReading
"""One request's reading."""


def with_options(spec: ReadingSpec, **options: float | int | None) -> ReadingSpec:
    """Return a spec with other keys of the reading configuration; None keeps one as it is."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(spec, config=spec.config.model_copy(update=given)) if given else spec


TEXT_MODEL = "memagent"
CORPUS, ARCHIVE = "corpus:", "archive:"
"""What the names of models that read a corpus begin with: each document by itself, or all of them concatenated."""
_RUNS = 4
"""Corpora that are asked at the same time; other questions to corpora wait for their turn."""


class HeldReader:
    """A policy, its engine in this process, and the store that it answers from."""

    def __init__(self, config: Config, split: Split | None = None) -> None:
        """Resolve the reader; nothing is loaded. A version that is promoted later is read by the next server.

        Raises ConfigError: model, template and engine do not fit together.
        """
        self.config, self.store = config, Store(config.store)
        self.spec = ReaderSpec(config)
        self._split = split
        self._engine = LoadedEngine(self.spec, config.pool.inflight, local=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.engine_gone = asyncio.Event()
        """Set once the engine has died for good: whoever serves should end, and be started again."""
        self._runs = ThreadPoolExecutor(_RUNS, thread_name_prefix="memagent run")

    @property
    def not_found(self) -> str:
        """What is said where the text does not say."""
        return self.spec.template.not_found

    async def start(self) -> None:
        """Load the model, in the running event loop, to which the engine then belongs."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it would say on every start what it does without
        self._loop = asyncio.get_running_loop()
        await self._engine.start()

    async def stop(self) -> None:
        """Free the engine. Readings have ended or were cancelled."""
        await asyncio.to_thread(self._runs.shutdown)
        await self._engine.stop()

    def models(self) -> list[str]:
        """Return the names of models: the text of a request, and the corpora of the store."""
        names = corpora(self.store)
        return [TEXT_MODEL, *(f"{kind}{name}" for name in names for kind in (CORPUS, ARCHIVE))]

    async def reading(self, request: ChatRequest) -> Reads:
        """Return what a request has read.

        Raises:
            ApiError: there is no such model, no document or no question.
            UsageError: the question does not fit the context window.
        """
        model = request.model
        if model == TEXT_MODEL:
            return await self._text(request)
        if model.startswith((CORPUS, ARCHIVE)) and model in await asyncio.to_thread(self.models):
            return self.ask(
                model.partition(":")[2],
                question_of(request),
                documents=request.documents,
                archive=model.startswith(ARCHIVE),
            )
        models = await asyncio.to_thread(self.models)
        near = get_close_matches(model, models, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(models[:20])}"
        raise ApiError(404, f"there is no model {model!r}: {advice}", "model_not_found", "model")

    def ask(
        self, corpus: str, question: str, *, documents: tuple[str, ...] = (), archive: bool = False
    ) -> CorpusReading:
        """Return the reading of a corpus for a question, which begins when it is iterated over.

        Raises UsageError: the question is empty or too long.
        """
        assert self._loop is not None, "started"
        asked = make_question(question)
        if documents:
            asked = type(asked)(asked.question_id, asked.text, documents)
        self._check(question)
        engine = LocalEngine(self.spec, self._engine, self._loop)
        request = AskRequest(corpus, [asked], self.config, archive=archive, engine=engine)
        return CorpusReading(Corpus(self.store, corpus), request, self._runs.submit, self._about(asked.text))

    async def run(self, request: ReadingRequest, spec: ReadingSpec, record: Callable[[Turn], None]) -> ReadingResult:
        """Read on the engine, beside all other readings."""
        return await self.spec.method(request, spec, self._engine.new_client().generate, record).run()

    async def _text(self, request: ChatRequest) -> TextReading:
        given = text_and_question(request, self._split)
        for name, text in (("document", given.text), ("question", given.question)):
            if surrogate := half(text):
                raise UsageError(f"the {name} holds {surrogate}, an unpaired surrogate")
        self._check(given.question)
        most_tokens = self.spec.reading.answer_tokens
        spec = with_options(
            self.spec.scheme,
            answer_tokens=min(request.max_completion_tokens or request.max_tokens or most_tokens, most_tokens),
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
        )
        content_hash, config = text_hash(given.text), spec.config
        cut_up = partial(segments, content_hash, given.text, spec.prompts.tokenizer, boundary=config.boundary)
        cut = await asyncio.to_thread(lambda: list(cut_up(segment_tokens=config.segment_tokens)))
        about = self._about(given.question).model_copy(update={"readings": 1, "messages_not_read": given.not_read})
        name = reading_id([content_hash], given.question, about.policy_id, config.hash(spec.prompts.template.hash))
        read = ReadingRequest(name, given.question, ListStream(cut))
        return TextReading(read, spec, self.run, about, most_tokens)

    def _about(self, question: str) -> About:
        scope = self.spec.scheme.scope
        outside = [scope.mark] if scope is not None and scope.kind(question) is None else []
        return About(question=question, policy_id=self.spec.policy.policy_id, warnings=outside)

    def _check(self, question: str) -> None:
        if window := self.spec.max_model_len:
            self.spec.scheme.check_window(self.spec.tokenizer.encode(question), window)
