"""Read: the memory pass, a job over a pool of engines in Ray Data, or over one engine beside this process.

Workers read their blocks of work from the store, and write turns and answers there; this process commits the workers'
answer files, and counts.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Protocol, Self, cast

from infra.cluster.board import NOW, Board, Counters, Totals
from infra.cluster.jobs import EngineWork, job_board, run_job
from infra.cluster.loaded_engine import LocalEngine
from infra.cluster.reading_worker import BlockResult, FailedItem, PassSpec, ReadingWorker
from infra.readers import ReaderSpec
from infra.store.data_files import FileCommits
from infra.store.delta import DataFile, Table
from infra.store.location import Corpus
from infra.store.plans import Block
from infra.store.schemas import FailureRow, failure_row
from infra.system.logs import relay
from memagent.config import Config
from memagent.errors import MemagentError
from memagent.quality.cost import Budget, Usage
from memagent.records import Progress, ProgressCounts
from pipelines.stages.plan import Plan

_log = logging.getLogger("memagent.read")
_FAILURES = 1_000
"""Quarantine rows per commit."""


@dataclass(slots=True)
class PassResult:
    """Counts of a memory pass."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Readings that failed, by reason; their rows are in the quarantine."""
    counts: dict[str, int] = field(default_factory=lambda: Counters().as_dict())
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """Seconds from the first running engine to the last answer."""
    unread: int = 0
    """Readings that are left because the budget was spent; the same command reads them."""


class AnswerWatch(Protocol):
    """Is told of a run's answers as they are found. Its calls hold the run up, so they are short.

    A `MemagentError` that it raises ends the run, which the same command continues; after any other it is told no more.
    """

    def planned(self, corpus: Corpus, run_id: str) -> None:
        """Note that the plan is written: what earlier runs have answered can be looked up."""

    def answered(self, files: Sequence[DataFile]) -> None:
        """Note files of table `answers` that a worker has written; they are committed within seconds."""

    def check(self) -> None:
        """Raise MemagentError where the run is to be stopped. Called several times a second, from several threads."""


