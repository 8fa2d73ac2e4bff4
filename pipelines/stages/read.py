"""Read: the memory pass, a Ray Data job over a pool of engines."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pyarrow.compute as pc

from infra.cluster.engine_pool import run_on_engines
from infra.cluster.progress import Counters, ProgressReporter, Totals
from infra.cluster.reading_worker import PassSpec, ReadingWorker, WorkItem
from infra.cluster.session import board_name, ensure_ray
from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.delta import Table, now
from infra.tables.rows import AnswerRow, FailureRow, PlannedReading
from memagent.config import Config
from memagent.errors import MemagentError
from pipelines.stages.plan import Plan, groups

_log = logging.getLogger("memagent.read")
_BLOCK_CONVERSATIONS = 64
"""Of a block, unless a single stream has more: its answers come out together, so it ends soon."""
_COMMITS = 100
"""After so many commits of answers their small files are put together, lest a long run's commits get slow."""
_PAUSE = 5
"""A commit takes longer the more answers stand; the next one is at least so many times as far off."""
_ROUNDS = 3
"""A pass that ends early (a worker lost for good) is begun again with what is left, so often."""


@dataclass(slots=True)
class PassResult:
    """What a memory pass came to."""

    answered: int = 0
    failed: list[FailureRow] = field(default_factory=list)
    """Quarantine rows of the readings that failed."""
    counts: dict[str, int] = field(default_factory=lambda: Counters().as_dict())
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """Seconds from the first engine that is up to the last answer."""


@dataclass(frozen=True, slots=True)
class ReadingPass:
    """Whose documents are read, by which reader, in which run."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    config: Config


def read(
    reading: ReadingPass,
    plan: Plan,
    progress: Callable[[dict[str, int]], None] | None = None,
) -> PassResult:
    """Run a plan's pending readings, and commit the answers.

    Needs a Ray session. Turns are logged as they come and answers committed every few seconds; the
    same call after a crash goes on from there. A reading that fails becomes a quarantine row.

    Raises:
        MemagentError: no engine can be started, or engines die again and again.
    """
    ensure_ray()
    result = PassResult()
    rows = {row["reading_id"]: row for row in plan.pending}
    left = {item["reading_id"]: item for item in plan.items()}
    began = time.monotonic()
    for attempt in range(_ROUNDS):
        if not left:
            break
        sink = _Sink(reading, rows, result)
        try:
            _round(reading, list(left.values()), sink, result=result, progress=progress)
        except MemagentError:
            raise
        except Exception as error:
            if not sink.done and attempt == _ROUNDS - 1:
                raise
            _log.warning("the pass was broken off (%s); going on with what is left", type(error).__name__)
        finally:
            sink.commit()
        left = {k: v for k, v in left.items() if k not in sink.done}
    for reading_id in left:
        result.failed.append(_failure(reading, rows[reading_id], "lost", "no worker finished this reading"))
    Table(reading.corpus.store, "quarantine").upsert(result.failed)
    result.seconds = time.monotonic() - began
    return result


def _round(
    reading: ReadingPass,
    items: list[WorkItem],
    sink: "_Sink",
    result: PassResult,
    progress: Callable[[dict[str, int]], None] | None,
) -> None:
    config, pool = reading.config, reading.config.pool
    spec = PassSpec(
        reading.corpus, reading.run_id, reading.reader, inflight=pool.inflight, flush_seconds=config.flush_seconds
    )
    tally = ProgressReporter(board_name())
    base = dict(result.counts)
    with _Watch(tally, base, result, progress) as watch:
        for row in run_on_engines(ReadingWorker, (spec, tally), _blocks(items, pool.max_size), pool):
            if "counts" in row:
                watch.take(**row)
            else:
                sink.take(row)


class _Watch:
    """Sums up the workers' counts, for the run's result and for whoever shows them."""

    def __init__(
        self,
        tally: ProgressReporter,
        base: dict[str, int],
        result: PassResult,
        progress: Callable[[dict[str, int]], None] | None,
    ) -> None:
        self._tally, self._base, self._result, self._progress = tally, base, result, progress
        self._totals = Totals()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._first_engine: float | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        if self._first_engine is not None:
            self._result.engine_seconds += time.monotonic() - self._first_engine

    def take(self, worker: str, counts: dict[str, int]) -> None:
        """Take the totals that came with a worker's answers."""
        with self._lock:
            self._totals.take(worker, counts)

    def _loop(self) -> None:
        while not self._stop.wait(1.0):
            self._look()

    def _look(self) -> None:
        import ray

        try:
            reports = ray.get(self._tally.reports(), timeout=10)
        except (ray.exceptions.RayError, ValueError) as error:
            _log.warning("no counts now: %s", type(error).__name__)
            reports = {}
        for worker, counts in reports.items():
            self.take(worker, counts)
        with self._lock:
            total = self._totals.sum()
        if total["engines"] and self._first_engine is None:
            self._first_engine = time.monotonic()
        self._result.counts = {k: v + (self._base[k] if k != "engines" else 0) for k, v in total.items()}
        if self._progress:
            self._progress(self._result.counts)


