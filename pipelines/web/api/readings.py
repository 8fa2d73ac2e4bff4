"""What a request has read: a text of its own, or a corpus of the store. Both give answers as they are found."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, replace

import pyarrow.dataset as ds
from pydantic import BaseModel

from infra.store.corpora import check_known
from infra.store.delta import Table
from infra.store.documents import PageNumbers
from infra.store.location import Corpus
from infra.store.rows import AnswerRow
from infra.store.runs import RunSummary
from memagent.errors import MemagentError, RequestError, UsageError
from memagent.reading.conversations import ListStream, ReadingRequest, ReadingSpec
from memagent.records import Evidence, ReadingResult, Segment, Turn
from pipelines.answers import Answer, Answers
from pipelines.archive import AsyncAnswers
from pipelines.ask import AskRequest
from pipelines.target import Target
from pipelines.views.passages import DocumentTexts, in_context, place_of
from pipelines.views.visible_answers import documents_with
from pipelines.web.api.protocol import About, EvidencePlace, FoundAnswer, ReadingProgress, TokenUsage


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
    passages: list[CitedPassage]


def place(evidence: Evidence, document: str) -> EvidencePlace:
    """Return a piece of evidence as responses have it."""
    is_quoted = bool(evidence.quote)
    return EvidencePlace(
        document=document,
        quote=evidence.quote,
        quote_start=evidence.quote_start if is_quoted else None,
        quote_end=evidence.quote_end if is_quoted else None,
        verbatim=evidence.verbatim,
        segment=evidence.segment_index,
        segment_start=evidence.char_start,
        segment_end=evidence.char_end,
        page=evidence.page,
    )


def document_names(corpus: Corpus, hashes: Collection[str]) -> dict[str, str]:
    """Return the id of a document of a corpus that has a text now, by the text's hash."""
    return {row["content_hash"]: row["doc_id"] for row in documents_with(corpus, hashes)}


def answer_evidence(corpus: Corpus, reading_id: str, around: int) -> AnswerEvidence:
    """Return the passages that an answer came from, with `around` characters before and after each place.

    Raises UsageError: there is no such corpus or answer.
    """
    check_known(corpus)
    table = Table(corpus.store, "answers").read(corpus.name, filters=ds.field("reading_id") == reading_id)
    rows: list[AnswerRow] = table.to_pylist()
    if not rows:
        raise UsageError(
            f"corpus {corpus.name!r} has no answer of reading {reading_id!r}: take reading_id of an answer"
        )
    row, texts, passages = rows[0], DocumentTexts(corpus.store), []
    evidence = PageNumbers.cited_by(corpus, rows).cite(row["evidence"])
    names = document_names(corpus, {piece["content_hash"] for piece in evidence})
    for piece in evidence:
        if (text := texts.get(corpus.name, piece["content_hash"])) is None:  # it was forgotten
            continue
        before, said, after = in_context(text, place_of(piece), around)
        shown = place(Evidence(**piece), names.get(piece["content_hash"], ""))
        passages.append(CitedPassage(place=shown, before=before, text=said, after=after))
    return AnswerEvidence(question=row["question"], answer=row["answer"], passages=passages)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a reading ended."""

    about: About
    usage: TokenUsage
    finish_reason: str = "stop"


class TextReading:
    """The reading of a text that came with the request. Nothing of it is kept.

    It is iterated over once, and so is a `CorpusReading`; to end it early, cancel the task that does so.
    """

    def __init__(
        self, request: ReadingRequest, spec: ReadingSpec, run: Callable[..., object], policy_id: str, not_read: int
    ) -> None:
        """Prepare a reading; `run` reads, as `HeldReader.run` does, and `not_read` messages of the request are not
        read.
        """
        self._request, self._spec, self._run = request, spec, run
        self._about = About(question=request.question, readings=1, policy_id=policy_id, messages_not_read=not_read)
        self._read = 0
        self._finish = "stop"
        self._result: ReadingResult | None = None

    @property
    def progress(self) -> ReadingProgress:
        """Segments read so far."""
        return ReadingProgress(segments_read=self._read, segments=len(self._request.stream))

    async def answers(self) -> AsyncGenerator[FoundAnswer]:
        """Read, and yield the answer."""
        result = await self._run(self._request, self._spec, self._record)  # type: ignore[misc]
        self._result = result
        yield FoundAnswer(
            document="",
            answer=result.answer,
            found=result.found,
            evidence=[place(one, "") for one in result.evidence],
            reading_id=result.reading_id,
            confidence=result.confidence_level,
            warnings=list(result.warnings),
        )

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
        """Return the answer alone."""
        return answer.answer

    def _record(self, turn: Turn) -> None:
        self._read += turn.kind == "update"
        if turn.kind == "answer" and turn.finish_reason == "length":
            self._finish = "length"


def text_reading_request(name: str, question: str, segments: list[Segment]) -> ReadingRequest:
    """Return the request for a text that is in memory."""
    return ReadingRequest(name, question, ListStream(segments))


class CorpusReading:
    """A question to a corpus: a run like ``memagent ask``, kept in the store, on the server's engine."""

    def __init__(self, corpus: Corpus, request: AskRequest, begin: Callable[..., object], policy_id: str) -> None:
        """Prepare a run; `begin` has it run in a thread. The request has one question, and a running engine.

        Raises UsageError: the question does not fit the window.
        """
        self._corpus, self._request, self._begin, self._policy_id = corpus, request, begin, policy_id
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
                yield await asyncio.to_thread(self._found, answer) if self._request.archive else self._found(answer)
            await running
        finally:
            run.stop()
        self._summary = run.summary

    def ended(self) -> Ended:
        """Return the run's counts."""
        summary = self._summary
        assert summary is not None, "answers() has ended"
        counts = summary["readings"]
        if counts["total"] and counts["failed"] == counts["total"]:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in summary["failures_by_reason"].items())
            raise MemagentError(f"all readings of run {summary['run_id']} failed: {reasons}")
        if not counts["total"]:
            raise RequestError("no document of the corpus is one of `documents`")
        about = About(
            question=self._request.questions[0].text,
            readings=counts["total"],
            found=counts["found"],
            failed=counts["failed"],
            segments=summary["segments"],
            conversations=summary["conversations"],
            run_id=summary["run_id"],
            policy_id=self._policy_id,
        )
        return Ended(about, TokenUsage.of(summary["prompt_tokens"], summary["cached_tokens"], summary["output_tokens"]))

    def line(self, answer: FoundAnswer) -> str:
        """Return the document and its answer, or the answer of all documents, concatenated."""
        if not answer.found:
            return ""
        return answer.answer if self._request.archive else f"{answer.document}: {answer.answer}"

    def _found(self, answer: Answer) -> FoundAnswer:
        whole = self._request.archive
        names = document_names(self._corpus, {one.content_hash for one in answer.evidence}) if whole else {}
        return FoundAnswer(
            document=answer.document,
            answer=answer.answer,
            found=answer.found,
            evidence=[place(one, names.get(one.content_hash, answer.document)) for one in answer.evidence],
            reading_id=answer.reading_id,
            confidence=answer.confidence_level,
            warnings=list(answer.warnings),
        )


Reads = TextReading | CorpusReading
"""One request's reading."""


def with_options(spec: ReadingSpec, **options: float | int | None) -> ReadingSpec:
    """Return a spec with other keys of the reading configuration; None keeps one as it is."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(spec, config=spec.config.model_copy(update=given)) if given else spec
