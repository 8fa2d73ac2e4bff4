"""The one way to run work in parallel: items over a function, or over workers that have an engine each.

It has two executors. Ray Data runs what is large, and engines on a cluster: it starts workers, ends idle ones, replaces
those that die, and runs their items again. This process runs the rest, without Ray. Items and results are small (names
of files, ranges of rows, counts): data goes through the store.
"""

import asyncio
import logging
import os
import pickle
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from infra.cluster.board import Attempt, Board, RemoteBoard
from infra.cluster.placement import EngineGroups, check_fits, check_machine
from infra.cluster.session import board_name, ensure_ray
from infra.store.location import Store, is_full
from infra.system.processes import terminating
from memagent.config import PoolConfig
from memagent.errors import EngineDied, MemagentError, UsageError

_SECONDS = 60.0


def ensure_nodes(store: Store) -> None:
    """Start Ray if it is not running yet, and check once a session that its nodes see the store (`check_store`).

    Raises:
        UsageError: a node cannot see the store, or Ray cannot be used as configured.
        MemagentError: Ray cannot be started.
    """
    import ray

    ensure_ray()
    _checked(store.url, ray.get_runtime_context().get_job_id())


@lru_cache(maxsize=8)
def _checked(url: str, session: str) -> None:
    check_store(Store(url))


def check_store(store: Store) -> None:
    """Refuse a store that some node of the cluster cannot see: its work there would be lost.

    Needs a Ray session. A cluster of one node is not checked; nodes that do not answer within a minute, or are lost,
    are skipped.

    Raises UsageError: naming the nodes.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    if store.is_s3 or len(nodes) < 2:
        return
    name = f".nodes-{uuid.uuid4().hex[:8]}"
    path = store.write_bytes(b"seen", name)
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(Store.exists)
        calls = {}
        for node, host in nodes.items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            calls[look.options(scheduling_strategy=there).remote(store, name)] = host
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_SECONDS)
        blind = sorted(calls[call] for call in done if not _saw(call))
    finally:
        store.delete(path)
    if blind:
        raise UsageError(
            f"the store {store.url} cannot be seen by the cluster's node {', '.join(blind)}: give an s3:// URL, or a "
            "folder that all nodes share"
        )


def _saw(call: Any) -> bool:
    """Return what a node said; one that was lost meanwhile is given no work, and passes."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return bool(ray.get(call))
    except RayTaskError:
        raise
    except RayError:
        return True


Item = TypeVar("Item")
Result = TypeVar("Result")
_Taken = TypeVar("_Taken", contravariant=True)
_Given = TypeVar("_Given", covariant=True)
_log = logging.getLogger("memagent.jobs")

BLOCKS_AT_ONCE = 64
"""Most items, which are blocks of readings, that one engine works on at once."""
_ROUNDS = 3
"""How often Ray Data is given what is left of a job that Ray could not bring to its end."""
_LOOK_SECONDS = 0.2


class Worker(Protocol[_Taken, _Given]):
    """What has an engine. Errors that it raises end the job, but for `EngineDied`, after which another one is made."""

    async def run(self, item: _Taken, attempt: Attempt) -> _Given:
        """Work on an item, beside others; start the engine first, if this is the first one."""
        ...

    async def stop(self) -> None:
        """Write what is buffered, and free the engine."""


@dataclass(frozen=True, slots=True)
class EngineWork(Generic[Item, Result]):
    """Work on items that needs engines."""

    make: Callable[[Board], Worker[Item, Result]]
    """Makes the worker of an engine; picklable."""
    pool: PoolConfig
    board: Board
    """One that is not remote has the items worked on in this process."""
    loop: asyncio.AbstractEventLoop | None = None
    """Runs in another thread of this process, and has the engine; None: the job brings its own."""
    check: Callable[[], None] = lambda: None
    """Raises where the job is to be broken off; called several times a second in this process."""


