"""An engine with what its readings share: how many conversations it takes at once, and a meter of its time."""

from itertools import count

from infra.cluster.concurrency import EngineTimeMeter, Slots, ThroughputSearch
from infra.engines.supervised import SupervisedEngine
from infra.readers import ReaderSpec
from memagent.conversations import Generate
from memagent.engine import Completion, Sampling


class LoadedEngine:
    """The engine of a worker, or of a server for all that it reads. It is restarted when it dies.

    It belongs to the event loop in which it was started.
    """

    def __init__(self, reader: ReaderSpec, inflight: int) -> None:
        """Make the engine of a reader, not yet started.

        Args:
            reader: the policy.
            inflight: conversations that it is sent at once, at most.
        """
        self._engine = SupervisedEngine(reader.make_engine, reader.engine_restarts, reader.watchdog_seconds)
        self._time = EngineTimeMeter()
        self._slots = Slots(ThroughputSearch(inflight))
        self._order = count()

    @property
    def deaths(self) -> int:
        """How often it has died."""
        return self._engine.deaths

    async def start(self) -> None:
        """Load the model."""
        await self._engine.start()

    async def stop(self) -> None:
        """Free what the engine holds."""
        await self._engine.stop()

    def new_asker(self) -> "Asker":
        """Return what a new reading asks the engine by; readings that began earlier are served first."""
        return Asker(self._engine.generate, self._time, self._slots, next(self._order))


class Asker:
    """Sends the conversations of one reading to the engine, and sums up their cost."""

    def __init__(self, generate: Generate, shared: EngineTimeMeter, slots: Slots, order: int) -> None:
        self._generate = generate
        self._shared = shared
        self._slots = slots
        self._order = order
        self.spent = 0.0
        """The reading's share of the engine's time, in seconds."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.engine.Engine`."""
        await self._slots.take(self._order)
        began = self._shared.begin()
        tokens = 0
        try:
            completion = await self._generate(ids, sampling, priority)
            tokens = completion.prompt_tokens + len(completion.ids)
            return completion
        finally:
            self.spent += self._shared.end(began)
            self._slots.done(tokens)
