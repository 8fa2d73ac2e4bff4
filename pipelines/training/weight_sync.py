"""The way of the weights from a learner to the engines."""

import asyncio
from collections.abc import Callable, Sequence

from infra.cluster.rollout_pool import RolloutPool
from infra.cluster.session import raised
from infra.learner.group import LearnerGroup
from memagent.errors import TrainingError


class WeightSync:
    """Hands the learner's present weights to the engines: as files, or by broadcast."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool, kind: str, version: Callable[[], str]) -> None:
        """`version` names the present weights; `kind` is `LearnerRecipe.weight_sync`."""
        self._learner, self._pool = learner, pool
        self._version = version
        self._broadcasts = kind == "broadcast"
        self._one = asyncio.Lock()
        if self._broadcasts:
            pool.renew = self._renew

    async def give(self) -> None:
        """Give all engines the present weights; none may be reading.

        Raises:
            TrainingError: they did not reach all of them.
        """
        if self._broadcasts:
            await self._broadcast(self._pool.places)
        else:
            await self._pool.update(await self._learner.weights(self._version()))

    async def _renew(self, place: int) -> None:
        await self._broadcast([place])

    async def _broadcast(self, places: Sequence[int]) -> None:
        from ray.exceptions import RayError

        async with self._one:
            meeting = await self._learner.meeting(self._pool.processes(places))
            version = self._version()  # a step that was being learnt is done by now
            try:
                await asyncio.gather(self._learner.send(meeting), self._pool.receive(meeting, version, places))
            except (RayError, TrainingError) as error:
                cause = raised(error)
                raise TrainingError(
                    f"the weights of {version} did not reach the engines ({type(cause).__name__}: {cause}). "
                    "Give the same command again: it goes on from the last checkpoint."
                ) from error
