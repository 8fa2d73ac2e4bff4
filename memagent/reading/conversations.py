"""The conversations of a reading: one prompt, one count and one logged turn each."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from memagent.config import ReadingConfig, reading_defaults, validate
from memagent.errors import ConfigError, EmptyResponse
from memagent.nano import VERSIONS, bundled
from memagent.reading.chat import for_model
from memagent.reading.engine import CUT, LOST, Completion, Sampling, lowest, mean_probability, repeats
from memagent.reading.evidence import Note, contradicted
from memagent.reading.prompts import Prompts, Template, Update, load_template
from memagent.reading.scope import ReaderScope, check_answer, load_scope
from memagent.reading.tokens import Tokenizer, load_tokenizer
from memagent.records import Evidence, ReadingResult, Segment, Turn, TurnKind

T = TypeVar("T")
Position = tuple[int, int]
"""Span and step."""


def span_ranges(segments: int, spans: int) -> list[range]:
    """Cut `segments` positions into at most `spans` spans of nearly equal length, in order.

    There is always at least one span, and no span is empty unless the stream is.
    """
    count = max(1, min(spans, segments))
    size, longer = divmod(segments, count)
    result = []
    start = 0
    for span in range(count):
        stop = start + size + (span < longer)
        result.append(range(start, stop))
        start = stop
    return result


class ParallelSpans:
    """The spans of one reading, with their turns in the log.

    `past` are all turns that changed the memory, and the last turn of every span.
    """

    def __init__(self, segments: int, spans: int, past: Iterable[Turn]) -> None:
        self.ranges = span_ranges(segments, spans)
        self.count = len(self.ranges)
        self.past = sorted(past, key=lambda turn: (turn.span, turn.step))
        self._segments = segments

    def resume(self, span: int, no_memory: list[int]) -> tuple[list[int], int]:
        """Return the memory from which a span resumes, and its next step."""
        logged = [turn for turn in self.past if turn.span == span and turn.kind != "answer"]
        return (logged[-1].memory_ids, logged[-1].step + 1) if logged else (no_memory, 0)

    @property
    def logged_answer(self) -> Turn | None:
        """The answer's turn in the log."""
        answers = [turn for turn in self.past if turn.kind == "answer"]
        return answers[-1] if answers else None

    @property
    def answer_position(self) -> Position:
        """Position of the answer's turn: after the last segment, or after the last merge."""
        return (0, self._segments) if self.count == 1 else (self.count, self.count)

    def index(self, position: Position) -> int:
        """Return a turn's place in the stream."""
        span, step = position
        return (self.ranges[span].start if span < self.count else 0) + step

    def remaining(self, position: Position) -> int:
        """Return the number of segments that a span has yet to read, including this one."""
        span, step = position
        return (len(self.ranges[span]) if span < self.count else self.count) - step


