"""An engine with what its readings share: how many conversations it takes at once, and a meter of its time."""

import asyncio
import threading
from dataclasses import dataclass, field
from itertools import count

from infra.cluster.concurrency import EngineTimeMeter, Slots, ThroughputSearch
from infra.engines.supervised import SupervisedEngine
from infra.readers import ReaderSpec
from memagent.conversations import Generate
from memagent.engine import Completion, Sampling
from memagent.errors import MemagentError


class LoadedEngine:
    """The engine of a worker, or of a server for all that it reads. It is restarted when it dies.

    It belongs to the event loop in which it was started.
    """

    def __init__(self, reader: ReaderSpec, inflight: int, *, local: bool) -> None:
        """Make the engine of a reader, not yet started.

        Args:
            reader: the policy.
            inflight: conversations that it is sent at once, at most.
            local: whether it is on this machine alone, where commands share a warm engine.
        """
        make = reader.make_local_engine if local else reader.make_engine
        self._engine = SupervisedEngine(make, reader.engine_restarts, reader.watchdog_seconds)
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

    def new_client(self, drained: asyncio.Event | None = None) -> "EngineClient":
        """Return what a new reading asks the engine by; readings that began earlier are served first.

        Once `drained` is set, it begins no conversation any more.
        """
        return EngineClient(
            self._engine.generate, self._time, self._slots, order=next(self._order), drained=drained or asyncio.Event()
        )


class Stopped(Exception):
    """No conversation is begun any more. The reading goes on from its last logged one in another run."""


class EngineClient:
    """Sends the conversations of one reading to the engine, and sums up their cost."""

    def __init__(
        self, generate: Generate, shared: EngineTimeMeter, slots: Slots, *, order: int, drained: asyncio.Event
    ) -> None:
        self._generate = generate
        self._shared = shared
        self._slots = slots
        self._order = order
        self._drained = drained
        self.spent = 0.0
        """The reading's share of the engine's time, in seconds."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.engine.Engine`. Raises Stopped besides: no conversation is begun any more."""
        await self._slots.take(self._order)
        tokens = 0
        try:
            if self._drained.is_set():
                raise Stopped
            began = self._shared.begin()
            try:
                completion = await self._generate(ids, sampling, priority)
            finally:
                self.spent += self._shared.end(began)
            tokens = completion.prompt_tokens + len(completion.ids)
            return completion
        finally:
            self._slots.done(tokens)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine of this process that has started, for one pass, which another thread can end."""

    reader: ReaderSpec
    """The policy that the engine has loaded."""
    engine: LoadedEngine
    loop: asyncio.AbstractEventLoop
    """In which the engine was started; runs in another thread than the pass."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End the pass; what was answered stays. From any thread, before the pass or during it."""
        self._stopped.set()

    def check(self) -> None:
        """Raise MemagentError if the pass was stopped."""
        if self._stopped.is_set():
            raise MemagentError("the run was stopped; its answers are kept, and asking again resumes it")
