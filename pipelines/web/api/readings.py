"""What a request has read: a text of its own, or a corpus of the store. Both give answers as they are found."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from infra.store import Corpus
from infra.tables.runs import RunSummary
from memagent.conversations import ListStream, ReadingRequest, ReadingSpec
from memagent.errors import MemagentError, RequestError
from memagent.records import ReadingResult, Segment, Turn
from pipelines.answers import Answer, Answers
from pipelines.archive import AsyncAnswers
from pipelines.ask import AskRequest
from pipelines.target import Target
from pipelines.web.api.places import document_names, place
from pipelines.web.api.protocol import About, FoundAnswer, ReadingProgress, TokenUsage


@dataclass(frozen=True, slots=True)
class Ended:
    """How a reading ended."""

    about: About
    usage: TokenUsage
    finish_reason: str = "stop"


class Reads(Protocol):
    """One request's reading. It is iterated over once; to end it early, cancel the task that does so."""

    @property
    def progress(self) -> ReadingProgress:
        """How far it is now."""
        ...

    def answers(self) -> AsyncGenerator[FoundAnswer]:
        """Yield the answers, those that are not found among them."""
        ...

    def ended(self) -> Ended:
        """Return the counts, after the last answer."""
        ...

    def line(self, answer: FoundAnswer) -> str:
        """Return an answer as the response says it; empty: it is not said."""
        ...


class TextReading:
    """The reading of a text that came with the request. Nothing of it is kept."""

    def __init__(
        self, request: ReadingRequest, spec: ReadingSpec, run: Callable[..., object], policy_id: str, not_read: int
    ) -> None:
        """Prepare a reading.

        Args:
            request: the segments and the question.
            spec: how to read.
            run: reads, as `HeldReader.run` does.
            policy_id: of the reader.
            not_read: messages of the request that are not read.
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

        Raises:
            UsageError: the question does not fit the window.
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
        )


def with_options(spec: ReadingSpec, **options: float | int | None) -> ReadingSpec:
    """Return a spec with other keys of the reading configuration; None keeps one as it is."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(spec, config=spec.config.model_copy(update=given)) if given else spec
