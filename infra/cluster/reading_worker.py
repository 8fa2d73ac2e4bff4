"""The worker of the memory pass: one engine, many readings, every reading its own coroutine.

A job (`infra.cluster.jobs`) gives it blocks of work, many at once. Up to `pool.inflight` readings are in progress; the
oldest go first, and only as many conversations are sent to the engine as keep it full, so readings finish one after
another.
"""

import asyncio
import json
import logging
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict, cast

from infra.cluster.board import Attempt, Board, Counters
from infra.cluster.loaded_engine import LoadedEngine, Stopped
from infra.engines.supervised import SharedLock
from infra.readers import ReaderSpec
from infra.store.data_files import write_data_file
from infra.store.delta import DataFile
from infra.store.location import Corpus, DiskReserve, is_full
from infra.store.plans import Block, WorkItem, read_work
from infra.store.schemas import AnswerRow, now
from infra.store.segments import StoredStream, read_places
from infra.store.turns import TurnWriter, turns
from infra.system.logs import LogLine, WorkerLog, reading_id
from memagent.config import Config
from memagent.errors import ConfigError, EngineDied, EngineError, ItemError, missing_extra
from memagent.reading.conversations import ReadingRequest
from memagent.records import ReadingResult, Turn


class FailedItem(TypedDict):
    """A reading that failed."""

    item: str
    """Document and question."""
    reason: str
    detail: str


class BlockResult(TypedDict):
    """The result of a block of work; its answers are in the store."""

    answered: int
    failures: list[FailedItem]
    files: list[DataFile]
    """Files that hold its answers, possibly among others."""
    worker: str
    log: list[LogLine]
    """What it has logged since its last report."""
    counts: dict[str, int]
    """This worker's totals, which arrive with the answers even if the board has died."""


@dataclass(frozen=True, slots=True)
class PassSpec:
    """What all workers of a memory pass share."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    config: Config
    not_before: datetime = field(default_factory=now)
    """Earliest time of an answer. It is later than all answers that are there: those of a clock that was ahead would
    else hide the new ones."""


_log = logging.getLogger("memagent.pool")
_OF_ITEM = ("question_id", "question", "scope", "content_hash", "carried_from", "carried_segments")
"""What an answer's row has of its work item, beside the result."""
_REPORT_SECONDS = 0.5
_DETAIL = 2_000
"""Characters that are kept of why a reading failed."""
_PART_BYTES = 4 * 2**20
"""A part of the turn log is written when it has so many bytes, before compression."""
_PART_SHARE, _SHORTEST_PART = 400, 0.5
"""Or after this share of the run's time so far: a crash costs as little of it, and a long run writes few parts."""
_ROOM_BYTES = 4 * 2**20
"""Held on the store's disk, for what was read when it is full."""
_BREATH_SECONDS = 0.1
"""Between the end of a part and the next one at least."""
_SUSPECT = 2
"""Workers that ended with a block, after which its readings are done one at a time, with nothing beside them."""
_KILLS = "it crashes the worker even when read alone; check the memory settings of pool and engine"
_TRACES = 10
"""Errors of a class that a worker logs with their trace; all are rows of the quarantine."""
_SHORTEST_PAUSE, _LONGEST_PAUSE, _FILES = 0.5, 5.0, 200
"""Bounds of the seconds between two answer files, and their number over a long run."""


Outcome = AnswerRow | FailedItem | None
"""Of a reading; None: it was left where it is, since the worker is drained."""


@dataclass(slots=True)
class AnswerFile:
    """Answers that are written together."""

    rows: list[AnswerRow] = field(default_factory=list)
    file: DataFile | None = None


