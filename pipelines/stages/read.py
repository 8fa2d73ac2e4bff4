"""Read: the memory pass, a Ray Data job over a pool of engines, or on one engine of this process.

Workers read their blocks of work from the store, and write turns and answers there; this process hands out blocks,
commits the workers' answer files, and counts.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from infra.cluster.engine_here import EngineHere
from infra.cluster.engine_pool import run_on_engines
from infra.cluster.nodes import ensure_nodes
from infra.cluster.progress import NOW, Counters, Progress, ProgressReporter, Totals
from infra.cluster.reading_blocks import BlockResult, FailedItem, NumberedBlock, PassSpec
from infra.cluster.reading_worker import ReadingWorker
from infra.cluster.session import board_name
from infra.logs import relay
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.data_files import DataFile, FileCommits
from infra.tables.delta import Table
from infra.tables.plans import Block, read_work
from infra.tables.quarantine import failure_row
from infra.tables.rows import FailureRow
from memagent.config import Config
from memagent.cost import Budget, Usage
from memagent.errors import MemagentError
from pipelines.stages.plan import Plan

_log = logging.getLogger("memagent.read")
_ROUNDS = 3
"""Restarts of a pass that ends early because a worker was lost for good."""
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


@dataclass(frozen=True, slots=True)
class ReadingPass:
    """Whose documents are read, by which reader, in which run."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    config: Config
    here: EngineHere | None = None
    """An engine of this process to read with; None: a pool of engines in Ray."""
    budget: Budget | None = None
    """What the pass may spend; None: whatever it takes."""


def usage_of(counts: Mapping[str, int]) -> Usage:
    """Return what a pass has taken so far, by its counts (`infra.cluster.progress.Counters`)."""
    prompt, cached, output = (counts.get(name, 0) for name in ("prompt_tokens", "cached_tokens", "output_tokens"))
    return Usage(prompt, cached, output, counts.get("engine_milliseconds", 0) / 1000)


def read(
    reading: ReadingPass,
    plan: Plan,
    progress: Progress | None = None,
    watch: AnswerWatch | None = None,
) -> PassResult:
    """Run a plan's pending readings, and commit the answers; tell `watch` of them as they come.

    Needs a Ray session, unless an engine is here. Turns are logged as they come and answers committed every few
    seconds; the same call after a crash, or after the budget was spent, continues from there. A reading that fails
    becomes a quarantine row.

    Raises:
        UsageError: a node of the cluster cannot see the store.
        MemagentError: no engine can be started, or engines die again and again.
    """
    if reading.here is None:
        ensure_nodes(reading.corpus.store)
    result = PassResult()
    sink = _Sink(reading, result)
    left = dict(enumerate(plan.blocks))
    rows = {number: block["rows"] for number, block in left.items()}
    started = time.monotonic()
    for attempt in range(_ROUNDS):
        if not left:
            break
        done: set[int] = set()
        try:
            for outcome in _round(reading, left, result, progress):
                rows[outcome["block"]] -= outcome["answered"] + len(outcome["failures"])
                if not rows[outcome["block"]]:  # a block that was cut has several results
                    done.add(outcome["block"])
                files = sink.take(outcome)
                watch = _tell(watch, files) if files else watch
        except MemagentError:
            raise
        except Exception as error:
            if not done and attempt == _ROUNDS - 1:
                raise
            _log.warning("the pass was broken off (%s); continuing with what is left", type(error).__name__)
        finally:
            sink.commit()
        if _is_spent(reading, result.counts):
            result.unread, left = sum(rows.values()), {}
        left = {n: {**block, "losses": block["losses"] + 1} for n, block in left.items() if n not in done}
        rows = {number: block["rows"] for number, block in left.items()}
    for block in left.values():
        sink.lose(block)
    sink.commit()
    result.seconds = time.monotonic() - started
    return result


def _is_spent(reading: ReadingPass, counts: Mapping[str, int]) -> bool:
    return reading.budget is not None and reading.budget.is_spent(usage_of(counts), reading.config.cost)


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


def _round(
    reading: ReadingPass,
    blocks: dict[int, Block],
    result: PassResult,
    progress: Progress | None,
) -> Iterator[BlockResult]:
    config, pool = reading.config, reading.config.pool
    spec = PassSpec(
        reading.corpus,
        reading.run_id,
        reading.reader,
        inflight=pool.inflight,
        flush_seconds=config.flush_seconds,
        log_level=config.logging.level,
    )
    items: Iterator[NumberedBlock] = ({**block, "number": number} for number, block in blocks.items())
    if reading.here is not None:
        yield from _counted(reading.here.run(spec, items), result, progress)
        return
    reporter = ProgressReporter(board_name())
    with _Watch(reporter, dict(result.counts), result, progress) as watch:
        culprits = _Culprits(reading.corpus.store)
        for block in run_on_engines(
            ReadingWorker, (spec, reporter), items, pool, culprits, stop=lambda: _is_spent(reading, watch.counts())
        ):
            watch.take(block["worker"], block["counts"])
            relay(block["log"])
            yield block


