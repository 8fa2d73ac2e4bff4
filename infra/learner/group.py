"""The ranks of a learner as Ray actors: what each takes from a store and puts there, and all of them together."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from infra.cluster.session import raised
from infra.learner.checkpoint import INDEX, read_index
from infra.learner.rank import Learner, Rank
from infra.learner.weights import Rendezvous, memory_folder
from infra.models import local_folder
from infra.readers import ReaderSpec
from infra.store.location import Store
from infra.system.processes import usable_cores
from memagent.config import PoolConfig
from memagent.errors import ConfigError, MemagentError, TrainingError
from memagent.rl.config import LossRecipe, Recipe
from memagent.rl.loss import kept_tokens
from memagent.rl.packing import Packed, PackedItem, balance, gradient_shares, items, pack, units
from memagent.rl.trajectory import Group, minibatches

if TYPE_CHECKING:
    from infra.cluster.placement import GpuSlots

P = ParamSpec("P")
T = TypeVar("T")
_LEAVING_SECONDS = 30.0
_LOSS_SECONDS = 15.0
"""Time until the loss of a rank is known, after another one failed for it."""


class RankActor(Learner):
    """A rank whose model and checkpoints are in a store, given by its URL and a path in it."""

    def __init__(self) -> None:
        """Set up; `begin` loads the model, once the address of the first rank is known."""
        self._uploads = ThreadPoolExecutor(1)
        self._upload: Future[None] | None = None

    def address(self) -> tuple[str, int]:
        """Return an address of this machine with a free port, as rendezvous."""
        import ray

        with socket.socket() as sock:
            sock.bind(("", 0))
            return ray.util.get_node_ip_address(), sock.getsockname()[1]

    def begin(self, reader: ReaderSpec, recipe: Recipe, index: int, address: str, port: int) -> None:
        """Load the model, which is fetched to this node if need be, and join the other ranks."""
        world = recipe.learner.world_size
        torch.set_num_threads(recipe.learner.threads or max(1, usable_cores() // world))
        super().__init__(str(local_folder(reader.folder)), recipe, Rank(index, world, address, port))

    def weights(self) -> dict[str, Any]:
        """Return the model's files, or those of its adapter, as references; empty on all ranks but the first."""
        import ray

        folder = memory_folder()
        try:
            if self._recipe.learner.weight_sync == "adapters":
                self.export_adapter(folder)
            else:
                self.export(folder)
            # Arrays: Ray maps them into the engines' processes, and copies bytes onto the heap of each.
            return {file.name: ray.put(np.fromfile(file, np.uint8)) for file in sorted(folder.iterdir())}
        finally:
            shutil.rmtree(folder)

    def meeting(self, engines: int) -> Rendezvous:
        """Return the rendezvous at which so many engine processes receive the current weights from the first rank."""
        return Rendezvous(*self.address(), 1 + engines, self.layout())

    def export_to(self, url: str, *parts: str, adapter: bool = False) -> None:
        """Write the model folder, or that of LoRA's factors.

        Raises:
            TrainingError: it cannot be written.
        """

        def files(folder: Path) -> list[Path]:
            (self.export_adapter if adapter else self.export)(folder)
            return sorted(folder.iterdir())

        _put(files, url, parts)

    def save(self, url: str, *parts: str) -> None:
        """Begin to write this rank's share of a checkpoint, while training goes on; `saved` waits for it.

        Raises:
            TrainingError: the one before it cannot be written.
        """
        self.saved()
        self._upload = self._uploads.submit(_put, self.snapshot().write, url, parts)

    def saved(self) -> None:
        """Wait until what `save` began is in the store.

        Raises:
            TrainingError: it cannot be written.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()

    def load_from(self, url: str, *parts: str) -> None:
        """Go on from a checkpoint, of which this rank fetches a share.

        Raises:
            TrainingError: it is incomplete, or of another model.
        """
        store = Store(url)
        with tempfile.TemporaryDirectory() as made:
            try:
                store.get_file(Path(made) / INDEX, *parts, INDEX)
                for name in read_index((Path(made) / INDEX).read_bytes()).files_of(self._rank.index, self._rank.world):
                    store.get_file(Path(made) / name, *parts, name)
            except (FileNotFoundError, ValueError) as error:
                raise TrainingError(f"checkpoint {'/'.join(parts)} is not whole: {error}") from error
            self.load(Path(made))


def _put(files: Callable[[Path], Iterable[Path]], url: str, parts: Sequence[str]) -> None:
    """Write the files that `files` makes in a folder into a store, in its order."""
    try:
        with tempfile.TemporaryDirectory() as made:
            for file in files(Path(made)):
                Store(url).put_file(file, *parts, file.name)
                file.unlink()
    except OSError as error:
        raise TrainingError(f"{'/'.join(parts)} cannot be written to {url}: {error}") from error


class RankLost(TrainingError):
    """A rank's process or node is gone: the ranks must be started again."""


