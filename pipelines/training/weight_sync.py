"""Weight sync from the learner to the rollout engines."""

import asyncio
from collections.abc import Callable, Sequence

from infra.cluster.rollout_pool import RolloutPool, Weights
from infra.cluster.session import raised
from infra.learner.group import LearnerGroup, RankLost
from memagent.errors import TrainingError


class WeightSync:
    """Copies the learner's current weights to the engines: as files, or by broadcast."""

    def __init__(self, learner: LearnerGroup, pool: RolloutPool, kind: str, version: Callable[[], str]) -> None:
        """`version` returns the name of the current weights; `kind` is `LearnerRecipe.weight_sync`."""
        self._learner, self._pool = learner, pool
        self._version = version
        self._broadcasts = kind == "broadcast"
        self._lock = asyncio.Lock()
        if self._broadcasts:
            pool.renew = self._renew

    async def collect(self) -> Weights | None:
        """Return the learner's weights as files, for `give`; None if they are broadcast."""
        return None if self._broadcasts else await self._learner.weights(self._version())

    async def give(self, weights: Weights | None) -> None:
        """Update all engines; readings in progress go on with the new weights from their next conversation.

        Raises:
            TrainingError: an engine was not updated.
        """
        if weights is None:
            await self._broadcast(self._pool.places)
        else:
            await self._pool.update(weights)

    async def _renew(self, place: int) -> None:
        await self._broadcast([place])

    async def _broadcast(self, places: Sequence[int]) -> None:
        from ray.exceptions import RayError

        async with self._lock:
            rendezvous = await self._learner.meeting(self._pool.processes(places))
            version = self._version()  # a learner step in progress has ended by now
            try:
                await asyncio.gather(self._learner.send(rendezvous), self._pool.receive(rendezvous, version, places))
            except RankLost:
                raise
            except (RayError, TrainingError) as error:
                cause = raised(error)
                raise TrainingError(
                    f"the weights of {version} did not reach the engines ({type(cause).__name__}: {cause}). "
                    "Run the same command again: it resumes from the last checkpoint."
                ) from error
