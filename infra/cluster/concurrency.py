"""The number of concurrent conversations of an engine: as many as keep it full, and no more.

More concurrent readings than the engine can batch only delay each other: all would finish at the end of a run, evict
each other's key-value cache, and a crash would cost more. How many fill an engine depends on the model, the processor
and the texts, so it is found by throughput: the limit doubles while throughput rises, and is checked again from time to
time.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

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

        Args:
            tokens: of it.
            full: whether others were waiting. If none were, the rate tells nothing about the limit.
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
        if self._rest:
            self._rest -= 1
            self._base_rate = rate
            if not self._rest:
                self._try(self._base * 2)
        elif self.limit == self._base:
            self._base_rate = rate
            self._try(self._base * 2)
        elif self.limit > self._base:
            if rate > self._base_rate * _GAIN:
                self._keep(rate)
                self._try(self._base * 2)
            else:
                self._try(self._base // 2)
        elif rate > self._base_rate * _LOSS:
            self._keep(rate)
            self._settle()
        else:
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
