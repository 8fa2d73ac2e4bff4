"""Learner and engines that take turns on the same GPUs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from infra.cluster.rollout_pool import RolloutPool
from infra.learner.group import LearnerGroup


class Turns:
    """Whose turn it is. With GPUs of their own (`shared` false) it is always everybody's."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool | None, *, shared: bool) -> None:
        self._learner, self._pool = learner, pool
        self._shared = shared and pool is not None
        self._depth = 0

    async def start(self) -> None:
        """Start both. An engine takes all the memory that it finds free, so a learner that shares it starts first."""
        if self._shared and self._pool is not None:
            await self._learner.start()
            await self._learner.offload()
            await self._pool.start()
            return
        await asyncio.gather(self._learner.start(), *([self._pool.start()] if self._pool else []))

    @asynccontextmanager
    async def learners(self) -> AsyncIterator[None]:
        """It is the learner's turn: the engines sleep. May be nested."""
        if not self._shared or self._pool is None or self._depth:
            yield
            return
        await self._pool.sleep()
        await self._learner.reload()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            await self._learner.offload()
            await self._pool.wake()
