"""A pool of engines, one Ray actor each: items go to whichever engine is free, and results are yielded as they come.

The pool starts with `pool.min_size` engines and grows to `pool.max_size` while there is more work than the running ones
take; idle engines are ended. An actor that dies, with its process or its node, is replaced; an engine that gives up is
retired. Their items go to the others, and only when no engine is left does the run fail. An item whose workers die
again and again is given to one alone, and halved, until what they die of is found.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypedDict, TypeVar, cast

from infra.cluster import session
from infra.cluster.placement import EngineActor, start_engine
from infra.disk import is_full
from memagent.config import PoolConfig
from memagent.errors import ConfigError, EngineDied, MemagentError, UsageError

_log = logging.getLogger("memagent.pool")
_CALLS = 64
"""Most items that one engine works on at once."""
_CONVERSATIONS = 16_384
"""Conversations of these items, beyond which the engine is given no more."""
_SUSPECT = 1
"""Lost workers beyond which an item is given to one alone."""
_BISECTIONS = 12
"""Deaths in a row that count as a search for what kills workers; more are the machine's."""
_WAIT_SECONDS = 1.0


class PoolItem(TypedDict):
    """What every item of work has: plain data."""

    conversations: int
    """About how much work it is."""
    losses: int
    """How often a worker ended that had begun it."""


class Fatal(TypedDict):
    """The result by which a worker says that its engine is gone, or cannot be started."""

    fatal: str
    """Why."""
    usage: bool
    """Whether the configuration is at fault."""


Item = TypeVar("Item", bound=PoolItem)
Result = TypeVar("Result")
_Taken = TypeVar("_Taken", bound=PoolItem, contravariant=True)
_Given = TypeVar("_Given", covariant=True)


class Worker(Protocol[_Taken, _Given]):
    """What runs in an actor of the pool."""

    async def run(self, item: _Taken) -> _Given | Fatal:
        """Do an item of work; start the engine first, if this is the first one. The result is plain data."""


class Culprits(Protocol[Item, _Given]):
    """What becomes of items whose workers' processes die of them."""

    def halves(self, item: Item) -> list[Item]:
        """Return an item as two, or as itself if it cannot be cut."""

    def lost(self, item: Item) -> _Given:
        """Return the result of an item that kills its worker and cannot be cut."""


@dataclass(slots=True, eq=False)
class _Engine(Generic[Item]):
    placed: EngineActor
    items: dict[Any, Item] = field(default_factory=dict)
    """Items in progress, by the reference of the call."""
    answered: bool = False
    """Whether any call has returned: the engine is up."""
    alone: bool = False
    """Whether its item is one that may kill it, and gets no company."""

    @property
    def conversations(self) -> int:
        return sum(item["conversations"] for item in self.items.values())


def run_on_engines(
    worker: type[Worker[Item, Result]],
    arguments: tuple[Any, ...],
    items: Iterable[Item],
    pool: PoolConfig,
    culprits: Culprits[Item, Result] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Result]:
    """Hand items to workers with an engine each; yield the results as they come.

    Needs a Ray session.

    Args:
        worker: a class with the method of `Worker`; one instance per engine, called for several items at once.
        arguments: of its constructor.
        items: largest first.
        pool: how many engines, and what each of them needs of the cluster.
        culprits: how to find the items that kill their workers. None: the run fails once too many processes have died.
        stop: is asked about once a second. Once it says so nothing is handed out any more, and the workers, which then
            need a method `drain`, return what they have.

    Raises:
        UsageError: an engine needs more than the machine has.
        ConfigError: a worker's engine cannot be started as configured (`fatal`).
        EngineDied: no engine is left.
    """
    check_fits(pool)
    engines = _Pool(worker, arguments, queue=deque(items), pool=pool, culprits=culprits)
    try:
        yield from engines.results(stop or (lambda: False))
    finally:
        engines.end()


def check_fits(pool: PoolConfig) -> bool:
    """Tell whether any node could take an engine. A cluster may still grow; the Ray of one process does not.

    Raises:
        UsageError: Ray runs in this process, and the machine is too small for an engine.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    of_largest = sum(sorted((node.get("GPU", 0) for node in nodes), reverse=True)[: pool.nodes])
    on_one = pool.gpus if pool.nodes == 1 else 1
    if of_largest >= pool.gpus and any(
        node.get("CPU", 0) >= pool.cpus and node.get("GPU", 0) >= on_one for node in nodes
    ):
        return True
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")}
    message = (
        f"an engine needs pool.cpus = {pool.cpus:g} and pool.gpus = {pool.gpus:g} on {pool.nodes} node"
        f"{'s' if pool.nodes > 1 else ''}, and there is no such room: the largest has {most['CPU']:g} CPUs and "
        f"{most['GPU']:g} GPUs"
    )
    if session.started_here:
        raise UsageError(message)
    _log.warning("%s; waiting for one that joins", message)
    return False


def fatal(error: MemagentError) -> Fatal:
    """Return the result for an error that ends a worker's engine."""
    return {"fatal": str(error), "usage": isinstance(error, UsageError)}


