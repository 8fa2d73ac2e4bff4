"""Generate questions from segments by the model: a job over engines."""

import asyncio
import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TypedDict

from infra.cluster.board import Attempt, Board
from infra.cluster.jobs import EngineWork, job_board, run_job
from infra.cluster.loaded_engine import LoadedEngine
from infra.readers import ReaderSpec
from infra.store.location import Store
from infra.store.schemas import SegmentedRow, SegmentRange
from infra.store.segments import StoredStream, segment_range
from memagent.config import Config
from memagent.errors import ConfigError, EngineDied, EngineError, ItemError
from memagent.quality.curation import Qa
from memagent.quality.question_writer import Questioner, WrittenQuestion, write
from memagent.reading.folding import locate
from memagent.records import Progress, TextSpan, stable_hash

_BLOCK = 64


class ChosenSegment(TypedDict):
    """A segment that a question is written from, as a worker is given it."""

    place: SegmentRange
    """Where the segments of its document stand."""
    index: int
    seed: int


def choose(
    places: Mapping[str, SegmentedRow], count: int, seed: str, known: Collection[tuple[str, int]] = ()
) -> list[ChosenSegment]:
    """Draw segments to write questions from, evenly over all documents' segments; fewer where there are not so many.

    `known` are (content hash, segment index) that have a question already.
    """
    every = ((name, index) for name, row in places.items() for index in range(row["segments"]))
    free = (segment for segment in every if segment not in known)
    drawn = heapq.nsmallest(count, free, key=lambda segment: stable_hash(seed, *segment))
    return [
        {"place": segment_range(places[name]), "index": index, "seed": int(stable_hash(seed, name, index)[:8], 16)}
        for name, index in drawn
    ]


def generate(
    store: Store, reader: ReaderSpec, config: Config, chosen: list[ChosenSegment], progress: Progress | None = None
) -> tuple[list[Qa], Counter[str]]:
    """Write a question from each chosen segment; return those that passed all filters, and the others by reason.

    Needs a Ray session, unless they are few (`Config.runs_here`).

    Raises:
        ConfigError: a segment does not fit the window beside the wording, or the engine cannot be started.
        EngineDied: an engine died too often.
    """
    if not chosen:
        return [], Counter()
    _check_window(reader)
    blocks: list[Sequence[ChosenSegment]] = [chosen[i : i + _BLOCK] for i in range(0, len(chosen), _BLOCK)]
    rows: list[Qa] = []
    refused: Counter[str] = Counter()
    local = config.runs_here(len(chosen))
    board = job_board(store, local=local)
    work = EngineWork(partial(Writer, store=store, reader=reader, inflight=config.pool.inflight), config.pool, board)
    for result in run_job(work, blocks, store, local=local):
        for written in result:
            if isinstance(written, Qa):
                rows.append(written)
            else:
                refused[written] += 1
        if progress:
            progress({"segments": len(rows) + refused.total(), "segments_total": len(chosen)})
    return rows, refused


class Writer:
    """Writes questions. One instance per engine; every segment is its own coroutine."""

    def __init__(self, board: Board, store: Store, reader: ReaderSpec, inflight: int) -> None:
        """Build what the segments share."""
        self._store, self._policy_id = store, reader.policy.policy_id
        self._questioner = questioner(reader)
        self._engine = LoadedEngine(reader, inflight, local=board.is_local)
        self._inflight = inflight
        self._free: asyncio.Semaphore | None = None
        self._starting: asyncio.Task[None] | None = None

    async def run(self, item: Sequence[ChosenSegment], attempt: Attempt) -> list[Qa | str]:
        """Write a question from each segment of a block, in their order; return it, or why there is none."""
        if self._starting is None:
            self._free = asyncio.Semaphore(self._inflight)
            self._starting = asyncio.create_task(self._engine.start())
        await asyncio.shield(self._starting)
        return await asyncio.gather(*[self._question_from(segment) for segment in item])

    async def stop(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    async def _question_from(self, item: ChosenSegment) -> Qa | str:
        assert self._free is not None
        async with self._free:
            stream = StoredStream(self._store, [item["place"]])
            segments = [segment async for segment in stream.read(item["index"], item["index"] + 1)]
            try:
                result = await write(segments[0].token_ids, self._questioner, self._engine.generate, item["seed"])
            except EngineDied:
                raise
            except (EngineError, ItemError) as error:
                return f"the engine refused it ({type(error).__name__})"
        if not isinstance(result, WrittenQuestion):
            return result.reason
        segment, name = segments[0], item["place"]["content_hash"]
        first, last = locate(result.answer, segment.text) or (0, len(segment.text))
        span = TextSpan(name, segment.char_start + first, segment.char_start + last)
        return Qa(
            result.question,
            (result.answer,),
            (name,),
            documents=(),
            source="generated",
            policy_id=self._policy_id,
            evidence=((name, item["index"]),),
            spans=(span,),
        )


def questioner(reader: ReaderSpec) -> Questioner:
    """Return the wording for a reader's model."""
    return Questioner(reader.scheme.prompts, reader.reading.answer_tokens)


def _check_window(reader: ReaderSpec) -> None:
    need = questioner(reader).overhead + reader.reading.segment_tokens
    if reader.max_model_len and need > reader.max_model_len:
        raise ConfigError(
            f"to write a question takes {need} tokens (a segment of {reader.reading.segment_tokens}, its wording and a "
            f"response) and the window has {reader.max_model_len}. Lower reading.segment_tokens or "
            "reading.answer_tokens."
        )