class _Sink:
    """Takes finished readings and commits them every few seconds."""

    def __init__(
        self,
        reading: ReadingPass,
        rows: dict[str, PlannedReading],
        result: PassResult,
    ) -> None:
        self._reading, self._rows, self._result = reading, rows, result
        self._corpus, self._seconds = reading.corpus.name, reading.config.commit_seconds
        self._answers = Table(reading.corpus.store, "answers")
        self._quarantine = Table(reading.corpus.store, "quarantine")
        failed = self._quarantine.read(self._corpus, ["item"], pc.field("stage") == "read")
        self._once_failed = set(failed["item"].to_pylist())
        self._buffer: list[AnswerRow] = []
        self._due = time.monotonic() + self._seconds
        self._commits = 0
        self.done: set[str] = set()

    def take(self, outcome: dict[str, Any]) -> None:
        """Take a worker's row. One that came before, after a worker was lost, counts once."""
        reading = outcome["reading_id"]
        if reading in self.done:
            return
        self.done.add(reading)
        row = self._rows[reading]
        if "failed" in outcome:
            self._result.failed.append(_failure(self._reading, row, outcome["failed"], outcome["detail"]))
        else:
            self._buffer.append(self._answer(row, outcome))
        if time.monotonic() > self._due:
            self.commit()

    def commit(self) -> None:
        """Commit what is buffered; what failed before and is answered now leaves quarantine."""
        began = time.monotonic()
        self._answers.insert_new(self._buffer)
        self._result.answered += len(self._buffer)
        if self._once_failed:
            answered = {_item(self._rows[row["reading_id"]]) for row in self._buffer}
            self._quarantine.delete(self._corpus, stage=["read"], item=answered & self._once_failed)
        self._buffer = []
        self._commits += 1
        if self._commits % _COMMITS == 0:
            self._answers.compact(self._corpus)
        ended = time.monotonic()
        self._due = ended + max(self._seconds, _PAUSE * (ended - began))

    def _answer(self, row: PlannedReading, outcome: dict[str, Any]) -> AnswerRow:
        reader = self._reading.reader
        return {
            **cast(AnswerRow, outcome),
            "question_id": row["question_id"],
            "question": row["question"],
            "scope": row["scope"],
            "content_hash": row["content_hash"],
            "stream": row["stream"],
            "carried_from": row["carried_from"],
            "carried_segments": row["carried_segments"],
            "corpus": self._corpus,
            "policy_id": reader.policy.policy_id,
            "config_hash": reader.config_hash,
            "run_id": self._reading.run_id,
            "answered_at": now(),
        }


def _blocks(items: list[WorkItem], engines: int) -> list[list[WorkItem]]:
    """Cut the work into blocks by conversations, longest streams first; a block's answers come out together.

    Where there is little work the blocks are smaller, so that every engine gets some.
    """
    grouped = groups(items)
    total = sum(item["left"] + 1 for item in items)
    most = min(_BLOCK_CONVERSATIONS, math.ceil(total / (2 * engines)))
    blocks: list[list[WorkItem]] = []
    room = 0
    for group in grouped:
        size = sum(item["left"] + 1 for item in group)
        if size > room:
            blocks.append([])
            room = most
        blocks[-1] += group
        room -= size
    return blocks


def _failure(reading: ReadingPass, row: PlannedReading, reason: str, detail: str) -> FailureRow:
    return {
        "corpus": reading.corpus.name,
        "stage": "read",
        "item": _item(row),
        "reason": reason,
        "detail": detail,
        "run_id": reading.run_id,
        "at": now(),
    }


def _item(row: PlannedReading) -> str:
    return f"{row['doc_id'] or 'archive'} ? {row['question_id']}"