class _Pool(Generic[Item, Result]):
    def __init__(
        self,
        worker: type[Worker[Item, Result]],
        arguments: tuple[Any, ...],
        *,
        queue: deque[Item],
        pool: PoolConfig,
        culprits: Culprits[Item, Result] | None,
    ) -> None:
        self._queue, self._config, self._culprits = queue, pool, culprits
        self._suspects: deque[Item] = deque()
        self._new = partial(start_engine, worker, arguments, pool, max_concurrency=_CALLS + 1, max_restarts=0)
        self._most = min(pool.max_size, max(1, len(queue)))
        self._left = sum(item["conversations"] for item in queue)
        self._engines: list[_Engine[Item]] = []
        self._idle = 0
        """Engines that were ended for want of work, and may be started again."""
        self._replacements, self._bisections = self._enough(), _BISECTIONS
        self._last_error: MemagentError = EngineDied("no engine is left")
        self._stopped = False
        self._no_room: OSError | None = None

    def results(self, stop: Callable[[], bool]) -> Iterator[Result]:
        """Yield results until no item is left, or those that are begun once `stop` says so."""
        import ray

        for _ in range(min(self._config.min_size, self._most)):
            self._start()
        while self._queue or self._suspects or any(engine.items for engine in self._engines):
            if self._stopped or stop():
                self._drain()
            self._hand_out()
            calls = {call: engine for engine in self._engines for call in engine.items}
            if not calls:
                break  # stopped
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=_WAIT_SECONDS)
            for call in ready:
                engine = calls[call]
                if call not in engine.items:
                    continue  # taken back with all items of a retired engine
                try:
                    result = ray.get(call)
                except ray.exceptions.RayActorError as error:
                    yield from self._replace(engine, error)
                    continue
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, OSError) and is_full(error.cause):
                        self._no_room = error.cause  # the others write what they have read
                        self._left -= engine.items.pop(call)["conversations"]
                        self._drain()
                        continue
                    raise MemagentError(f"a worker failed: {error.cause or error}") from error
                if "fatal" in result:
                    self._retire(engine, result)
                    continue
                self._left -= engine.items.pop(call)["conversations"]
                engine.answered = True
                self._replacements, self._bisections = self._enough(), _BISECTIONS
                yield result
        if self._no_room is not None:
            raise self._no_room  # whoever shows it says what to do

    def end(self) -> None:
        """End all engines."""
        for engine in list(self._engines):
            self._end(engine)

    def _enough(self) -> int:
        """Return how many processes may die without an item done in between."""
        return self._most * (1 + self._config.engine_restarts)

    def _start(self) -> None:
        self._engines.append(_Engine(self._new()))

    def _end(self, engine: _Engine[Item]) -> None:
        self._engines.remove(engine)
        engine.placed.end()

    def _hand_out(self) -> None:
        """Hand items to the least loaded engines until all are busy; grow or shrink the pool."""
        # An engine gets at most half of its share of the remaining work, so that the others find some too.
        share = self._left / (2 * self._most)
        free = [engine for engine in self._engines if not engine.items]
        while self._suspects and free:
            self._give(free.pop(), self._suspects.popleft()).alone = True
        shared = [engine for engine in self._engines if not (engine.items and engine.alone)]
        if self._suspects and len(shared) == len(self._engines):
            shared.remove(min(shared, key=lambda engine: engine.conversations))  # it gets nothing new before it is free
        while self._queue and shared:
            engine = min(shared, key=lambda engine: engine.conversations)
            full = len(engine.items) >= _CALLS or engine.conversations >= min(_CONVERSATIONS, share)
            if full and engine.items:
                break
            self._give(engine, self._queue.popleft()).alone = False
        if self._queue and len(self._engines) < self._most:
            # An engine that cannot be placed yet waits for a node.
            self._start()
            self._hand_out()
        for engine in [engine for engine in self._engines if engine.answered and not engine.items]:
            if not self._queue and len(self._engines) > 1:
                self._end(engine)
                self._idle += 1

    def _give(self, engine: _Engine[Item], item: Item) -> _Engine[Item]:
        engine.items[engine.placed.actor.run.remote(item)] = item
        return engine

    def _take_back(self, engine: _Engine[Item]) -> None:
        """Put an engine's items back into the queue, each with a loss more; end it."""
        self._end(engine)
        for item in engine.items.values():
            item = cast(Item, {**item, "losses": item["losses"] + 1})
            suspect = self._culprits is not None and item["losses"] > _SUSPECT
            (self._suspects if suspect else self._queue).appendleft(item)

    def _replace(self, engine: _Engine[Item], error: Exception) -> Iterator[Result]:
        """Start another actor in place of one that died; yield the result of an item that it died of."""
        item = next(iter(engine.items.values()), None)
        if self._culprits is not None and engine.alone and item is not None and self._bisections:
            self._bisections -= 1
            self._replacements += 1  # this death brings the search on
            engine.items.clear()
            halves = self._culprits.halves(item)
            if len(halves) > 1:
                self._suspects.extendleft(halves)
            else:
                self._left -= item["conversations"]
                yield self._culprits.lost(item)
        self._take_back(engine)
        words = str(error).strip().splitlines()[-1:] or ["no words"]
        self._last_error = EngineDied(f"the engines' processes end ({type(error).__name__}: {words[0]})")
        if self._replacements:
            self._replacements -= 1
            _log.warning("an engine's process ended (%s); starting another one", type(error).__name__)
            self._start()
        self._check()

    def _retire(self, engine: _Engine[Item], result: Fatal) -> None:
        """Retire an engine that cannot continue."""
        if result["usage"]:
            raise ConfigError(result["fatal"])
        self._take_back(engine)
        self._most = max(1, self._most - 1)
        self._last_error = EngineDied(result["fatal"])
        _log.warning("an engine is retired (%s); %d are left", result["fatal"], len(self._engines))
        if not self._engines and self._idle:
            self._idle -= 1
            self._start()
        self._check()

    def _drain(self) -> None:
        """Hand nothing out any more, and tell the workers."""
        self._queue.clear()
        self._suspects.clear()
        if not self._stopped:
            self._stopped = True
            for engine in self._engines:
                if hasattr(engine.placed.actor, "drain"):
                    engine.placed.actor.drain.remote()

    def _check(self) -> None:
        if not self._engines and not self._stopped:
            raise self._last_error