async def gather_all(parts: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; if one fails, cancel the others and wait for them before its error is raised."""
    if len(parts) == 1:
        return [await parts[0]]
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


Generate = Callable[[list[int], Sampling, int], Awaitable[Completion]]
"""Continues token ids; the last argument is a priority, lower first (see `memagent.reading.engine.Engine.generate`)."""
Record = Callable[[Turn], None]
"""Receives each turn when it is done."""


class Stream(Protocol):
    """The segments of a reading, in order, read lazily."""

    def __len__(self) -> int:
        """Return the number of segments."""

    def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        """Yield segments `start` to `stop` (exclusive), loading few of them at a time."""


class ListStream:
    """A stream whose segments are in memory."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def __len__(self) -> int:
        return len(self._segments)

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        """Yield segments `start` to `stop` (exclusive)."""
        for segment in self._segments[start:stop]:
            yield segment


@dataclass(frozen=True, slots=True)
class ReadingRequest:
    """What to read, and how far it was read before."""

    reading_id: str
    question: str
    stream: Stream
    past: Sequence[Turn] = ()
    """Its turns in the log: all that changed the memory, and the last of every span."""


@dataclass(frozen=True, slots=True)
class ReadingSpec:
    """How to read: the compiled prompts and the reading configuration."""

    prompts: Prompts
    config: ReadingConfig
    logprobs: bool = False
    """Whether turns keep the log-probability of every token."""
    scope: ReaderScope | None = None
    """What the reader declares that it was trained to answer; None: nothing."""

    @classmethod
    def load(cls, model: str = "nano", **options: Any) -> "ReadingSpec":
        """Load how a model reads: its tokenizer, its ``reading.json`` and the prompt template named there.

        Args:
            model: ``nano`` or ``nano@sft`` (bundled), a model folder, or a Hugging Face name, of which the tokenizer
                is downloaded.
            options: keys of `ReadingConfig`; they override the model's own.

        Raises:
            ConfigError: there is no such model, template or option.
        """
        name, _, version = model.partition("@")
        folder = bundled(version or VERSIONS[0]) if name == "nano" else Path(model)
        config = validate(ReadingConfig, {**reading_defaults(folder), **options}, "reading.")
        wording = for_model(load_template(config.template), str(folder), config.chat_options, config.system_prompt)
        spec = cls.compile(config, wording, load_tokenizer(str(folder)))
        return replace(spec, scope=load_scope(folder))

    @classmethod
    def compile(cls, config: ReadingConfig, template: Template, tokenizer: Tokenizer) -> "ReadingSpec":
        """Compile a template for a tokenizer and a reading configuration.

        Raises:
            ConfigError: the template and the model, or the template and the configuration, do not fit together.
        """
        return cls(Prompts(template, tokenizer, config.layout, gate=config.gate, early_exit=config.early_exit), config)

    def sampling(self, max_tokens: int) -> Sampling:
        """Return the sampling parameters of one conversation."""
        config = self.config
        return Sampling(
            max_tokens=max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed if config.temperature > 0 else None,
            stop_ids=self.prompts.stop_ids,
            repetitions=config.repetitions,
            logprobs=True,
        )

    def check_window(self, question: list[int], max_model_len: int) -> None:
        """Refuse a question that does not fit the context window beside a segment and the memory.

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


class ReadAnswer(NamedTuple):
    """What the last conversation came to."""

    answer: str
    found: bool
    """Whether the documents say it."""
    confidence: float | None
    """See `ReadingResult`."""
    memory_empty: bool


class Conversations:
    """Runs the conversations of one reading. `notes` are the changes of the memory so far, the source of evidence.

    A response without text leaves the memory as it was. Where one did, the reading does not end with "not found".
    """

    def __init__(
        self, request: ReadingRequest, spec: ReadingSpec, generate: Generate, record: Record, spans: ParallelSpans
    ) -> None:
        self._reading_id = request.reading_id
        self._spec = spec
        self._prompts = spec.prompts
        self._generate = generate
        self._record = record
        self._spans = spans
        self._asked = request.question
        self._question = spec.prompts.tokenizer.encode(request.question)
        self._usage = ReadingResult(request.reading_id, "", False)
        self._confidences = {turn.span: turn.confidence for turn in spans.past}
        self._lost = "a response was empty" if any(turn.finish_reason == "empty" for turn in spans.past) else ""
        """Why a response held no text; empty: each held some."""
        self.notes = [
            Note(spans.index((turn.span, turn.step)), turn.memory)
            for turn in spans.past
            if turn.changed and turn.kind in ("update", "carried")
        ]

    async def update(self, position: Position, memory: list[int], segment: Segment) -> Update:
        """Overwrite the memory after a segment."""
        return await self._overwrite(position, "update", memory, ids=segment.token_ids, segment=segment)

    async def merge(self, position: Position, memory: list[int], text: list[int]) -> Update:
        """Overwrite the memory after reading another span's memory like a segment."""
        return await self._overwrite(position, "merge", memory, ids=text, segment=None)

    async def answer(self, position: Position, memory: list[int]) -> ReadAnswer:
        """Answer from the last memory.

        Raises:
            EmptyResponse: there is no answer, and responses held no text.
        """
        prompt = self._prompts.answer(self._question, memory)
        completion, seconds = await self._ask(prompt, self._spec.sampling(self._spec.config.answer_tokens), 0)
        turn = replace(
            self._turn(position, "answer", completion, seconds=seconds, segment=None),
            memory_ids=memory,
            memory=self._prompts.memory_text(memory),
            confidence=lowest(self._confidences.values()),
        )
        answer, empty = self._answer(turn), turn.finish_reason == "empty"
        failed = empty or (bool(self._lost) and not answer.found)
        self._record(replace(turn, finish_reason="empty") if failed else turn)
        if failed:
            raise EmptyResponse(self._lost if empty else f"not found, but memory updates were lost: {self._lost}")
        return answer

    def logged_answer(self) -> ReadAnswer | None:
        """Return the answer that the turn log holds."""
        turn = self._spans.logged_answer
        return None if turn is None else self._answer(turn)

    def _answer(self, turn: Turn) -> ReadAnswer:
        text, found = self._prompts.read_answer(turn.response_ids)
        return ReadAnswer(text, found, turn.confidence, turn.is_empty(self._prompts.no_memory))

    def result(self, answer: ReadAnswer, evidence: list[Evidence], seconds: float) -> ReadingResult:
        """Return the reading's result with its counts, how far to trust it, and what speaks against it."""
        earlier = contradicted(answer.answer, self.notes) if answer.found else ""
        checked = check_answer(self._spec.scope, self._asked, answer.answer, evidence, answer.confidence, earlier)
        if not checked.taken:
            answer, evidence = answer._replace(answer="", found=False), []
        return replace(
            self._usage,
            **answer._asdict(),
            evidence=evidence,
            seconds=seconds,
            confidence_level=checked.level,
            warnings=checked.warnings,
        )

    async def _overwrite(
        self, position: Position, kind: TurnKind, memory: list[int], ids: list[int], segment: Segment | None
    ) -> Update:
        prompt = self._prompts.update(self._question, memory, ids)
        # Longest first: the reading with the most segments left decides when the run ends.
        priority = -self._spans.remaining(position)
        completion, seconds = await self._ask(prompt, self._spec.sampling(self._spec.config.memory_tokens), priority)
        if completion.finish_reason in LOST:
            update = Update(memory, changed=False, done=False)
        else:
            update = self._prompts.read_update(completion.ids, memory)
        text = self._prompts.memory_text(update.memory_ids)
        if update.changed and segment is not None:
            self.notes.append(Note(self._spans.index(position), text))
        turn = self._turn(position, kind, completion, seconds=seconds, segment=segment)
        self._record(replace(turn, memory_ids=update.memory_ids, memory=text, changed=update.changed))
        return update

    async def _ask(self, prompt: list[int], sampling: Sampling, priority: int) -> tuple[Completion, float]:
        began = time.monotonic()
        completion = await self._generate(prompt, sampling, priority)
        if completion.finish_reason == "length" and repeats(completion.ids, sampling.repetitions):
            completion = replace(completion, finish_reason="repetition")  # not every engine looks for it
        elif not self._prompts.body(completion.ids, cut=completion.finish_reason == "length"):
            self._lost = completion.why_empty
            completion = replace(completion, finish_reason="empty")
        return completion, time.monotonic() - began

    def _turn(
        self, position: Position, kind: TurnKind, completion: Completion, seconds: float, segment: Segment | None
    ) -> Turn:
        """Count a conversation and return its turn, without the memory after it."""
        usage = self._usage
        self._usage = replace(
            usage,
            segments=usage.segments + (segment is not None),
            memories_cut=usage.memories_cut + (segment is not None and completion.finish_reason in CUT),
            conversations=usage.conversations + 1,
            prompt_tokens=usage.prompt_tokens + completion.prompt_tokens,
            cached_tokens=usage.cached_tokens + completion.cached_tokens,
            output_tokens=usage.output_tokens + len(completion.ids),
        )
        span, step = position
        self._confidences[span] = lowest([self._confidences.get(span, 1.0), mean_probability(completion.logprobs)])
        return Turn(
            reading_id=self._reading_id,
            span=span,
            step=step,
            kind=kind,
            content_hash=segment.content_hash if segment else "",
            segment_index=segment.index if segment else -1,
            response_ids=completion.ids,
            response=self._prompts.tokenizer.decode(completion.ids, special=True),
            memory_ids=[],
            memory="",
            changed=False,
            prompt_tokens=completion.prompt_tokens,
            cached_tokens=completion.cached_tokens,
            finish_reason=completion.finish_reason,
            seconds=seconds,
            logprobs=completion.logprobs if self._spec.logprobs else None,
            confidence=self._confidences[span],
            weight_version=completion.weight_version,
        )


TextGenerate = Callable[[str, int], Awaitable[str]]
"""Continues a prompt; the second argument is the most tokens of the response."""


def from_text(generate: TextGenerate, spec: ReadingSpec) -> Generate:
    """Make a `generate` for `memagent.read` of a coroutine function that takes a prompt and returns a text.

    The spec's tokenizer counts: it need not be the model's own. The memory is decoded and encoded again on the way,
    which engines that speak token ids avoid; for bulk work and training use one of these.

    Args:
        generate: is given the prompt as text and the most tokens of the response, which may be ignored: what is longer
            is cut off.
        spec: of a template without control tokens, as in ``ReadingSpec.load(template="plain")``.
    """
    tokenizer = spec.prompts.tokenizer

    async def continue_ids(ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        said = tokenizer.encode(await generate(tokenizer.as_prompt(ids), sampling.max_tokens))
        cut = len(said) > sampling.max_tokens
        return Completion(said[: sampling.max_tokens], "length" if cut else "stop", prompt_tokens=len(ids))

    return continue_ids
