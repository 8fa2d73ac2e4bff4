"""Blocks of work on an engine of this process that is loaded already: what a server reads with, without Ray."""

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from infra.cluster.engine_pool import Fatal
from infra.cluster.loaded_engine import LoadedEngine
from infra.cluster.reading_blocks import BlockResult, NumberedBlock, PassSpec
from infra.cluster.reading_worker import ReadingWorker
from infra.readers import ReaderSpec
from memagent.errors import ConfigError, EngineDied, MemagentError

T = TypeVar("T")
_BLOCKS = 64
"""Most blocks that are read at once; the others are names in a plan."""
_LOOK_SECONDS = 0.2


class EngineHere:
    """A loaded engine for one pass, which is run in another thread than the engine's event loop, and can be stopped."""

    def __init__(self, reader: ReaderSpec, engine: LoadedEngine, loop: asyncio.AbstractEventLoop) -> None:
        """Bind a pass to an engine.

        Args:
            reader: the policy that the engine has loaded; the run asks no other.
            engine: started in `loop`.
            loop: runs in another thread.
        """
        self.reader = reader
        self._engine, self._loop = engine, loop
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the pass; what was answered stays. From any thread, before the pass or during it."""
        self._stopped.set()

    def check(self) -> None:
        """Raise MemagentError if the pass was stopped."""
        if self._stopped.is_set():
            raise MemagentError("the run was stopped; what was answered stays, and asking again goes on from there")

    def run(self, spec: PassSpec, blocks: Iterable[NumberedBlock]) -> Iterator[BlockResult]:
        """Read blocks; yield their results as they come.

        Raises:
            ConfigError: the engine cannot be started again as configured.
            EngineDied: the engine is gone.
            MemagentError: the pass was stopped.
        """
        worker = ReadingWorker(spec, None, self._engine)
        waiting, running = deque(blocks), set[Future[BlockResult | Fatal]]()
        done: SimpleQueue[Future[BlockResult | Fatal]] = SimpleQueue()
        try:
            while waiting or running:
                while waiting and len(running) < _BLOCKS:
                    block = self._submit(worker.run(waiting.popleft()))
                    running.add(block)
                    block.add_done_callback(done.put)
                block = self._next(done)
                running.remove(block)
                yield _result(block)
        finally:
            for block in running:
                block.cancel()
            self._submit(worker.stop()).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _next(self, done: SimpleQueue[Future[BlockResult | Fatal]]) -> Future[BlockResult | Fatal]:
        while True:
            self.check()
            try:
                return done.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue


def _result(block: Future[BlockResult | Fatal]) -> BlockResult:
    try:
        result = block.result()
    except (CancelledError, asyncio.CancelledError) as error:
        raise MemagentError("the server is stopping") from error
    if "fatal" in result:
        gone = cast(Fatal, result)
        raise (ConfigError if gone["usage"] else EngineDied)(gone["fatal"])
    return result