class ReadingWorker:
    """Reads. One instance per engine and run."""

    def __init__(self, board: Board, spec: PassSpec, engine: LoadedEngine | None = None) -> None:
        """Build the parts that all readings share.

        Args:
            spec: what is read, and by which policy.
            engine: one that runs already, which others use as well; None: this worker has one of its own.
        """
        self._spec = spec
        self._store = spec.corpus.store
        self._scheme = spec.reader.scheme
        self._writer = TurnWriter(spec.corpus, spec.run_id, spec.reader.policy.policy_id)
        self._engine = engine or LoadedEngine(spec.reader, spec.config.pool.inflight, local=board.is_local)
        self._is_shared = engine is not None
        self._deaths_before = self._engine.deaths
        self._board = board
        self._company = SharedLock()
        self._worker, self._log, self._counts = uuid.uuid4().hex, WorkerLog(spec.config.logging.level), Counters()
        self._inflight = asyncio.Semaphore(spec.config.pool.inflight)
        self._starting: asyncio.Task[None] | None = None
        self._flushing, self._answering = asyncio.Lock(), asyncio.Lock()
        self._started = time.monotonic()
        self._next_part = self._engine_up = 0.0
        self._flush_task: asyncio.Task[None] | None = None
        self._full, self._drained, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._no_room: OSError | None = None
        self._room: DiskReserve | None = None
        self._answers = AnswerFile()
        self._traced: Counter[type[Exception]] = Counter()

    async def run(self, item: Block, attempt: Attempt) -> BlockResult:
        """Read a block of work. A job that was told to stop gets the result of what is read by then.

        Raises:
            ConfigError: the engine cannot be started as configured, or a package is not installed.
            EngineDied: the engine is gone.
            OSError: the store's disk is full; what was read is written.
        """
        if attempt.stopped:
            self.drain()
        if self._drained.is_set() and self._starting is None:
            return self._result([], [], [])
        await self._ready()
        suspect = attempt.number >= _SUSPECT
        async with self._company.held(exclusive=suspect):
            items = await asyncio.to_thread(read_work, self._store, item)
            logged = await self._logged([work["reading_id"] for work in items]) if attempt.number else {}
            of_text = Counter(work["content_hash"] for work in items)
            readings = [self._read_item(work, logged.get(work["reading_id"], []), of_text) for work in items]
            outcomes = await (self._one_by_one(items, readings, attempt) if suspect else _gathered(readings))
            return await self._ended(outcomes)

    async def _ended(self, outcomes: Sequence[Outcome]) -> BlockResult:
        """Write the answers of a block. Raises OSError: the store's disk is full; what was read is written."""
        answers = [cast(AnswerRow, outcome) for outcome in outcomes if outcome is not None and "answer" in outcome]
        failures = [cast(FailedItem, outcome) for outcome in outcomes if outcome is not None and "reason" in outcome]
        try:
            files = await self._durable(answers)
        except OSError as error:
            if not is_full(error):
                raise
            self._run_out(error)
        if self._no_room is not None:
            await self._end_early()
            raise self._no_room  # whoever shows it says what to do
        self._report()
        return self._result(answers, failures, files)

    async def _one_by_one(
        self, items: Sequence[WorkItem], readings: Sequence[Coroutine[Any, Any, Outcome]], attempt: Attempt
    ) -> list[Outcome]:
        """Read with nothing beside each reading, and note it before: the one that ends this process is known then."""
        outcomes: list[Outcome] = []
        for part, (item, reading) in enumerate(zip(items, readings, strict=True)):
            if part in attempt.killers:
                reading.close()
                outcomes.append(self._failed(item, "kills-worker", _KILLS))
                continue
            await self._board.note(attempt.item, part)
            outcomes.append(await reading)
            await self._flush()
            await self._board.note(attempt.item, None)
        return outcomes

    def _result(self, answers: Sequence[AnswerRow], failures: list[FailedItem], files: list[DataFile]) -> BlockResult:
        return {
            "answered": len(answers),
            "failures": failures,
            "files": files,
            "worker": self._worker,
            "counts": self._counts.as_dict(),
            "log": self._log.take(),
        }

    def drain(self) -> None:
        """Begin no conversation any more. Calls of `run` return when the present ones have ended and are logged."""
        self._drained.set()

    async def stop(self) -> None:
        """Write buffered turns and stop the engine, unless others use it."""
        if self._flush_task is not None:
            self._flush_task.cancel()
            await self._flush()
        if not self._is_shared:
            await self._engine.stop()
        self._log.detach()

    async def _ready(self) -> None:
        if self._starting is None:  # nothing is awaited before it is set: many items come at once
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        if not self._counts.engines:
            self._counts.engines, self._engine_up = 1, time.monotonic()
        self._report()

    async def _start(self) -> None:
        if not self._board.is_local:  # else this is the driver's process, which has the lines
            self._log.attach()
        if not self._store.is_s3:
            self._room = await asyncio.to_thread(DiskReserve, self._store.url, _ROOM_BYTES)
        self._flush_task = asyncio.create_task(self._flush_forever())
        await self._engine.start()

    async def _read_item(self, item: WorkItem, logged: list[Turn], open_readings: Counter[str]) -> Outcome:
        reading_id.set(item["reading_id"])
        async with self._inflight:
            if self._drained.is_set():
                return None
            past = {(turn.span, turn.step): turn for turn in logged}
            for turn in (Turn(**turn) for turn in json.loads(item["past"] or "[]")):
                if (turn.span, turn.step) not in past:
                    past[turn.span, turn.step] = turn
                    if turn.kind == "carried":
                        self._writer.add(turn)  # this reading's log must be complete by itself
            client = self._engine.new_client(self._drained)
            self._counts.in_flight += 1
            self._idle.clear()
            try:
                stream = await self._stream(item)
                request = ReadingRequest(item["reading_id"], item["question"], stream, tuple(past.values()))
                reading = self._spec.reader.method(request, self._scheme, client.generate, self._record)
                result = await reading.run()
                self._counts.readings += 1
                return self._answer(item, replace(result, engine_seconds=client.spent))
            except Stopped:
                return None
            except EngineDied:
                raise  # this worker cannot read anything else
            except (EngineError, ItemError) as error:
                return self._failed(item, type(error).__name__, str(error))
            except Exception as error:
                if said := missing_extra(error):  # every reading would say the same
                    raise ConfigError(said) from error
                # A bug or a damaged part must not fail the other readings; the row names the place.
                frame = traceback.extract_tb(error.__traceback__)[-1]
                detail = f"{error} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
                self._traced[type(error)] += 1
                if self._traced[type(error)] <= _TRACES:
                    _log.exception("reading %s failed", item["reading_id"])
                return self._failed(item, type(error).__name__, detail)
            finally:
                self._counts.in_flight -= 1
                if not self._counts.in_flight:
                    self._idle.set()
                open_readings[item["content_hash"]] -= 1
                if not open_readings[item["content_hash"]]:
                    self._counts.documents += item["documents"]

    async def _stream(self, item: WorkItem) -> StoredStream:
        if not item["stream"]:
            return StoredStream(self._store, item["places"])
        return StoredStream(self._store, await asyncio.to_thread(read_places, self._store.url, item["stream"]))

    def _answer(self, item: WorkItem, result: ReadingResult) -> AnswerRow:
        reader = self._spec.reader
        row = {
            **{name: item[name] for name in _OF_ITEM},  # type: ignore[literal-required]
            **asdict(result),
            "corpus": self._spec.corpus.name,
            "stream": self._hashes(item),
            "policy_id": reader.policy.policy_id,
            "config_hash": reader.config_hash,
            "run_id": self._spec.run_id,
            "answered_at": max(now(), self._spec.not_before),
        }
        return cast(AnswerRow, row)

    def _hashes(self, item: WorkItem) -> list[str]:
        if not item["stream"]:
            return [span["content_hash"] for span in item["places"]]
        return read_places(self._store.url, item["stream"]).hashes

    def _record(self, turn: Turn) -> None:
        if turn.kind != "answer" or turn.finish_reason != "empty":  # else asked again; of a log, the first turn counts
            self._writer.add(turn)
        if self._writer.buffered_bytes >= _PART_BYTES:
            self._full.set()
        self._counts.add_turn(turn, self._scheme.prompts.no_memory)

    def _failed(self, item: WorkItem, reason: str, detail: str) -> FailedItem:
        self._counts.readings += 1
        self._counts.failures += 1
        _log.info("%s failed: %s: %s", item["item"], reason, detail[:_DETAIL])
        return {"item": item["item"], "reason": reason, "detail": detail[:_DETAIL]}

    async def _logged(self, reading_ids: list[str]) -> dict[str, list[Turn]]:
        """Return the turns that a lost worker has logged in this run."""
        result: dict[str, list[Turn]] = {}
        for turn in await asyncio.to_thread(turns, self._spec.corpus, reading_ids, self._spec.run_id):
            result.setdefault(turn.reading_id, []).append(turn)
        return result

    async def _flush_forever(self) -> None:
        began = time.monotonic()
        while True:
            # From when the last part was begun: where the store is slow, a crash costs no more for that.
            due = began + part_seconds(began - self._started, self._spec.config.flush_seconds)
            until = max(due, time.monotonic() + _BREATH_SECONDS)
            while (left := until - time.monotonic()) > 0 and self._writer.buffered_bytes < _PART_BYTES:
                self._full.clear()  # set again by each turn while the last flush was writing
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), min(left, _REPORT_SECONDS))
                self._report()
            began = time.monotonic()
            try:
                await self._flush()
            except Exception as error:
                # A store may raise anything. The turns stay buffered; a block is not returned before they are written,
                # so a lasting error is raised there.
                _log.warning("the turn log cannot be written now: %s: %s", type(error).__name__, error)

    async def _durable(self, answers: list[AnswerRow]) -> list[DataFile]:
        """Write the buffered turns, then the answers; return the files that hold these.

        Blocks that end at about the same time share files. Turns are written before their answers.
        """
        mine = self._answers
        mine.rows += answers
        async with self._answering:
            if mine.file is None and mine.rows:
                await asyncio.sleep(self._next_part - time.monotonic())
                self._answers = AnswerFile()
                await self._flush()
                mine.file = await asyncio.to_thread(write_data_file, self._spec.corpus, "answers", mine.rows)
                mine.rows = []
                # A long run writes larger files at longer intervals.
                pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, (time.monotonic() - self._started) / _FILES))
                self._next_part = time.monotonic() + pause
            elif not mine.rows and mine.file is None:
                await self._flush()
        return [mine.file] if mine.file else []

    async def _flush(self) -> None:
        async with self._flushing:
            try:
                await asyncio.to_thread(self._writer.flush)
            except OSError as error:
                if not is_full(error):
                    raise
                self._run_out(error)
                await asyncio.to_thread(self._writer.flush)  # into the room that was held

    def _run_out(self, error: OSError) -> None:
        """Begin nothing any more, since the disk is full: what is read from now on would be read again."""
        self._no_room = self._no_room or error
        self._drained.set()
        if self._room is not None:
            self._room.give_up()

    async def _end_early(self) -> None:
        """Wait for the conversations under way, of other blocks as well, and write them: all ends with this one."""
        await self._idle.wait()
        await self._flush()

    def _report(self) -> None:
        self._counts.engine_deaths = self._engine.deaths - self._deaths_before
        if self._counts.engines:
            self._counts.engine_milliseconds = int(1000 * (time.monotonic() - self._engine_up))
        self._board.report(self._worker, self._counts.as_dict(), [] if self._board.is_local else self._log.take())
        if self._board.stopped:
            self.drain()


async def _gathered(readings: Sequence[Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    """Run readings beside each other; the first error ends them all."""
    tasks = [asyncio.create_task(reading) for reading in readings]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def part_seconds(elapsed: float, most: float) -> float:
    """Return after how many seconds the next part of the turn log is due, in a run of so many seconds."""
    return min(most, max(_SHORTEST_PART, elapsed / _PART_SHARE))
