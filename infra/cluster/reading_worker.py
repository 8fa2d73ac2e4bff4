"""The worker of the memory pass: one engine, many readings, every reading its own coroutine.

It runs as an actor of a Ray Data pool. Ray Data hands it blocks of work, many at once. All their readings are under way
(up to the pool's `inflight`), those that began first go first, and as many conversations are sent to the engine as keep
it full: so readings finish one after another, and their block's answers leave.
"""

import asyncio
import json
import logging
import time
import traceback
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, TypedDict

from infra.cluster.concurrency import Slots, ThroughputSearch
from infra.cluster.engine_pool import fatal, rows_of
from infra.cluster.progress import Counters, ProgressReporter
from infra.engines.supervised import SupervisedEngine
from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.rows import SegmentRange
from infra.tables.segments import StoredStream
from infra.tables.turns import TurnWriter, turns
from memagent.conversations import Generate, ReadingRequest
from memagent.engine import Completion, Sampling
from memagent.errors import EngineDied, EngineError, ItemError, MemagentError
from memagent.records import Turn


class EngineTimeMeter:
    """Divides time evenly among what is in flight at each moment (processor sharing)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._share = 0.0
        """Seconds that one conversation would have been given, had it been in flight all the time."""
        self._in_flight = 0

    def begin(self) -> float:
        """Say that a conversation begins; give what is returned to `end`."""
        self._advance()
        self._in_flight += 1
        return self._share

    def end(self, began: float) -> float:
        """Say that it has ended; return its share in seconds."""
        self._advance()
        self._in_flight -= 1
        return self._share - began

    def _advance(self) -> None:
        now = self._clock()
        if self._in_flight:
            self._share += (now - self._last) / self._in_flight
        self._last = now


_log = logging.getLogger("memagent.pool")
_REPORT_SECONDS = 0.5
_PART_SECONDS = 0.5
"""Between two parts of the turn log at least; blocks that end meanwhile share the next one."""


class WorkItem(TypedDict):
    """A reading to be done, as a worker is given it."""

    reading_id: str
    question: str
    places: list[SegmentRange]
    """Where the segments of its documents stand, in reading order."""
    past: list[dict[str, Any]]
    """The turns (`memagent.records.Turn`) from which it goes on, as plain data."""
    left: int
    """Segments that are still to be read."""


@dataclass(frozen=True, slots=True)
class PassSpec:
    """What every worker of a memory pass needs to know."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    inflight: int
    flush_seconds: float


