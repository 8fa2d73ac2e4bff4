"""How many conversations an engine holds: found by its throughput, and given to the readings that began first."""

import asyncio
import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.loaded_engine import Slots, ThroughputSearch

TOKENS = 300


class Simulated:
    """An engine whose conversations take `base` seconds and share `capacity` conversations a second."""

    def __init__(self, capacity, base=0.5, most=256):
        self.now = 0.0
        self.capacity, self.base = capacity, base
        self.search = ThroughputSearch(most, clock=lambda: self.now)

    def run(self, conversations, noise=lambda: 1.0):
        """Hold conversations one after another in as many slots as the search allows; return the limits it took."""
        ends, limits = [], []
        for _ in range(conversations):
            while len(ends) < self.search.limit:
                rate = min((len(ends) + 1) / self.base, self.capacity)
                heapq.heappush(ends, self.now + (len(ends) + 1) / rate * noise())
            self.now = max(self.now, heapq.heappop(ends))
            self.search.finished(TOKENS, full=True)
            limits.append(self.search.limit)
            while len(ends) >= self.search.limit:
                self.now = max(self.now, heapq.heappop(ends))
        return limits


@pytest.mark.parametrize("capacity", [4, 25, 100, 300])
def test_it_settles_where_more_side_by_side_buys_nothing(capacity):
    engine = Simulated(capacity)
    limits = engine.run(20_000)
    need = capacity * engine.base
    settled = max(set(limits[-4000:]), key=limits[-4000:].count)
    assert need / 2 <= settled <= 4 * max(need, 1), (need, settled)


def test_it_never_exceeds_what_the_pool_allows_nor_falls_below_one():
    assert max(Simulated(1e6, most=24).run(5000)) == 24
    assert min(Simulated(0.1).run(3000)) >= 1
    assert ThroughputSearch(3).limit == 3


def test_a_time_in_which_nothing_waits_decides_nothing():
    clock = iter(range(100_000))
    search = ThroughputSearch(256, clock=lambda: next(clock))
    for _ in range(1000):
        search.finished(TOKENS, full=False)
    assert search.limit == ThroughputSearch(256).limit


class Fixed(ThroughputSearch):
    """A search that found its limit."""

    def __init__(self, limit):
        super().__init__(limit, limit)

    def finished(self, tokens, *, full):
        pass


async def hold(slots, order, begun, conversations=3):
    for _ in range(conversations):
        await slots.take(order)
        begun.append(order)
        await asyncio.sleep(0.001)
        slots.done(TOKENS)


async def test_the_readings_that_began_first_finish_first():
    slots, begun = Slots(Fixed(2)), []
    await asyncio.gather(*(hold(slots, order, begun) for order in range(20)))
    ended = [max(i for i, order in enumerate(begun) if order == reading) for reading in range(20)]
    assert len(begun) == 60
    assert all(abs(place - reading * 3) <= 8 for reading, place in enumerate(ended)), ended


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_never_more_than_the_limit_whatever_is_cancelled(limit, asked):
    async def check():
        slots, inside, most = Slots(Fixed(limit)), 0, 0

        async def one(order):
            nonlocal inside, most
            await slots.take(order)
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1
                slots.done(0)

        tasks = [asyncio.create_task(one(order)) for order, _ in asked]
        await asyncio.sleep(0)
        for task, (_, cancelled) in zip(tasks, asked, strict=True):
            if cancelled:
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert most <= limit and inside == 0
        await asyncio.wait_for(asyncio.gather(*(one(0) for _ in range(limit + 1))), 30)  # no slot was lost

    asyncio.run(check())
