"""The reading, written once (MemAgent, arXiv 2507.02259, section 3).

    memory = no memory
    for each segment:  memory = generate(update prompt(question, memory, segment))
    answer = generate(answer prompt(question, memory))

Bulk answering, RL rollouts, evaluation and tests all run this coroutine over an injected `generate`. It works on token
ids end to end.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from memagent.errors import UsageError
from memagent.reading.conversations import (
    Conversations,
    Generate,
    ListStream,
    ParallelSpans,
    ReadingRequest,
    ReadingSpec,
    Record,
    gather_all,
)
from memagent.reading.evidence import gather_evidence
from memagent.reading.segmenting import segments
from memagent.records import ReadingResult, half, reading_id, text_hash


async def read(
    text: str, question: str, generate: Generate, spec: ReadingSpec, record: Record | None = None
) -> ReadingResult:
    """Read one text for one question, in this process: no store and no Ray, and nothing is kept.

    Readings run side by side on one engine with `asyncio.gather`.

    Args:
        text: of any length.
        question: what is asked of it.
        generate: continues token ids: the method of a started `Engine`, or a coroutine function of your own.
        spec: how to read, for example `ReadingSpec.load()`.
        record: takes each `Turn` as it is done: the memory after every segment.

    Raises:
        UsageError: the question is empty, or it or the text holds half of a surrogate pair, which no tokenizer takes.
        MemagentError: what `generate` raises.
    """
    if not question.strip():
        raise UsageError("the question is empty")
    for name, given in (("text", text), ("question", question)):
        if surrogate := half(given):
            raise UsageError(f"the {name} holds {surrogate}, an unpaired surrogate: decode the text with its encoding")
    content_hash, config = text_hash(text), spec.config
    cut = list(
        segments(
            content_hash, text, spec.prompts.tokenizer, segment_tokens=config.segment_tokens, boundary=config.boundary
        )
    )
    name = reading_id([content_hash], question, "", config.hash(spec.prompts.template.hash))
    request = ReadingRequest(name, question, ListStream(cut))
    return await Reading(request, spec, generate, record or (lambda turn: None)).run()


class Reading:
    """One reading of one stream for one question. What the turn log already holds of it is not repeated."""

    def __init__(self, request: ReadingRequest, spec: ReadingSpec, generate: Generate, record: Record) -> None:
        self._began = time.monotonic()
        self._request = request
        self._no_memory = spec.prompts.no_memory
        segments = len(request.stream)
        self._spans = ParallelSpans(segments, spec.config.parallel_spans_of(segments), request.past)
        self._conversations = Conversations(request, spec, generate, record=record, spans=self._spans)

    @property
    def answered(self) -> bool:
        """Whether the turn log holds the answer already."""
        return self._spans.logged_answer is not None

    async def run(self) -> ReadingResult:
        """Read to the end and answer. Raises what `generate` raises."""
        if self.answered:
            return await self.finish([])
        memories = await self.read_spans()
        return await self.finish(memories[0] if len(memories) == 1 else await self.merge(memories))

    async def read_spans(self, at_once: int | None = None) -> list[list[int]]:
        """Read all spans side by side, or `at_once` at most, and return their last memories."""
        limit = asyncio.Semaphore(at_once) if at_once else nullcontext()
        return await gather_all([self._read_span(span, limit) for span in range(self._spans.count)])

    async def _read_span(self, span: int, limit: AbstractAsyncContextManager[None]) -> list[int]:
        async with limit:
            part = self._spans.ranges[span]
            memory, step = self._spans.resume(span, self._no_memory)
            if step < len(part):
                async for segment in self._request.stream.read(part.start + step, part.stop):
                    update = await self._conversations.update((span, step), memory, segment)
                    memory, step = update.memory_ids, step + 1
                    if update.done:
                        break
            return memory

    async def merge(self, memories: Sequence[list[int]]) -> list[int]:
        """Read memories as a short stream of their own; return the last memory."""
        span = self._spans.count
        memory, first = self._spans.resume(span, self._no_memory)
        for step in range(first, len(memories)):
            memory = (await self._conversations.merge((span, step), memory, memories[step])).memory_ids
        return memory

    async def finish(self, memory: list[int]) -> ReadingResult:
        """Answer from the last memory, unless the turn log holds the answer, and find its evidence."""
        talk = self._conversations
        answer = talk.logged_answer() or await talk.answer(self._spans.answer_position, memory)
        evidence = await gather_evidence(answer.answer, talk.notes, self._request.stream) if answer.found else []
        return talk.result(answer, evidence, time.monotonic() - self._began)