@dataclass(frozen=True, slots=True)
class ReadingPass:
    """Whose documents are read, by which reader, in which run."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    config: Config
    engine: LocalEngine | None = None
    """One that runs already, to read with."""
    budget: Budget | None = None
    """What the pass may spend; None: whatever it takes."""


def usage_of(counts: Mapping[str, int]) -> Usage:
    """Return what a pass has taken so far, by its counts (`infra.cluster.board.Counters`)."""
    prompt, cached, output = (counts.get(name, 0) for name in ("prompt_tokens", "cached_tokens", "output_tokens"))
    return Usage(prompt, cached, output, counts.get("engine_milliseconds", 0) / 1000)


def read(
    reading: ReadingPass, plan: Plan, progress: Progress | None = None, watch: AnswerWatch | None = None
) -> PassResult:
    """Run a plan's pending readings, and commit the answers; tell `watch` of them as they come.

    Needs a Ray session, unless the pass is small (`Config.runs_here`). Turns are logged as they come and answers
    committed every few seconds; the same call after a crash, or after the budget was spent, continues from there, in
    Ray or not. A reading that fails becomes a quarantine row.

    Raises:
        UsageError: a node of the cluster cannot see the store, or no machine has room for an engine.
        MemagentError: no engine can be started, or engines keep crashing.
        OSError: the store's disk is full.
    """
    config, store = reading.config, reading.corpus.store
    local = reading.engine is not None or config.runs_here(plan.conversations)
    board = job_board(store, local=local)
    check: Callable[[], None] = (lambda: None) if watch is None else watch.check
    work, result, started = _work(reading, board), PassResult(), time.monotonic()
    sink, left = _Sink(reading, result), sum(block["rows"] for block in plan.blocks)
    with _Watch(sink, board, check, progress) as counted:
        outcomes = run_job(replace(work, check=check) if local else work, plan.blocks, store, local=local)
        try:
            for outcome in outcomes:
                counted.take(outcome)
                left -= outcome["answered"] + len(outcome["failures"])
                files = sink.take(outcome)
                watch = _tell(watch, files) if files else watch
        finally:
            outcomes.close()
            sink.commit()
    if board.stopped:
        check()  # else the budget is spent
        result.unread = left
    result.seconds = time.monotonic() - started
    return result


def _work(reading: ReadingPass, board: Board) -> EngineWork[Block, BlockResult]:
    config, engine = reading.config, reading.engine
    newest = Table(reading.corpus.store, "answers").latest(reading.corpus.name, "answered_at")
    spec = PassSpec(reading.corpus, reading.run_id, reading.reader, config)
    if newest is not None and newest >= spec.not_before:
        _log.warning("an answer is dated %s, in the future: new ones are dated after it; look at the clocks", newest)
        spec = replace(spec, not_before=newest + timedelta(microseconds=1))
    if engine is None:
        return EngineWork(partial(ReadingWorker, spec=spec), config.pool, board)
    make = partial(ReadingWorker, spec=spec, engine=engine.engine)
    return EngineWork(make, config.pool, board, loop=engine.loop)


def _tell(watch: AnswerWatch | None, files: Sequence[DataFile]) -> AnswerWatch | None:
    """Tell a watch of new answers; return it, or None if it cannot go on: a closed pipe must not stop the readings."""
    try:
        if watch is not None:
            watch.answered(files)
    except MemagentError:
        raise
    except Exception as error:
        _log.warning("answers are not shown any more (%s: %s); they are in the store", type(error).__name__, error)
        return None
    return watch


class _Watch:
    """Sums the workers' counts, for the run's result and for the display; stops a pass that is to end.

    It has what is written committed, too: the next block may take hours.
    """

    def __init__(self, sink: "_Sink", board: Board, check: Callable[[], None], progress: Progress | None) -> None:
        self._sink, self._board, self._check, self._progress = sink, board, check, progress
        self._reading, self._result = sink.reading, sink.result
        self._totals = Totals()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._first_engine: float | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._update(dict.fromkeys(NOW[1:], 0))
        if self._first_engine is not None:
            self._result.engine_seconds = time.monotonic() - self._first_engine

    def take(self, block: BlockResult) -> None:
        relay(block["log"])
        with self._lock:
            self._totals.take(block["worker"], block["counts"])

    def _loop(self) -> None:
        while not self._over.wait(1.0):
            self._update({})
            self._sink.commit_if_due()

    def _update(self, after: dict[str, int]) -> None:
        try:
            reports, lines = self._board.reports()
        except ConnectionError as error:
            _log.warning("%s", error)
            reports, lines = {}, []
        relay(lines)
        with self._lock:
            for worker, counts in reports.items():
                self._totals.take(worker, counts)
            counts = self._result.counts = self._totals.sum() | after
        if counts["engines"] and self._first_engine is None:
            self._first_engine = time.monotonic()
        budget = self._reading.budget
        if budget is not None and budget.is_spent(usage_of(counts), self._reading.config.cost):
            self._board.stop()
        try:
            self._check()
        except MemagentError:
            self._board.stop()  # workers write what they have
        if self._progress:
            # The reasons arrive with the results of blocks, so that they may lag behind the count of failures.
            self._progress({**cast(ProgressCounts, counts), "failures_by_reason": dict(self._result.failed)})


class _Sink:
    """Commits the workers' answer files, and writes the rows of failed readings."""

    def __init__(self, reading: ReadingPass, result: PassResult) -> None:
        self.reading, self.result = reading, result
        corpus = reading.corpus
        answers = Table(corpus.store, "answers")
        self._commits = FileCommits(answers, corpus.name, reading.run_id, reading.config.commit_seconds)
        self._quarantine = Table(corpus.store, "quarantine")
        self._failures: list[FailureRow] = []
        self._lock = threading.Lock()
        self._waits = False

    def take(self, block: BlockResult) -> list[DataFile]:
        self.result.answered += block["answered"]
        with self._lock:
            self._fail(block["failures"])
            files = self._commits.add(block["files"])
        if self._commits.is_due or len(self._failures) >= _FAILURES:
            self.commit()
        return files

    def commit(self) -> None:
        with self._lock:
            self._commits.commit()
            self._quarantine.upsert(self._failures)
            self._failures, self._waits = [], False

    def commit_if_due(self) -> None:
        """Commit if it is time, from another thread; after an error wait for the next block, whose commit raises it."""
        if self._commits.is_due and not self._waits:
            try:
                self.commit()
            except Exception as error:
                self._waits = True
                _log.warning("answers are not committed yet (%s: %s)", type(error).__name__, error)

    def _fail(self, items: list[FailedItem]) -> None:
        corpus, run_id = self.reading.corpus, self.reading.run_id
        self.result.failed.update(item["reason"] for item in items)
        self._failures += [
            failure_row(corpus.name, "read", item["item"], reason=item["reason"], detail=item["detail"], run_id=run_id)
            for item in items
        ]
