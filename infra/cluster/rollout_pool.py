"""Rollout workers: Ray actors with an engine each; they use the same reading as bulk answering."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from infra.cluster.placement import EngineActor, GpuSlots, start_engine
from infra.cluster.session import raised
from infra.engines.supervised import SupervisedEngine
from infra.learner.weights import NodeWeights
from infra.readers import ReaderSpec
from memagent.config import PoolConfig
from memagent.errors import EngineDied, EngineError, TrainingError
from memagent.reading.conversations import ReadingSpec
from memagent.reading.engine import Completion, Engine, Sampling
from memagent.rl.config import Recipe
from memagent.rl.dataset import Task
from memagent.rl.reward import Reward, check_rewards
from memagent.rl.rollout import roll_out_group
from memagent.rl.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from infra.learner.weights import FileContent, Rendezvous

T = TypeVar("T")
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


class RolloutWorker:
    """One engine. An async actor: it works on all groups that it is sent at once."""

    def __init__(self, reader: ReaderSpec, recipe: Recipe) -> None:
        """Set up; `start` starts the engine."""
        self._reader, self._recipe = reader, recipe
        self._weights = NodeWeights()
        self._version = ""
        self._lasting = True
        """Whether a restarted engine has the current weights."""
        prompts, config, rollout = reader.scheme.prompts, reader.scheme.config, recipe.rollout
        sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p}
        self._sampled = ReadingSpec(prompts, config.model_copy(update=sampling))
        self._greedy = ReadingSpec(prompts, config.model_copy(update={"temperature": 0.0}))
        self._keep = rollout.max_off_policy_steps > 0
        self._engine = SupervisedEngine(self._make, reader.engine_restarts)

    async def start(self) -> None:
        """Start the engine. Raises ConfigError: a reward cannot be imported on this node."""
        check_rewards(self._recipe.reward.weights)
        await self._engine.start()

    async def update(self, version: str, key: str, names: Sequence[str], *files: "FileContent") -> None:
        """Switch to other weights. Groups in progress go on, with them from the next conversation at the latest."""
        folder = await asyncio.to_thread(self._weights.take, key, zip(names, files, strict=True))
        self._version = version
        try:
            await self._engine.engine.update(str(folder), version, keep=self._keep)  # type: ignore[attr-defined]
        except EngineDied:
            await self._engine.restart()

    async def receive(self, meeting: "Rendezvous", first: int, version: str) -> None:
        """Switch to broadcast weights, as receiver number `first`. Groups in progress go on with them."""
        self._lasting = False
        self._version = version
        await self._engine.engine.receive(meeting, first, version, keep=self._keep)  # type: ignore[attr-defined]

    async def read(self, task: Task, size: int, *, greedy: bool) -> Group:
        """Read a task `size` times concurrently."""
        scheme = self._greedy if greedy else self._sampled
        try:
            return await roll_out_group(task, size, scheme, generate=self._generate, pay=self._recipe.reward)
        except EngineDied:
            if self._lasting:
                raise
            import ray

            ray.actor.exit_actor()  # the pool replaces this worker, and sends the weights to the new one
            raise

    async def sleep(self) -> None:
        """Let the engine give its GPU to the learner; no group may be in progress."""
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
        if self._recipe.learner.weight_sync == "adapters":
            engine = self._reader.make_engine()
            engine.use_adapter(str(folder), self._version)  # type: ignore[attr-defined]
            return engine
        reader = copy(self._reader)
        reader.folder = str(folder)
        return reader.make_engine()


class RolloutPool:
    """A pool of workers. A lost worker is replaced, and its groups are sampled again."""

    def __init__(self, reader: ReaderSpec, recipe: Recipe, pool: PoolConfig, slots: GpuSlots | None = None) -> None:
        """Set up `pool.max_size` workers.

        Args:
            reader: its model and engine.
            recipe: how they sample, and what is paid.
            pool: the engines.
            slots: the GPUs that they share with a learner; None: their own.
        """
        self._reader, self._recipe, self._pool, self._slots = reader, recipe, pool, slots
        self._size = pool.max_size
        self._engines: list[EngineActor] = []
        self._mending = asyncio.Lock()
        self._load = [0] * self._size
        self._weights: Weights | None = None
        self._processes = reader.engine_config.tensor_parallel
        self.renew: Callable[[int], Awaitable[None]] | None = None
        """Sends the current weights to a replacement engine, if weights are broadcast."""
        self.replaced = 0
        """Workers that were lost."""

    async def start(self) -> None:
        """Start all engines."""
        self._engines = [self._new(place) for place in self.places]
        await self.call(RolloutWorker.start)

    async def update(self, weights: Weights) -> None:
        """Send other weights to all engines."""
        self._weights = weights
        await asyncio.gather(*(self._give(place) for place in self.places))

    async def call(self, method: Callable[[RolloutWorker], Awaitable[T]]) -> list[T]:
        """Call a method of all workers; return their results, by place."""
        calls = (getattr(engine.actor, method.__name__).remote() for engine in self._engines)
        return list(await asyncio.gather(*calls))

    @property
    def places(self) -> range:
        """Numbers of the engines."""
        return range(self._size)

    def processes(self, places: Sequence[int]) -> int:
        """Return the number of processes of these engines."""
        return len(places) * self._processes

    async def receive(self, meeting: "Rendezvous", version: str, places: Sequence[int]) -> None:
        """Let these engines receive the weights that are broadcast at a rendezvous."""
        calls = (
            self._engines[place].actor.receive.remote(meeting, 1 + i * self._processes, version)
            for i, place in enumerate(places)
        )
        await asyncio.gather(*calls)

    async def group(self, task: Task, size: int, *, greedy: bool = False) -> Group:
        """Sample the rollouts of a task on the least loaded worker; if that is lost, or fails, on another one.

        Raises TrainingError: it failed several times over.
        """
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        last: Exception | None = None
        for _ in range(_TRIES):
            place = min(self.places, key=self._load.__getitem__)
            engine = self._engines[place]
            self._load[place] += 1
            answer = engine.actor.read.remote(task, size, greedy=greedy)
            try:
                try:
                    done: Group = await answer
                    return done
                except asyncio.CancelledError:
                    ray.cancel(answer)  # or its engine would go on
                    raise
                except RayActorError:
                    await self._replace(place, engine)
                    raise
                finally:
                    self._load[place] -= 1
            except (RayActorError, RayTaskError, EngineError) as error:
                last = error
        said = raised(last) if last else ""
        raise TrainingError(f"task {task.sample_id} failed {_TRIES} times: {said}") from last

    async def greedy(self, tasks: Sequence[Task]) -> AsyncIterator[Group]:
        """Read tasks once each, greedily; yield them as they come.

        A task that cannot be read counts as wrong: its group has a trajectory without conversations and reward 0.

        Raises TrainingError: no task can be read.
        """
        failed = 0

        async def read(task: Task) -> Group:
            nonlocal failed
            try:
                return await self.group(task, 1, greedy=True)
            except TrainingError as error:
                _log.warning("%s; it counts as wrong", error)
                failed += 1
                if failed == len(tasks):
                    raise
                return Group(task.sample_id, (Trajectory(task.sample_id, 0, (), Reward(0.0, 0.0, 0.0)),))

        for done in asyncio.as_completed([read(task) for task in tasks]):
            yield await done

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(engine.actor.stop.remote() for engine in self._engines), return_exceptions=True)
        for engine in self._engines:
            engine.end()
        self._engines = []

    async def _replace(self, place: int, lost: EngineActor) -> None:
        async with self._mending:
            if self._engines[place] is not lost:
                return  # another group noticed it first
            self.replaced += 1
            lost.end()
            self._engines[place] = self._new(place)
            await self._engines[place].actor.start.remote()
            await (self.renew(place) if self.renew else self._give(place))

    async def _give(self, place: int) -> None:
        if self._weights is not None:
            version, key, files = self._weights.version, self._weights.key, self._weights.files
            await self._engines[place].actor.update.remote(version, key, list(files), *files.values())

    def _new(self, place: int) -> EngineActor:
        slot = self._slots.engine(place, self._pool) if self._slots else None
        return start_engine(RolloutWorker, (self._reader, self._recipe), self._pool, slot, max_concurrency=_AT_ONCE)