def run_job(
    work: Callable[[Item], Result] | EngineWork[Item, Result], items: Sequence[Item], store: Store, *, local: bool
) -> Generator[Result]:
    """Work on each item; yield the results as they come, in any order.

    An item is worked on again where its worker is lost: work writes whole files, or nothing. Who stops in the middle
    closes the generator (`contextlib.closing`), which ends the workers.

    Args:
        work: a picklable function, or how to make workers with an engine each.
        items: picklable; those with the most work first.
        store: what the work reads and writes; all nodes of a cluster must see it.
        local: whether this process does the work. Ray is then not started.

    Raises:
        UsageError: a node of the cluster cannot see the store, or no machine has room for an engine.
        EngineDied: all engines keep crashing.
        MemagentError: Ray cannot bring the job to its end.
        Exception: the first that the work raises. A full disk ends a job with engines only once the other workers have
            written what they have.
    """
    no_room: OSError | None = None
    with closing(_local(work, items) if local else _ray_data(work, items, store)) as outcomes:
        for outcome in outcomes:
            if not isinstance(outcome, _Failure):
                yield outcome
            elif isinstance(work, EngineWork) and isinstance(outcome.error, OSError) and is_full(outcome.error):
                work.board.stop()
                no_room = no_room or outcome.error
            else:
                raise outcome.error
    if no_room is not None:
        raise no_room


def job_board(store: Store, *, local: bool) -> Board:
    """Return the board of a new job with engines, on which this process works (`local`) or Ray Data, which it starts.

    Raises UsageError, MemagentError: as `infra.cluster.jobs.ensure_nodes`.
    """
    if local:
        return Board()
    ensure_nodes(store)
    return RemoteBoard(board_name())


@dataclass(frozen=True, slots=True)
class _Failure:
    """The outcome of an item whose work has raised an error."""

    error: Exception


def _failure(error: Exception) -> _Failure:
    """Return an error as an outcome that can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - just dumped; some classes can be dumped and not loaded
    except Exception:
        return _Failure(MemagentError(f"{type(error).__name__}: {error}"))
    return _Failure(error)


# ---- this process


def _local(work: Callable[[Any], Any] | EngineWork[Any, Any], items: Iterable[Any]) -> Generator[Any]:
    if not isinstance(work, EngineWork):
        yield from map(work, items)
        return
    if work.loop is None:
        check_machine(work.pool)
    with _running_loop(work.loop) as loop:
        worker = work.make(work.board)
        waiting, running = iter(enumerate(items)), set[Future[Any]]()
        done: SimpleQueue[Future[Any]] = SimpleQueue()

        async def outcome(number: int, item: Any) -> Any:
            try:
                return await worker.run(item, await work.board.begin(number, "", 0))
            except Exception as error:
                return _Failure(error)

        try:
            while True:
                for number, item in islice(waiting, BLOCKS_AT_ONCE - len(running)):
                    call = _submit(outcome(number, item), loop)
                    running.add(call)
                    call.add_done_callback(done.put)
                if not running:
                    return
                call = _next(done, work.check)
                running.remove(call)
                if call.cancelled():
                    raise MemagentError("the process is stopping")
                yield call.result()
        finally:
            for call in running:
                call.cancel()
            _submit(worker.stop(), loop).result()


def _submit(call: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(call, loop)


def _next(done: SimpleQueue[Future[Any]], check: Callable[[], None]) -> Future[Any]:
    while True:
        check()
        _check_termination()
        try:
            return done.get(timeout=_LOOK_SECONDS)
        except Empty:
            continue


def _check_termination() -> None:
    if terminating.is_set():
        raise MemagentError("the run was stopped; the same command goes on with its work")


@contextmanager
def _running_loop(given: asyncio.AbstractEventLoop | None) -> Iterator[asyncio.AbstractEventLoop]:
    if given is not None:
        yield given
        return
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True, name="memagent engine")
    thread.start()
    try:
        yield loop
    finally:
        _submit(_end_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _end_tasks() -> None:
    """Cancel what a job that was broken off has left in its loop, and wait until it has ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- Ray Data


def _ray_data(work: Callable[[Any], Any] | EngineWork[Any, Any], items: Sequence[Any], store: Store) -> Generator[Any]:
    """Have Ray Data work on the items, and on those that are left where Ray itself fails; yield each outcome once."""
    if not items:
        return
    ensure_nodes(store)
    from ray.exceptions import RayError

    left = dict(enumerate(items))
    for last in (*[False] * (_ROUNDS - 1), True):
        try:
            with closing(_dataset(work, left)) as outcomes:
                for number, outcome in outcomes:
                    _check_termination()
                    if number in left:  # not the second time, where a node was lost with the outcome
                        del left[number]
                        yield outcome
            return
        except RayError as error:
            _check_termination()
            if last:
                raise MemagentError(f"Ray could not end a job, {_ROUNDS} times: {error}") from error
            _log.warning("Ray broke a job off (%s); continuing with what is left", type(error).__name__)