class LearnerGroup:
    """A learner of any number of ranks."""

    def __init__(self, reader: ReaderSpec, recipe: Recipe, slots: "GpuSlots | None" = None) -> None:
        """Prepare a learner on GPUs of its own, or on `slots`, which it shares with engines.

        Each node fetches the folder of the model for itself.
        """
        self._reader, self._recipe, self._slots = reader, recipe, slots
        self._ranks: list[Any] = []

    async def start(self) -> None:
        """Start all ranks.

        Raises:
            UsageError: the model cannot be loaded.
        """
        import ray

        learner = self._recipe.learner
        actor = ray.remote(RankActor)
        options = [
            self._slots.rank(i, learner.cpus) if self._slots else {"num_cpus": learner.cpus, "num_gpus": learner.gpus}
            for i in range(learner.world_size)
        ]
        self._ranks = [actor.options(**option).remote() for option in options]
        await self.begin(self._reader, self._recipe)

    async def begin(self, reader: ReaderSpec, recipe: Recipe) -> None:
        """Load a model into all ranks, in place of what they have; `recipe` has as many ranks as were started.

        Raises:
            UsageError: the model cannot be loaded.
        """
        self._reader, self._recipe = reader, recipe
        address, port = (await self.call(RankActor.address))[0]
        await self._each("begin", [(reader, recipe, i, address, port) for i in range(recipe.learner.world_size)])

    async def restart(self) -> None:
        """Replace all ranks, which have the initial weights then."""
        self._kill()
        await self.start()

    async def learn(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """Take optimiser steps on a batch of groups with advantages; return the sums of each step over all ranks.

        Raises:
            TrainingError: a loss is not finite; the message names the minibatch.
            RankLost: a rank is gone; the weights are those of none of the steps.
        """
        recipe = self._recipe
        rollouts = list(minibatches(groups, recipe.learner.minibatch_prompts))
        power = _POWERS.get(recipe.loss.normaliser, 1.0)
        batches = [items(batch, power) for batch in rollouts]
        shares = [self._shares(batch) for batch in batches]
        # With one step per batch, the old log-probabilities are those of its own forward pass, and a teacher's readings
        # have none. What a mask leaves out must be known before, for the mean is over the rest.
        ahead = (len(batches) > 1 and not recipe.rollout.teacher) or recipe.loss.mask != "none"
        old = [await self._score(share) for share in shares] if ahead else [None] * len(batches)
        steps = []
        for number, (batch, share, before) in enumerate(zip(batches, shares, old, strict=True)):
            tokens = sum(len(item.conversation.response_ids) for item in batch)
            if before is not None and recipe.loss.mask != "none":
                tokens = _kept(share, before, recipe.loss)
            if recipe.loss.normaliser == "constant":
                tokens = recipe.loss.constant_tokens * len(rollouts[number])
            try:
                given = zip(share, before or repeat(None), strict=False)
                sums = await self._each("learn", [(rows, tokens, old) for rows, old in given])
            except RankLost:
                raise
            except TrainingError as error:
                raise TrainingError(f"minibatch {number + 1} of {len(batches)}: {error}") from error
            computed = sum(len(row.ids) for rows in share for row in rows)
            sampled = sum(item.conversation.tokens for item in batch)
            shown = {f"gradient/{n}": part for n, part in gradient_shares(rollouts[number], batch).items()}
            counts = {"trained_tokens": float(sampled), "computed_tokens": float(computed)}
            steps.append(_summed(sums) | counts | shown)
        return steps

    async def call(self, method: Callable[Concatenate[RankActor, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        """Call a method on all ranks, which take part together; return their results, by rank.

        Raises:
            RankLost: one of them is gone.
            MemagentError: what one of them raised.
        """
        return await self._each(method.__name__, [args] * len(self._ranks), **named)

    async def stop(self) -> None:
        """End all ranks."""
        from ray.exceptions import RayError

        # Do not wait for a rank that waits for a lost engine.
        with suppress(RayError, RankLost, TimeoutError):
            await asyncio.wait_for(self.call(RankActor.stop), _LEAVING_SECONDS)
        self._kill()

    def _kill(self) -> None:
        import ray

        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    async def _score(self, share: list[list[Packed]]) -> list[list[list[float]]]:
        return await self._each("score", [(rows,) for rows in share])

    async def _each(self, method: str, arguments: Sequence[tuple[Any, ...]], **named: Any) -> list[Any]:
        """Call all ranks, each with its own arguments; see `call`."""
        from ray.exceptions import RayActorError

        pairs = zip(self._ranks, arguments, strict=True)
        calls = [asyncio.ensure_future(getattr(rank, method).remote(*args, **named)) for rank, args in pairs]
        if not calls:
            return []
        try:
            _, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                # The ranks beside a lost one fail in their collectives, often before the loss is known.
                await asyncio.wait(calls, timeout=_LOSS_SECONDS)
        finally:
            for call in calls:
                call.cancel()  # those that have ended stay as they are
        errors = [error for call in calls if call.done() and not call.cancelled() and (error := call.exception())]
        if not errors:
            return [call.result() for call in calls]
        lost = next((error for error in errors if isinstance(error, RayActorError)), None)
        if lost is not None:
            raise RankLost(f"a rank of the learner is gone ({type(lost).__name__})") from lost
        error = errors[0]
        raise (raised(error) if isinstance(error, MemagentError) else error) from error

    def _shares(self, batch: Sequence[PackedItem]) -> list[list[Packed]]:
        learner = self._recipe.learner
        made = units(batch, learner.token_budget, share=learner.share_prefixes)
        bins = balance([unit.tokens for unit in made], learner.world_size, learner.token_budget)
        return [[pack([made[i] for i in bin_]) for bin_ in rank] for rank in bins]


_POWERS = {"root": 0.5, "trajectories": 0.0}
"""How the weight of a trajectory grows with its tokens, by normaliser (`memagent.rl.packing.items`)."""


def _kept(share: list[list[Packed]], old: list[list[list[float]]], recipe: LossRecipe) -> int:
    """Return the tokens that the mask leaves; at least one, as a mean is over something."""
    kept = 0.0
    for row, scores in zip(chain(*share), chain(*old), strict=True):
        given = torch.tensor(scores), torch.tensor(row.logprobs)
        kept += float(kept_tokens(*given, row.lengths, recipe).sum())
    return max(1, round(kept))


def check_room(recipe: Recipe, pool: PoolConfig | None) -> None:
    """Refuse a recipe that does not fit the Ray session: its actors would wait forever.

    `pool` are the engines beside it, if any.

    Raises:
        ConfigError: saying what is there and what to change.
    """
    import ray

    there = ray.cluster_resources()
    learner = recipe.learner
    engines = pool.max_size if pool else 0
    if pool and learner.gpus and not pool.gpus and recipe.engine.get("kind", "vllm") == "vllm":
        raise ConfigError(
            "the learner runs on GPUs, and its engines have none: set pool.gpus (to engine.tensor_parallel), or they "
            "would take the memory of the learner's GPUs"
        )
    gpus = (learner.world_size * learner.gpus, engines * pool.gpus if pool else 0.0)
    for name, wanted in (
        ("CPU", learner.world_size * learner.cpus + (engines * pool.cpus if pool else 0)),
        ("GPU", max(gpus) if learner.placement == "shared" else sum(gpus)),
    ):
        if wanted > there.get(name, 0.0):
            raise ConfigError(
                f"{learner.world_size} learner ranks and {engines} engines want {wanted:g} {name}s, and Ray has "
                f"{there.get(name, 0.0):g}. Lower learner.world_size, learner.{name.lower()}s, or pool.{name.lower()}s"
                + ("; or let them take turns: learner.placement=shared." if name == "GPU" else ".")
            )


def _summed(sums: Sequence[dict[str, float]]) -> dict[str, float]:
    same = ("gradient_norm", "lr")
    names = [name for name in dict.fromkeys(name for one in sums for name in one) if name not in same]
    total = {name: sum(one.get(name, 0.0) for one in sums) for name in names}
    return total | {name: sums[0][name] for name in same}
