"""An engine that is restarted when it dies, so readings continue where they are."""

import asyncio
import logging
from collections.abc import Callable

from memagent.engine import Completion, Engine, Sampling
from memagent.errors import EngineDied

_log = logging.getLogger("memagent.engine")


class SupervisedEngine:
    """Wraps an engine; requests in flight when it dies are sent again to its successor.

    Readings that wait here keep their memory, so the death of an engine costs only the conversations in flight."""

    def __init__(self, make: Callable[[], Engine], restarts: int, watchdog: float | None = None) -> None:
        """Start engines made by `make`, with at most `restarts` restarts without an answer in between.

        An engine that takes longer than `watchdog` seconds for a request counts as dead; None: no limit.
        """
        self._make = make
        self._engine = make()
        self._restarts = restarts
        self._watchdog = watchdog
        self._left = restarts
        self._generation = 0
        self._lock = asyncio.Lock()
        self.deaths = 0

    @property
    def engine(self) -> Engine:
        """The engine that serves now."""
        return self._engine

    async def start(self) -> None:
        """Start the first engine."""
        await self._engine.start()

    async def restart(self) -> None:
        """Replace the engine, as if it had died; requests in flight are sent to its successor."""
        await self._replace(self._generation, EngineDied("it was to be replaced"))

    async def stop(self) -> None:
        """Stop the current engine."""
        await self._engine.stop()

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; raises EngineDied once the restarts are used up."""
        while True:
            generation = self._generation
            try:
                async with asyncio.timeout(self._watchdog):
                    completion = await self._engine.generate(ids, sampling, priority)
            except TimeoutError:
                await self._replace(generation, EngineDied(f"the engine has not answered for {self._watchdog:.0f} s"))
            except EngineDied as error:
                await self._replace(generation, error)
            else:
                self._left = self._restarts
                return completion

    async def _replace(self, generation: int, error: EngineDied) -> None:
        async with self._lock:
            if generation != self._generation:
                return  # another reading noticed the death first
            if self._left == 0:
                raise error
            self._left -= 1
            self.deaths += 1
            _log.warning("the engine died (%s); starting another, %d restarts left", error, self._left)
            await self._engine.stop()
            self._engine = self._make()
            await self._engine.start()
            self._generation += 1