class ReadingWorker:
    """Reads. One instance per engine."""

    def __init__(self, spec: PassSpec, tally: ProgressReporter | None) -> None:
        """Build what the readings share; `tally` takes counts."""
        self._spec = spec
        self._store = spec.corpus.store
        self._scheme = spec.reader.scheme
        self._writer = TurnWriter(spec.corpus, spec.run_id, spec.reader.policy.policy_id)
        self._engine = SupervisedEngine(spec.reader.make_engine, spec.reader.engine_restarts)
        self._time = EngineTimeMeter()
        self._tally = tally
        self._worker = uuid.uuid4().hex
        self._counts = Counters()
        self._inflight: asyncio.Semaphore | None = None
        self._slots = Slots(ThroughputSearch(spec.inflight))
        self._order = count()
        self._starting: asyncio.Task[None] | None = None
        self._flushing: asyncio.Lock | None = None
        self._next_part = 0.0
        self._flush_task: asyncio.Task[None] | None = None
        # A worker in place of a dead one finds here what that one has logged in this run.
        self._had_predecessor = bool(self._store.list("turns", spec.corpus.name, spec.run_id))

    async def __call__(self, block: Mapping[str, Iterable[str]]) -> AsyncIterator[dict[str, list[str]]]:
        """Read a block of work items; yield one row per reading, and one of counts: ``{"row": [JSON]}``.

        A work item is JSON (`WorkItem`). The last row has this worker's totals: what a run says that it did comes with
        its answers, whatever becomes of the actor that shows progress.
        """
        try:
            yield rows_of(await self._block([json.loads(item) for item in block["item"]]))
        except MemagentError as error:
            yield rows_of([fatal(error)])

    async def _block(self, items: list[WorkItem]) -> list[dict[str, Any]]:
        await self._ready()
        logged = self._logged([item["reading_id"] for item in items])
        open_readings = Counter(_stream(item) for item in items)
        tasks = [
            asyncio.create_task(self._one(item, logged.get(item["reading_id"], []), open_readings)) for item in items
        ]
        try:
            rows = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        # An answer is given out only when its turns are durable.
        await self._durable()
        self._report()
        return [*rows, {"worker": self._worker, "counts": self._counts.as_dict()}]

    async def stop(self) -> None:
        """Write what is buffered and end the engine. A pool's actors are simply ended; this is for others."""
        if self._flush_task is not None:
            self._flush_task.cancel()
            await self._flush()
        await self._engine.stop()

    async def _ready(self) -> None:
        if self._starting is None:
            self._inflight = asyncio.Semaphore(self._spec.inflight)
            self._flushing = asyncio.Lock()
            self._flush_task = asyncio.create_task(self._flush_forever())
            self._starting = asyncio.create_task(self._engine.start())
        await asyncio.shield(self._starting)
        self._counts.engines = 1
        self._report()

    async def _one(self, item: WorkItem, logged: list[Turn], open_readings: Counter[Any]) -> dict[str, Any]:
        assert self._inflight is not None
        async with self._inflight:
            past = {(turn.lane, turn.step): turn for turn in logged}
            for turn in (Turn(**turn) for turn in item["past"]):
                if (turn.lane, turn.step) not in past:
                    past[turn.lane, turn.step] = turn
                    if turn.kind == "carried":
                        self._writer.add(turn)  # this reading's log must stand without the other's
            asker = _Asker(self._engine.generate, self._time, self._slots, next(self._order))
            stream = StoredStream(self._store, item["places"])
            request = ReadingRequest(item["reading_id"], item["question"], stream, tuple(past.values()))
            reading = self._spec.reader.method(request, self._scheme, asker.generate, self._record)
            try:
                outcome = await reading.run()
                self._counts.readings += 1
                return asdict(replace(outcome, engine_seconds=asker.spent))
            except EngineDied:
                raise  # nothing else can be read by this worker; the run reports it and ends
            except (EngineError, ItemError) as error:
                return self._failed(item, type(error).__name__, str(error))
            except Exception as error:
                # A bug or a broken part must not cost the other readings; the row carries the place.
                place = traceback.extract_tb(error.__traceback__)[-1]
                detail = f"{error} ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})"
                _log.exception("reading %s failed", item["reading_id"])
                return self._failed(item, type(error).__name__, detail)
            finally:
                open_readings[_stream(item)] -= 1
                if not open_readings[_stream(item)]:
                    self._counts.documents += len(item["places"])

    def _record(self, turn: Turn) -> None:
        self._writer.add(turn)
        counts = self._counts
        counts.conversations += 1
        counts.segments += turn.kind == "update"
        counts.prompt_tokens += turn.prompt_tokens
        counts.cached_tokens += turn.cached_tokens
        counts.output_tokens += len(turn.response_ids)

    def _failed(self, item: WorkItem, reason: str, detail: str) -> dict[str, Any]:
        self._counts.readings += 1
        self._counts.failures += 1
        return {"reading_id": item["reading_id"], "failed": reason, "detail": detail[:2000]}

    def _logged(self, reading_ids: list[str]) -> dict[str, list[Turn]]:
        if not self._had_predecessor:
            return {}
        found: dict[str, list[Turn]] = {}
        for turn in turns(self._spec.corpus, reading_ids, self._spec.run_id):
            found.setdefault(turn.reading_id, []).append(turn)
        return found

    async def _flush_forever(self) -> None:
        while True:
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < self._spec.flush_seconds:
                await asyncio.sleep(_REPORT_SECONDS)
                self._report()
            try:
                await self._flush()
            except Exception as error:
                # Whatever a store raises: the turns stay buffered, and a block is not given out before
                # they are written, so that an error which stays is raised there.
                _log.warning("the turn log cannot be written now: %s: %s", type(error).__name__, error)

    async def _durable(self) -> None:
        """Write what is buffered; blocks that end at about the same time share one part."""
        assert self._flushing is not None
        async with self._flushing:
            if self._writer.buffered:
                await asyncio.sleep(self._next_part - time.monotonic())
                await asyncio.to_thread(self._writer.flush)
                self._next_part = time.monotonic() + _PART_SECONDS

    async def _flush(self) -> None:
        assert self._flushing is not None
        async with self._flushing:
            await asyncio.to_thread(self._writer.flush)

    def _report(self) -> None:
        self._counts.engine_deaths = self._engine.deaths
        if self._tally is not None:
            self._tally.report(self._worker, self._counts.as_dict())


class _Asker:
    """Asks the engine for one reading, and adds up what that costs."""

    def __init__(self, generate: Generate, shared: EngineTimeMeter, slots: Slots, order: int) -> None:
        self._generate = generate
        self._shared = shared
        self._slots = slots
        self._order = order
        self.spent = 0.0

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        await self._slots.take(self._order)
        began = self._shared.begin()
        tokens = 0
        try:
            completion = await self._generate(ids, sampling, priority)
            tokens = completion.prompt_tokens + len(completion.ids)
            return completion
        finally:
            self.spent += self._shared.end(began)
            self._slots.done(tokens)


def _stream(item: WorkItem) -> tuple[str, ...]:
    return tuple(place["content_hash"] for place in item["places"])