def _counted(blocks: Iterator[BlockResult], result: PassResult, progress: Progress | None) -> Iterator[BlockResult]:
    """Pass results on, with their workers' counts added to the run's."""
    base, totals, began = result.counts, Totals(), time.monotonic()
    for block in blocks:
        totals.take(block["worker"], block["counts"])
        relay(block["log"])
        result.counts = {k: v + (base[k] if k not in NOW else 0) for k, v in totals.sum().items()}
        result.engine_seconds = time.monotonic() - began
        if progress:
            progress({**result.counts, "failures_by_reason": dict(result.failed)})
        yield block


@dataclass(frozen=True, slots=True)
class _Culprits:
    """Cuts blocks whose workers die, down to the reading that they die of."""

    store: Store

    def halves(self, item: NumberedBlock) -> list[NumberedBlock]:
        half = item["rows"] // 2
        if not half:
            return [item]
        share = item["conversations"] // 2
        first: NumberedBlock = {**item, "rows": half, "conversations": share}
        rest = item["conversations"] - share
        return [first, {**item, "first": item["first"] + half, "rows": item["rows"] - half, "conversations": rest}]

    def lost(self, item: NumberedBlock) -> BlockResult:
        detail = "the worker's process dies of it, also with nothing beside it; see pool and engine settings for memory"
        failures: list[FailedItem] = [
            {"item": row["item"], "reason": "kills-worker", "detail": detail} for row in read_work(self.store, item)
        ]
        counts = {**Counters().as_dict(), "readings": len(failures), "failures": len(failures)}
        worker = f"lost-{item['number']}-{item['first']}"
        return {
            "block": item["number"],
            "answered": 0,
            "failures": failures,
            "files": [],
            "worker": worker,
            "counts": counts,
            "log": [],
        }


class _Watch:
    """Sums the workers' counts, for the run's result and for the display."""

    def __init__(
        self,
        reporter: ProgressReporter,
        base: dict[str, int],
        result: PassResult,
        progress: Progress | None,
    ) -> None:
        self._reporter, self._base, self._result, self._progress = reporter, base, result, progress
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
        self._update(dict.fromkeys(NOW[1:], 0))
        if self._first_engine is not None:
            self._result.engine_seconds += time.monotonic() - self._first_engine

    def take(self, worker: str, counts: dict[str, int]) -> None:
        """Take the totals that came with a worker's answers."""
        with self._lock:
            self._totals.take(worker, counts)

    def counts(self) -> dict[str, int]:
        """Return the counts so far, earlier rounds included."""
        with self._lock:
            total = self._totals.sum()
        return {name: count + (self._base[name] if name not in NOW else 0) for name, count in total.items()}

    def _loop(self) -> None:
        while not self._stop.wait(1.0):
            self._update()

    def _update(self, after: dict[str, int] | None = None) -> None:
        import ray

        try:
            reports, lines = ray.get(list(self._reporter.reports()), timeout=10)
        except (ray.exceptions.RayError, ValueError) as error:
            _log.warning("no counts now: %s", type(error).__name__)
            reports, lines = {}, []
        relay(lines)
        for worker, counts in reports.items():
            self.take(worker, counts)
        self._result.counts = self.counts() | (after or {})
        if self._result.counts["engines"] and self._first_engine is None:
            self._first_engine = time.monotonic()
        counts = self._result.counts
        if self._progress:
            # The reasons arrive with the results of blocks, so that they may lag behind the count of failures.
            self._progress({**counts, "failures_by_reason": dict(self._result.failed)})


class _Sink:
    """Commits the workers' answer files, and writes the rows of failed readings."""

    def __init__(self, reading: ReadingPass, result: PassResult) -> None:
        self._reading, self._result = reading, result
        corpus = reading.corpus
        answers = Table(corpus.store, "answers")
        self._commits = FileCommits(answers, corpus.name, reading.run_id, reading.config.commit_seconds)
        self._quarantine = Table(corpus.store, "quarantine")
        self._failures: list[FailureRow] = []

    def take(self, block: BlockResult) -> list[DataFile]:
        """Add the result of a block; return the answer files that are new."""
        self._result.answered += block["answered"]
        self._fail(block["failures"])
        return self._commits.add(block["files"])

    def lose(self, block: Block) -> None:
        """Count the readings of a block that no worker finished as failed."""
        reading = self._reading
        for item in read_work(reading.corpus.store, block):
            self._fail([{"item": item["item"], "reason": "lost", "detail": "no worker finished it"}])

    def commit(self) -> None:
        """Commit all that was added."""
        self._commits.commit()
        self._quarantine.upsert(self._failures)
        self._failures = []

    def _fail(self, items: list[FailedItem]) -> None:
        corpus, run_id = self._reading.corpus, self._reading.run_id
        self._result.failed.update(item["reason"] for item in items)
        self._failures += [
            failure_row(corpus, "read", item["item"], reason=item["reason"], detail=item["detail"], run_id=run_id)
            for item in items
        ]
        if len(self._failures) >= _FAILURES:
            self.commit()
