"""An engine with what its readings share: how many conversations it takes at once, and a meter of its time."""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from infra.engines.supervised import SupervisedEngine
from infra.readers import ReaderSpec
from memagent.reading.engine import Completion, Sampling

_START = 32
"""Nearly fills a small engine, and keeps a large one busy during the search."""
_GAIN = 1.07
"""Least gain in throughput for which the limit is doubled."""
_LOSS = 0.97
"""Share of the throughput that half as many must keep to be preferred."""
_WINDOW_SECONDS = 1.0
_WINDOW_CONVERSATIONS = 32
_SETTLED_WINDOWS = 12
"""Windows between one search and the next."""


class ThroughputSearch:
    """Finds the limit by the rate of tokens of finished conversations.

    Phases: measure at the present limit, then try twice as many; what is better stays and is doubled again. When
    doubling does not pay, half as many are tried; after that the limit stays for a number of windows.
    """

    def __init__(self, most: int, start: int = _START, clock: Callable[[], float] = time.monotonic) -> None:
        """Search up to `most`, beginning at `start`."""
        self._most = most
        self._clock = clock
        self.limit = min(start, most)
        self._base = self.limit
        self._base_rate = 0.0
        self._rest = 0
        self._skip = 0
        self._begin()

    def finished(self, tokens: int, *, full: bool) -> None:
        """Count a finished conversation of so many tokens, prompt and response.

        Where it was not `full`, no others were waiting, and the rate tells nothing about the limit.
        """
        if not full:
            self._begin()
            return
        if self._skip:  # conversations that began under the earlier limit
            self._skip -= 1
            if not self._skip:
                self._begin()
            return
        self._conversations += 1
        self._tokens += tokens
        seconds = self._clock() - self._began
        if self._conversations >= max(_WINDOW_CONVERSATIONS, 2 * self.limit) and seconds >= _WINDOW_SECONDS:
            self._decide(self._tokens / seconds)
            self._begin()

    def _begin(self) -> None:
        self._began = self._clock()
        self._conversations = 0
        self._tokens = 0

    def _decide(self, rate: float) -> None:
        if self.limit == self._base:  # where it rests as well
            self._base_rate = rate
            self._rest = max(0, self._rest - 1)
            if not self._rest:
                self._try(self._base * 2)
        elif self.limit > self._base:
            if rate > self._base_rate * _GAIN:
                self._keep(rate)
                self._try(self._base * 2)
            else:
                self._try(self._base // 2)
        else:
            if rate > self._base_rate * _LOSS:
                self._keep(rate)
            self._settle()

    def _keep(self, rate: float) -> None:
        self._base, self._base_rate = self.limit, rate

    def _try(self, limit: int) -> None:
        limit = max(1, min(limit, self._most))
        if limit == self._base:
            self._settle()
            return
        self._set(limit)

    def _settle(self) -> None:
        self._set(self._base)
        self._rest = _SETTLED_WINDOWS

    def _set(self, limit: int) -> None:
        self._skip = max(limit, self.limit) if limit != self.limit else 0
        self.limit = limit


class Slots:
    """Admits conversations up to the search's limit, those of the oldest readings first, so these proceed at the
    engine's full pace and finish.
    """

    def __init__(self, search: ThroughputSearch) -> None:
        """Admit as many conversations as `search` allows; its limit may change at any time."""
        self.search = search
        self._taken = 0
        self._asked = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def take(self, order: int) -> None:
        """Wait for a slot; a lower `order` gets one first."""
        if self._taken < self.search.limit and not self._waiting:
            self._taken += 1
            return
        let_in = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._asked), let_in))
        self._let_in()
        try:
            await let_in
        except asyncio.CancelledError:
            if let_in.done() and not let_in.cancelled():
                self._give_back()
            raise

    def done(self, tokens: int) -> None:
        """Give a slot back after a conversation of so many tokens; 0 for one that failed."""
        if tokens:
            self.search.finished(tokens, full=bool(self._waiting))
        self._give_back()

    def _give_back(self) -> None:
        self._taken -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._taken < self.search.limit:
            let_in = heapq.heappop(self._waiting)[2]
            if not let_in.done():
                let_in.set_result(None)
                self._taken += 1


class EngineTimeMeter:
    """Divides time evenly among the conversations in flight (processor sharing)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._share = 0.0
        """Seconds of engine time that a conversation in flight from the start would have had."""
        self._in_flight = 0

    def begin(self) -> float:
        """Begin a conversation; pass the returned value to `end`."""
        self._advance()
        self._in_flight += 1
        return self._share

    def end(self, began: float) -> float:
        """End a conversation; return its share of the engine's time in seconds."""
        self._advance()
        self._in_flight -= 1
        return self._share - began

    def _advance(self) -> None:
        now = self._clock()
        if self._in_flight:
            self._share += (now - self._last) / self._in_flight
        self._last = now


class LoadedEngine(SupervisedEngine):
    """The engine of a worker, or of a server for all that it reads. It is restarted when it dies.

    It belongs to the event loop in which it was started.
    """

    def __init__(self, reader: ReaderSpec, inflight: int, *, local: bool) -> None:
        """Make the engine of a reader, not yet started.

        Args:
            inflight: conversations that it is sent at once, at most.
            local: whether it is on this machine alone, where commands share a warm engine.
        """
        make = reader.make_local_engine if local else reader.make_engine
        super().__init__(make, reader.engine_restarts, reader.watchdog_seconds)
        self.meter = EngineTimeMeter()
        self.slots = Slots(ThroughputSearch(inflight))
        self.order = count()

    def new_client(self, drained: asyncio.Event | None = None) -> "EngineClient":
        """Return what a new reading asks the engine by; readings that began earlier are served first.

        Once `drained` is set, it begins no conversation any more.
        """
        return EngineClient(self, next(self.order), drained or asyncio.Event())


class Stopped(Exception):
    """No conversation is begun any more. The reading goes on from its last logged one in another run."""


class EngineClient:
    """Sends the conversations of one reading to the engine, and sums up their cost."""

    def __init__(self, loaded: LoadedEngine, order: int, drained: asyncio.Event) -> None:
        self._loaded, self._order, self._drained = loaded, order, drained
        self.spent = 0.0
        """The reading's share of the engine's time, in seconds."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.reading.engine.Engine`.

        Raises Stopped besides: no conversation is begun any more.
        """
        await self._loaded.slots.take(self._order)
        tokens = 0
        try:
            if self._drained.is_set():
                raise Stopped
            began = self._loaded.meter.begin()
            try:
                completion = await self._loaded.generate(ids, sampling, priority)
            finally:
                self.spent += self._loaded.meter.end(began)
            tokens = completion.prompt_tokens + len(completion.ids)
            return completion
        finally:
            self._loaded.slots.done(tokens)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine of this process that has started, for one pass."""

    reader: ReaderSpec
    """The policy that the engine has loaded."""
    engine: LoadedEngine
    loop: asyncio.AbstractEventLoop
    """In which the engine was started; runs in another thread than the pass."""
