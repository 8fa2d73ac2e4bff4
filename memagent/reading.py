"""The reading, written once (MemAgent, arXiv 2507.02259, section 3).

    memory = no memory
    for each segment:  memory = generate(update prompt(question, memory, segment))
    answer = generate(answer prompt(question, memory))

Bulk answering, RL rollouts, evaluation and tests all run this coroutine over an injected `generate`.
It works on token ids end to end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from memagent.config import ReadingConfig
from memagent.engine import Completion, Sampling
from memagent.errors import ConfigError
from memagent.evidence import Note, gather_evidence
from memagent.lanes import spans
from memagent.prompts import Prompts, Update
from memagent.records import Outcome, Segment, Turn, TurnKind
from memagent.repetition import repeats

Generate = Callable[[list[int], Sampling, int], Awaitable[Completion]]
Record = Callable[[Turn], None]


class Stream(Protocol):
    """The segments of a reading, in order, read lazily."""

    def __len__(self) -> int:
        """Return the number of segments."""

    def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        """Yield segments `start` to `stop` (exclusive), loading few of them at a time."""


class HeldStream:
    """A stream whose segments are in memory."""

    def __init__(self, parts: Sequence[Segment]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        """Yield segments `start` to `stop` (exclusive)."""
        for part in self._parts[start:stop]:
            yield part


@dataclass(frozen=True, slots=True)
class Scheme:
    """How to read: the compiled prompts and the reading configuration."""

    prompts: Prompts
    config: ReadingConfig
    logprobs: bool = False

    def sampling(self, max_tokens: int) -> Sampling:
        """Return the sampling of one conversation."""
        config = self.config
        return Sampling(
            max_tokens=max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed if config.temperature > 0 else None,
            stop_ids=self.prompts.stop_ids,
            repetitions=config.repetitions,
            logprobs=self.logprobs,
        )

    def check_window(self, question: list[int], max_model_len: int) -> None:
        """Refuse a question that cannot fit the window beside a segment and the memory.

        Raises:
            ConfigError: saying by how much, and what to change.
        """
        config = self.config
        need = self.prompts.overhead(question) + config.segment_tokens + 2 * config.memory_tokens
        if need > max_model_len:
            raise ConfigError(
                f"a turn needs {need} tokens (prompt and question {self.prompts.overhead(question)}, segment "
                f"{config.segment_tokens}, memory before and after {2 * config.memory_tokens}) and the window has "
                f"{max_model_len}. Lower reading.segment_tokens or reading.memory_tokens, or shorten the question."
            )


@dataclass(slots=True)
class _Tally:
    """Counts of one reading, each counted here and nowhere else."""

    segments: int = 0
    conversations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, completion: Completion, *, segment: bool) -> None:
        self.segments += segment
        self.conversations += 1
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.output_tokens += len(completion.ids)


class Reading:
    """One reading of one stream for one question.

    `past` is what the turn log holds of it already: all turns that changed the memory, and the last
    turn of every lane. Nothing that stands there is done again.
    """

    def __init__(
        self,
        reading_id: str,
        question: str,
        stream: Stream,
        scheme: Scheme,
        generate: Generate,
        record: Record,
        past: Iterable[Turn] = (),
    ) -> None:
        self.reading_id = reading_id
        self._stream = stream
        self._scheme = scheme
        self._prompts = scheme.prompts
        self._generate = generate
        self._record = record
        self._question = scheme.prompts.tokenizer.encode(question)
        self._spans = spans(len(stream), scheme.config.lanes)
        self._past = sorted(past, key=lambda turn: (turn.lane, turn.step))
        self._notes = [
            Note(self._position(turn), turn.memory)
            for turn in self._past
            if turn.changed and turn.kind in ("update", "carried")
        ]
        self._tally = _Tally()

    async def run(self) -> Outcome:
        """Read to the end and answer. Raises what `generate` raises."""
        began = time.monotonic()
        answer = self._logged_answer()
        if answer is None:
            memories = await _side_by_side([self._read_lane(lane) for lane in range(len(self._spans))])
            memory = memories[0] if len(memories) == 1 else await self._merge(memories)
            answer = await self._answer(memory)
        text, found = answer
        evidence = await gather_evidence(text, self._notes, self._stream) if found else []
        tally = self._tally
        return Outcome(
            self.reading_id,
            text,
            found,
            evidence,
            segments=tally.segments,
            conversations=tally.conversations,
            prompt_tokens=tally.prompt_tokens,
            cached_tokens=tally.cached_tokens,
            output_tokens=tally.output_tokens,
            seconds=time.monotonic() - began,
        )

    async def _read_lane(self, lane: int) -> list[int]:
        span = self._spans[lane]
        memory, step = self._resume(lane)
        if step >= len(span):
            return memory
        async for segment in self._stream.read(span.start + step, span.stop):
            memory, enough = await self._update(lane, step, "update", memory, segment.token_ids, segment)
            step += 1
            if enough:
                break
        return memory

    async def _merge(self, memories: list[list[int]]) -> list[int]:
        """Read the lanes' memories as a short stream."""
        lane = len(self._spans)
        memory, step = self._resume(lane)
        for said in memories[step:]:
            memory, _ = await self._update(lane, step, "merge", memory, said, None)
            step += 1
        return memory

    async def _update(
        self, lane: int, step: int, kind: TurnKind, memory: list[int], ids: list[int], segment: Segment | None
    ) -> tuple[list[int], bool]:
        prompt = self._prompts.update(self._question, memory, ids)
        # Longer readings first: the one with most segments to go decides when the run ends.
        left = (len(self._spans[lane]) if lane < len(self._spans) else len(self._spans)) - step
        completion, seconds = await self._ask(prompt, self._scheme.config.memory_tokens, -left)
        if completion.finish_reason == "repetition":
            said = Update(memory, changed=False, enough=False)
        else:
            said = self._prompts.read_update(completion.ids, memory)
        text = self._prompts.memory_text(said.memory_ids)
        if said.changed and segment is not None:
            self._notes.append(Note(self._spans[lane].start + step, text))
        self._tally.add(completion, segment=segment is not None)
        self._log(lane, step, kind, completion, said.memory_ids, text, said.changed, seconds, segment)
        return said.memory_ids, said.enough

    async def _answer(self, memory: list[int]) -> tuple[str, bool]:
        prompt = self._prompts.answer(self._question, memory)
        completion, seconds = await self._ask(prompt, self._scheme.config.answer_tokens, 0)
        self._tally.add(completion, segment=False)
        lane, step = self._answer_place()
        text = self._prompts.memory_text(memory)
        self._log(lane, step, "answer", completion, memory, text, False, seconds, None)
        return self._prompts.read_answer(completion.ids)

    async def _ask(self, prompt: list[int], max_tokens: int, priority: int) -> tuple[Completion, float]:
        began = time.monotonic()
        sampling = self._scheme.sampling(max_tokens)
        completion = await self._generate(prompt, sampling, priority)
        if completion.finish_reason == "length" and repeats(completion.ids, sampling.repetitions):
            completion = replace(completion, finish_reason="repetition")  # not every engine looks for it
        return completion, time.monotonic() - began

    def _log(
        self,
        lane: int,
        step: int,
        kind: TurnKind,
        completion: Completion,
        memory_ids: list[int],
        memory: str,
        changed: bool,
        seconds: float,
        segment: Segment | None,
    ) -> None:
        self._record(
            Turn(
                self.reading_id,
                lane,
                step,
                kind,
                segment.content_hash if segment else "",
                segment.index if segment else -1,
                completion.ids,
                self._prompts.tokenizer.decode(completion.ids, special=True),
                memory_ids,
                memory,
                changed,
                completion.prompt_tokens,
                completion.cached_tokens,
                completion.finish_reason,
                seconds,
                completion.logprobs,
                completion.weight_version,
            )
        )

    def _answer_place(self) -> tuple[int, int]:
        lanes = len(self._spans)
        return (0, len(self._stream)) if lanes == 1 else (lanes, lanes)

    def _resume(self, lane: int) -> tuple[list[int], int]:
        last = [turn for turn in self._past if turn.lane == lane and turn.kind != "answer"]
        return (last[-1].memory_ids, last[-1].step + 1) if last else (self._prompts.no_memory, 0)

    def _logged_answer(self) -> tuple[str, bool] | None:
        said = [turn for turn in self._past if turn.kind == "answer"]
        return self._prompts.read_answer(said[-1].response_ids) if said else None

    def _position(self, turn: Turn) -> int:
        return (self._spans[turn.lane].start if turn.lane < len(self._spans) else 0) + turn.step


async def _side_by_side(lanes: list[Awaitable[list[int]]]) -> list[list[int]]:
    if len(lanes) == 1:
        return [await lanes[0]]

    async def one(lane: Awaitable[list[int]]) -> list[int]:
        return await lane

    tasks = [asyncio.ensure_future(one(lane)) for lane in lanes]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