def _dataset(work: Callable[[Any], Any] | EngineWork[Any, Any], items: dict[int, Any]) -> Generator[tuple[int, Any]]:
    """Yield the number and the outcome of each item as Ray Data has them."""
    import ray
    from ray.data import from_arrow_refs

    rows = [ray.put(_packed(number, item)) for number, item in items.items()]
    with _options(work, len(rows)) as (function, options):
        done = from_arrow_refs(rows).map_batches(function, batch_size=None, batch_format="pyarrow", **options)
        with closing(iter(done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))) as batches:
            for batch in batches:
                yield _unpacked(batch)


@contextmanager
def _options(
    work: Callable[[Any], Any] | EngineWork[Any, Any], count: int
) -> Iterator[tuple[Callable[[pa.Table], pa.Table] | type, dict[str, Any]]]:
    """Give what Ray Data maps so many items over, and its options."""
    if not isinstance(work, EngineWork):
        yield _Function(work).on_rows, {}
        return
    from ray.data import ActorPoolStrategy

    pool = work.pool
    check_fits(pool)
    most = min(pool.max_size, count)
    # Half of an engine's share of the items at once: the others find some, and what is left is evened out.
    calls = max(1, min(BLOCKS_AT_ONCE, count // (2 * most)))
    compute = ActorPoolStrategy(
        min_size=min(pool.min_size, most),
        max_size=most,
        max_tasks_in_flight_per_actor=calls + 1,
        max_concurrent_calls_per_actor=calls,
    )
    options: dict[str, Any] = {"compute": compute, "fn_constructor_args": (work,)}
    if pool.nodes == 1:
        yield _EngineWorker, options | {"num_cpus": pool.cpus, "num_gpus": pool.gpus or None}
        return
    groups = EngineGroups(pool)
    try:
        yield _EngineWorker, options | {"ray_remote_args_fn": groups.new}
    finally:
        groups.end()


def _unpacked(rows: pa.Table) -> tuple[int, Any]:
    from ray import cloudpickle

    return rows["number"][0].as_py(), cloudpickle.loads(rows["data"][0].as_py())


def _packed(number: int, outcome: object) -> pa.Table:
    from ray import cloudpickle

    return pa.table({"number": [number], "data": pa.array([cloudpickle.dumps(outcome)], pa.large_binary())})


@dataclass(frozen=True, slots=True)
class _Function:
    work: Callable[[Any], Any]

    def on_rows(self, rows: pa.Table) -> pa.Table:
        number, item = _unpacked(rows)
        try:
            return _packed(number, self.work(item))
        except Exception as error:
            return _packed(number, _failure(error))


class _EngineWorker:
    """A worker in an actor of Ray Data."""

    def __init__(self, work: EngineWork[Any, Any]) -> None:
        self._work, self._name = work, uuid.uuid4().hex
        self._worker: Worker[Any, Any] | None = None

    async def __call__(self, rows: pa.Table) -> pa.Table:
        number, item = _unpacked(rows)
        return _packed(number, await self._outcome(number, item))

    async def _outcome(self, number: int, item: Any) -> Any:
        board, pool = self._work.board, self._work.pool
        attempt = await board.begin(number, self._name, pool.max_size * (1 + pool.engine_restarts))
        if attempt.broken:
            return _failure(EngineDied(attempt.broken))
        try:
            if self._worker is None:
                self._worker = self._work.make(board)
            result = await self._worker.run(item, attempt)
        except EngineDied as error:
            await board.note(number, None)  # the item is not to blame
            if await board.give_up(pool.max_size):
                return _failure(error)
            _log.warning("an engine gives up (%s); its process ends, and another one is started", error)
            await self._end()
        except Exception as error:
            return _failure(error)
        await board.done(number)
        return result

    async def _end(self) -> None:
        """End this process, so that Ray starts another one, on whichever node has room."""
        try:
            assert self._worker is not None
            await self._worker.stop()
        finally:
            os._exit(1)
