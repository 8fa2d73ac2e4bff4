"""An engine that is restarted when it dies, so readings continue where they are."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from memagent.errors import EngineDied, RequestError
from memagent.reading.engine import Completion, Engine, Sampling

_log = logging.getLogger("memagent.reading.engine")
_SUSPECT = 2
"""Deaths of the engine during a request, after which it is sent with nothing beside it."""


class SharedLock:
    """Held by many at once, or by one alone, who goes before those that come later. Of one event loop."""

    def __init__(self) -> None:
        self._holders = self._waiting = 0
        self._exclusive = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def held(self, *, exclusive: bool) -> AsyncIterator[None]:
        """Hold the lock in the body, alone if `exclusive`."""
        self._waiting += exclusive
        try:
            while self._exclusive or (self._holders if exclusive else self._waiting):
                self._changed.clear()
                await self._changed.wait()
        except BaseException:
            self._waiting -= exclusive
            self._changed.set()
            raise
        self._holders += 1
        self._exclusive = exclusive
        try:
            yield
        finally:
            self._holders -= 1
            if exclusive:
                self._waiting -= 1
                self._exclusive = False
            self._changed.set()


class SupervisedEngine:
    """Wraps an engine; requests in flight when it dies are sent again to its successor.

    Readings that wait here keep their memory, so the death of an engine costs only the conversations in flight. A
    request during which it dies repeatedly is sent alone; if it then dies, the request fails and the others go on.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int, watchdog: float | None = None) -> None:
        """Start engines made by `make`, with at most `restarts` restarts without an answer in between.

        An engine that takes longer than `watchdog` seconds for a request counts as dead; None: no limit.
        """
        self._make = make
        self.engine = make()
        """The engine that serves now."""
        self._restarts = restarts
        self._watchdog = watchdog
        self._left = restarts
        self._generation = 0
        self._replaced = -1
        """The generation that was replaced on purpose: no request is to blame."""
        self._lock = asyncio.Lock()
        self._company = SharedLock()
        self.deaths = 0

    async def start(self) -> None:
        """Start the first engine."""
        await self.engine.start()

    async def restart(self) -> None:
        """Replace the engine, as if it had died; requests in flight are sent to its successor."""
        self._replaced = self._generation
        await self._replace(self._generation, EngineDied("it was to be replaced"))

    async def stop(self) -> None:
        """Stop the current engine."""
        await self.engine.stop()

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`.

        Raises:
            RequestError: this request crashes the engine.
            EngineDied: the restarts are used up.
        """
        deaths = 0
        while True:
            alone = deaths >= _SUSPECT
            async with self._company.held(exclusive=alone):
                generation = self._generation
                try:
                    async with asyncio.timeout(self._watchdog):
                        completion = await self.engine.generate(ids, sampling, priority)
                except TimeoutError:
                    error = EngineDied(f"the engine has not answered for {self._watchdog:.0f} s")
                except EngineDied as died:
                    error = died
                else:
                    self._left = self._restarts
                    return completion
            mine = await self._replace(generation, error)
            deaths += generation != self._replaced
            if alone and mine and generation != self._replaced:
                raise RequestError(f"this request crashes the engine even when sent alone: {error}")

    async def _replace(self, generation: int, error: EngineDied) -> bool:
        """Start another engine, unless that is done already; return whether it was not."""
        async with self._lock:
            if generation != self._generation:
                return False  # another reading noticed the death first
            if self._left == 0:
                raise error
            self._left -= 1
            self.deaths += 1
            _log.warning("the engine died (%s); starting another, %d restarts left", error, self._left)
            await self.engine.stop()
            self.engine = self._make()
            await self.engine.start()
            self._generation += 1
            return True
