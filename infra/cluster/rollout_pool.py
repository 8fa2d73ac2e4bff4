"""Rollout workers: Ray actors with an engine each; they use the same reading as bulk answering."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from infra.cluster.placement import EngineActor, GpuSlots, start_engine
from infra.cluster.session import raised
from infra.engines.supervised import SupervisedEngine
from infra.learner.weights import NodeWeights
from infra.readers import ReaderSpec
from memagent.config import PoolConfig
from memagent.errors import EngineDied, EngineError, TrainingError
from memagent.reading.conversations import ReadingSpec
from memagent.reading.engine import Completion, Engine, Sampling
from memagent.rl.dataset import Task
from memagent.rl.reward import Reward, check_rewards
from memagent.rl.rollout import RewardConfig, roll_out_group
from memagent.rl.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from infra.learner.weights import Rendezvous

_log = logging.getLogger("memagent.training")
_AT_ONCE = 10_000
_TRIES = 3
"""Attempts to sample a group before it is given up."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the policy: its files as references into Ray's object store."""

    version: str
    files: dict[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names these files: after a restart the same version may differ by rounding."""


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """How rollouts are sampled and rewarded."""

    reader: ReaderSpec
    reward: RewardConfig
    temperature: float
    top_p: float


class RolloutWorker:
    """One engine. An async actor: it works on all groups that it is sent at once."""

    def __init__(self, spec: RolloutSpec) -> None:
        """Set up; `start` starts the engine."""
        reader = self._reader = spec.reader
        self._pay = spec.reward
        self._weights = NodeWeights()
        self._version = ""
        self._lasting = True
        """Whether a restarted engine has the current weights."""
        scheme = reader.scheme
        sampled = scheme.config.model_copy(update={"temperature": spec.temperature, "top_p": spec.top_p})
        greedy = scheme.config.model_copy(update={"temperature": 0.0})
        self._sampled, self._greedy = ReadingSpec(scheme.prompts, sampled), ReadingSpec(scheme.prompts, greedy)
        self._engine = SupervisedEngine(self._make, reader.engine_restarts)

    async def start(self) -> None:
        """Start the engine.

        Raises:
            ConfigError: a reward cannot be imported on this node.
        """
        check_rewards(self._pay.weights)
        await self._engine.start()

    async def update(self, version: str, key: str, names: Sequence[str], *files: bytes) -> None:
        """Switch to other weights. Groups in progress go on with them from their next conversation."""
        folder = await asyncio.to_thread(self._weights.take, key, zip(names, files, strict=True))
        self._version = version
        try:
            await self._engine.engine.update(str(folder), version)  # type: ignore[attr-defined]
        except EngineDied:
            await self._engine.restart()

    async def receive(self, meeting: "Rendezvous", first: int, version: str) -> None:
        """Switch to broadcast weights, as receiver number `first`. Groups in progress go on with them."""
        self._lasting = False
        self._version = version
        await self._engine.engine.receive(meeting, first, version)  # type: ignore[attr-defined]

    async def group(self, task: Task, size: int) -> Group:
        """Sample `size` rollouts of one task concurrently."""
        return await self._read(task, size, self._sampled)

    async def greedy(self, task: Task) -> Group:
        """Read a task once, greedily."""
        return await self._read(task, 1, self._greedy)

    async def sleep(self) -> None:
        """Let the engine give its GPU to a learner; no group may be in progress."""
        await self._engine.engine.sleep()  # type: ignore[attr-defined]

    async def wake(self) -> None:
        """Undo `sleep`."""
        await self._engine.engine.wake()  # type: ignore[attr-defined]

    async def deaths(self) -> int:
        """Return how often the engine died."""
        return self._engine.deaths

    async def stop(self) -> None:
        """End the engine and clear its weights away."""
        await self._engine.stop()
        self._weights.leave()

    async def _read(self, task: Task, size: int, scheme: ReadingSpec) -> Group:
        try:
            return await roll_out_group(task, size, scheme, generate=self._generate, pay=self._pay)
        except EngineDied:
            if self._lasting:
                raise
            import ray

            ray.actor.exit_actor()  # the pool replaces this worker, and sends the weights to the new one
            raise

    async def _generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        # Broadcast weights are not on disk: a restarted engine would use the initial ones.
        engine = self._engine if self._lasting else self._engine.engine
        version = self._version
        completion = await engine.generate(ids, sampling, priority)
        # An engine that was started with these weights knows no version.
        return completion if completion.weight_version else replace(completion, weight_version=version)

    def _make(self) -> Engine:
        # A replacement must not use the initial weights of the training.
        folder = self._weights.folder
        if folder is None:
            return self._reader.make_engine()
        reader = copy(self._reader)
        reader.folder = str(folder)
        return reader.make_engine()


class RolloutPool:
    """A pool of workers. A lost worker is replaced, and its groups are sampled again."""

    def __init__(self, spec: RolloutSpec, pool: PoolConfig, slots: GpuSlots | None = None) -> None:
        """Set up `pool.max_size` workers.

        Args:
            spec: how they sample.
            pool: the engines.
            slots: the GPUs that they share with a learner; None: their own.
        """
        self._spec = spec
        self._slots = slots
        self._size = pool.max_size
        self._pool = pool
        self._engines: list[EngineActor] = []
        self._mending = asyncio.Lock()
        self._workers: list[Any] = []
        self._load: list[int] = []
        self._weights: Weights | None = None
        self._processes = spec.reader.engine_config.tensor_parallel
        self.renew: Callable[[int], Awaitable[None]] | None = None
        """Sends the current weights to a replacement engine, if weights are broadcast."""
        self.failed = 0
        """Groups that had to be sampled again."""
        self.replaced = 0
        """Workers that were lost."""

    async def start(self) -> None:
        """Start all engines."""
        self._engines = [self._new(place) for place in range(self._size)]
        self._workers = [engine.actor for engine in self._engines]
        self._load = [0] * self._size
        await asyncio.gather(*(worker.start.remote() for worker in self._workers))

    async def update(self, weights: Weights) -> None:
        """Send other weights to all engines."""
        self._weights = weights
        await asyncio.gather(*(self._give(place) for place in range(self._size)))

    async def sleep(self) -> None:
        """Let all engines give their GPUs to the learner; no group may be in progress."""
        await asyncio.gather(*(worker.sleep.remote() for worker in self._workers))

    async def wake(self) -> None:
        """Undo `sleep`."""
        await asyncio.gather(*(worker.wake.remote() for worker in self._workers))

    @property
    def places(self) -> range:
        """Numbers of the engines."""
        return range(self._size)

    def processes(self, places: Sequence[int]) -> int:
        """Return the number of processes of these engines."""
        return len(places) * self._processes

    async def receive(self, meeting: "Rendezvous", version: str, places: Sequence[int]) -> None:
        """Let these engines receive the weights that are broadcast at a rendezvous."""
        firsts = (1 + i * self._processes for i in range(len(places)))
        calls = (
            self._workers[place].receive.remote(meeting, first, version)
            for place, first in zip(places, firsts, strict=True)
        )
        await asyncio.gather(*calls)

    async def group(self, task: Task, size: int) -> Group:
        """Sample the rollouts of a task on the least loaded worker.

        Raises:
            TrainingError: it failed several times over.
        """
        return await self._tried("group", task, size)

    async def greedy(self, tasks: Sequence[Task]) -> AsyncIterator[Group]:
        """Read tasks once each, greedily; yield them as they come.

        A task that cannot be read counts as wrong: its group has a trajectory without conversations and reward 0.

        Raises:
            TrainingError: no task can be read.
        """
        running = [asyncio.ensure_future(self._greedy(task)) for task in tasks]
        failed = 0
        for done in asyncio.as_completed(running):
            group, error = await done
            failed += error is not None
            if error is not None:
                _log.warning("%s; it counts as wrong", error)
                if failed == len(tasks):
                    raise error
            yield group

    async def _greedy(self, task: Task) -> tuple[Group, TrainingError | None]:
        try:
            return await self._tried("greedy", task), None
        except TrainingError as error:
            return Group(task.sample_id, (Trajectory(task.sample_id, 0, (), Reward(0.0, 0.0, 0.0)),)), error

    async def deaths(self) -> int:
        """Return how often engines died."""
        return sum(await asyncio.gather(*(worker.deaths.remote() for worker in self._workers)))

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(worker.stop.remote() for worker in self._workers), return_exceptions=True)
        for engine in self._engines:
            engine.end()
        self._workers, self._engines = [], []

    async def _tried(self, method: str, task: Task, *args: Any) -> Group:
        last: Exception | None = None
        for _ in range(_TRIES):
            try:
                done: Group = await self._on_a_worker(method, task, *args)
                return done
            except _lost() as error:
                last = error
                self.failed += 1
        said = raised(last) if last else ""
        raise TrainingError(f"task {task.sample_id} failed {_TRIES} times: {said}") from last

    async def _on_a_worker(self, method: str, *args: Any) -> Any:
        import ray
        from ray.exceptions import RayActorError

        place = min(range(self._size), key=self._load.__getitem__)
        worker = self._workers[place]
        self._load[place] += 1
        answer = getattr(worker, method).remote(*args)
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)  # or its engine would go on
            raise
        except RayActorError:
            await self._replace(place, worker)
            raise
        finally:
            self._load[place] -= 1

    async def _replace(self, place: int, lost: Any) -> None:
        async with self._mending:
            if self._workers[place] is not lost:
                return  # another group noticed it first
            self.replaced += 1
            self._engines[place].end()
            self._engines[place] = self._new(place)
            self._workers[place] = self._engines[place].actor
            await self._workers[place].start.remote()
            await (self.renew(place) if self.renew else self._give(place))

    async def _give(self, place: int) -> None:
        if self._weights is not None:
            files = self._weights.files
            await self._workers[place].update.remote(
                self._weights.version, self._weights.key, list(files), *files.values()
            )

    def _new(self, place: int) -> EngineActor:
        slot = self._slots.engine(place, self._pool) if self._slots else None
        return start_engine(RolloutWorker, (self._spec,), self._pool, slot, max_concurrency=_AT_ONCE)


def _lost() -> tuple[type[Exception], ...]:
    from ray.exceptions import RayActorError, RayTaskError

    return (RayActorError, RayTaskError, EngineError)
