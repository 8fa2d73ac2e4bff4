"""A pool of engines, one Ray actor each: items go to whichever engine is free, and results are yielded as they come.

The pool starts with `pool.min_size` engines and grows to `pool.max_size` while there is more work than the running ones
take; idle engines are ended. An actor that dies, with its process or its node, is replaced; an engine that gives up is
retired. Their items go to the others, and only when no engine is left does the run fail.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypedDict, TypeVar, cast

from infra.cluster import session
from infra.cluster.placement import EngineActor, start_engine
from memagent.config import PoolConfig
from memagent.errors import ConfigError, EngineDied, MemagentError, UsageError

_log = logging.getLogger("memagent.pool")
_CALLS = 64
"""Most items that one engine works on at once."""
_CONVERSATIONS = 16_384
"""Conversations of these items, beyond which the engine is given no more."""
_WAIT_SECONDS = 1.0


class PoolItem(TypedDict):
    """What every item of work has: plain data."""

    conversations: int
    """About how much work it is."""
    again: bool
    """Whether another worker may have begun it."""


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


@dataclass(slots=True, eq=False)
class _Engine(Generic[Item]):
    placed: EngineActor
    items: dict[Any, Item] = field(default_factory=dict)
    """Items in progress, by the reference of the call."""
    answered: bool = False
    """Whether any call has returned: the engine is up."""

    @property
    def conversations(self) -> int:
        return sum(item["conversations"] for item in self.items.values())


def run_on_engines(
    worker: type[Worker[Item, Result]], arguments: tuple[Any, ...], items: Iterable[Item], pool: PoolConfig
) -> Iterator[Result]:
    """Hand items to workers with an engine each; yield the results as they come.

    Needs a Ray session.

    Args:
        worker: a class with the method of `Worker`; one instance per engine, called for several items at once.
        arguments: of its constructor.
        items: largest first.
        pool: how many engines, and what each of them needs of the cluster.

    Raises:
        UsageError: an engine needs more than the machine has.
        ConfigError: a worker's engine cannot be started as configured (`fatal`).
        EngineDied: no engine is left.
    """
    check_fits(pool)
    engines = _Pool(worker, arguments, deque(items), pool)
    try:
        yield from engines.results()
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
        self, worker: type[Worker[Item, Result]], arguments: tuple[Any, ...], queue: deque[Item], pool: PoolConfig
    ) -> None:
        self._queue, self._config = queue, pool
        self._new = partial(start_engine, worker, arguments, pool, max_concurrency=_CALLS + 1, max_restarts=0)
        self._most = min(pool.max_size, max(1, len(queue)))
        self._left = sum(item["conversations"] for item in queue)
        self._engines: list[_Engine[Item]] = []
        self._replacements = self._most * (1 + pool.engine_restarts)
        self._last_error: MemagentError = EngineDied("no engine is left")

    def results(self) -> Iterator[Result]:
        """Yield results until no item is left."""
        import ray

        for _ in range(min(self._config.min_size, self._most)):
            self._start()
        while self._queue or any(engine.items for engine in self._engines):
            self._hand_out()
            calls = {call: engine for engine in self._engines for call in engine.items}
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=_WAIT_SECONDS)
            for call in ready:
                engine = calls[call]
                if call not in engine.items:
                    continue  # taken back with all items of a retired engine
                try:
                    result = ray.get(call)
                except ray.exceptions.RayActorError as error:
                    self._replace(engine, error)
                    continue
                except ray.exceptions.RayTaskError as error:
                    raise MemagentError(f"a worker failed: {error.cause or error}") from error
                if "fatal" in result:
                    self._retire(engine, result)
                    continue
                self._left -= engine.items.pop(call)["conversations"]
                engine.answered = True
                yield result

    def end(self) -> None:
        """End all engines."""
        for engine in list(self._engines):
            self._end(engine)

    def _start(self) -> None:
        self._engines.append(_Engine(self._new()))

    def _end(self, engine: _Engine[Item]) -> None:
        self._engines.remove(engine)
        engine.placed.end()

    def _hand_out(self) -> None:
        """Hand items to the least loaded engines until all are busy; grow or shrink the pool."""
        # An engine gets at most half of its share of the remaining work, so that the others find some too.
        share = self._left / (2 * self._most)
        while self._queue:
            engine = min(self._engines, key=lambda engine: engine.conversations)
            full = len(engine.items) >= _CALLS or engine.conversations >= min(_CONVERSATIONS, share)
            if full and engine.items:
                break
            item = self._queue.popleft()
            engine.items[engine.placed.actor.run.remote(item)] = item
        if self._queue and len(self._engines) < self._most:
            # An engine that cannot be placed yet waits for a node.
            self._start()
            self._hand_out()
        for engine in [engine for engine in self._engines if engine.answered and not engine.items]:
            if not self._queue and len(self._engines) > 1:
                self._end(engine)

    def _take_back(self, engine: _Engine[Item]) -> None:
        self._end(engine)
        self._queue.extendleft(cast(Item, {**item, "again": True}) for item in engine.items.values())

    def _replace(self, engine: _Engine[Item], error: Exception) -> None:
        """Start another actor in place of one that died."""
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
        self._check()

    def _check(self) -> None:
        if not self._engines:
            raise self._last_error
