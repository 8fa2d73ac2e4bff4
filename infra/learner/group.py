"""The ranks of a learner, as Ray actors."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.cluster.rollout_pool import Weights
from infra.cluster.session import raised
from infra.learner.weight_broadcast import memory_folder
from infra.processes import usable_cores
from infra.store import Store
from memagent.config import PoolConfig
from memagent.errors import ConfigError, MemagentError, TrainingError
from memagent.rl.config import Recipe
from memagent.rl.packing import Item, Packed, balance, items, pack, units
from memagent.rl.trajectory import Group, minibatches

if TYPE_CHECKING:
    from infra.learner.weight_broadcast import Rendezvous

_LEAVING_SECONDS = 30.0
_FILES = ("weights", "exp_avg", "exp_avg_sq")


class RankActor:
    """One rank in a process of its own."""

    def address(self) -> tuple[str, int]:
        """Return an address of this machine with a free port, as rendezvous."""
        import ray

        with socket.socket() as sock:
            sock.bind(("", 0))
            return ray.util.get_node_ip_address(), sock.getsockname()[1]

    def begin(self, model: str, recipe: Recipe, index: int, address: str, port: int) -> None:
        """Load the model and join the other ranks."""
        import torch

        from infra.learner.rank import Learner, Rank

        world = recipe.learner.world_size
        torch.set_num_threads(recipe.learner.threads or max(1, usable_cores() // world))
        self._learner = Learner(model, recipe, Rank(index, world, address, port))

    def score(self, rows: Sequence[Packed]) -> list[list[float]]:
        """See `Learner.score`."""
        return self._learner.score(rows)

    def learn(self, rows: Sequence[Packed], tokens: int, old: Sequence[list[float]] | None) -> dict[str, float]:
        """See `Learner.learn`."""
        return self._learner.learn(rows, tokens, old)

    def weights(self) -> dict[str, Any]:
        """Return the model's files as references; empty on all ranks but the first."""
        import ray

        folder = memory_folder()
        try:
            self._learner.export(folder, as_trained=True)
            return {file.name: ray.put(file.read_bytes()) for file in sorted(folder.iterdir())}
        finally:
            shutil.rmtree(folder)

    def meeting(self, engines: int) -> "Rendezvous":
        """Return the rendezvous at which so many engine processes receive the current weights."""
        from infra.learner.weight_broadcast import Rendezvous

        return Rendezvous(*self.address(), 1 + engines, self._learner.layout())

    def send(self, meeting: "Rendezvous") -> None:
        """See `Learner.send`."""
        self._learner.send(meeting)

    def export(self, url: str, *parts: str) -> None:
        """Write the model folder into a store."""
        with tempfile.TemporaryDirectory() as made:
            self._learner.export(Path(made))
            _upload(Path(made), Store(url), parts)

    def export_adapter(self, url: str, *parts: str) -> None:
        """Write the adapter folder into a store."""
        with tempfile.TemporaryDirectory() as made:
            self._learner.export_adapter(Path(made))
            _upload(Path(made), Store(url), parts)

    def save(self, url: str, *parts: str) -> None:
        """Write a checkpoint into a store."""
        with tempfile.TemporaryDirectory() as made:
            self._learner.save(Path(made))
            _upload(Path(made), Store(url), parts)

    def load(self, url: str, *parts: str) -> None:
        """Go on from a checkpoint in a store."""
        store = Store(url)
        with tempfile.TemporaryDirectory() as made:
            for name in ("learner.json", *(f"{part}.safetensors" for part in _FILES)):
                try:
                    store.get_file(Path(made) / name, *parts, name)
                except FileNotFoundError as error:
                    raise TrainingError(f"checkpoint {'/'.join(parts)} lacks {name}") from error
            self._learner.load(Path(made))

    def stop(self) -> None:
        """Leave the process group."""
        self._learner.stop()


class LearnerGroup:
    """A learner of any number of ranks."""

    def __init__(self, model: str, recipe: Recipe) -> None:
        """Prepare a learner of the model folder `model`."""
        self._model, self._recipe = model, recipe
        self._ranks: list[Any] = []

    async def start(self) -> None:
        """Start all ranks.

        Raises:
            UsageError: the model cannot be loaded.
        """
        import ray

        learner = self._recipe.learner
        actor = ray.remote(RankActor).options(num_cpus=learner.cpus, num_gpus=learner.gpus)
        self._ranks = [actor.remote() for _ in range(learner.world_size)]
        address, port = await self._ranks[0].address.remote()
        await self._all("begin", [(self._model, self._recipe, i, address, port) for i in range(learner.world_size)])

    async def learn(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """Take optimiser steps on a batch of groups with advantages; return the sums of each step over all ranks.

        Raises:
            TrainingError: a loss is not finite; the message names the minibatch.
        """
        recipe = self._recipe
        batches = [items(one) for one in minibatches(groups, recipe.learner.minibatch_prompts)]
        sizes = [len(one) for one in minibatches(groups, recipe.learner.minibatch_prompts)]
        shares = [self._shares(batch) for batch in batches]
        # With one step per batch, the old log-probabilities are those of its own forward pass.
        old = [await self._score(share) for share in shares] if len(batches) > 1 else [None] * len(batches)
        steps = []
        for number, (batch, share, before) in enumerate(zip(batches, shares, old, strict=True)):
            tokens = sum(len(item.conversation.response_ids) for item in batch)
            divisor = recipe.loss.constant_tokens * sizes[number] if recipe.loss.normaliser == "constant" else tokens
            try:
                sums = await self._all(
                    "learn", [(rows, divisor, before[i] if before else None) for i, rows in enumerate(share)]
                )
            except TrainingError as error:
                raise TrainingError(f"minibatch {number + 1} of {len(batches)}: {error}") from error
            steps.append(_summed(sums) | {"trained_tokens": float(sum(item.conversation.tokens for item in batch))})
        return steps

    async def weights(self, version: str) -> Weights:
        """Return the current weights for engines."""
        files = await self._all("weights", [()] * len(self._ranks))
        return Weights(version, files[0])

    async def meeting(self, engines: int) -> "Rendezvous":
        """Return where so many engine processes are given the present weights, once what is learnt now is done."""
        found: Rendezvous = await self._ranks[0].meeting.remote(engines)
        return found

    async def send(self, meeting: "Rendezvous") -> None:
        """Broadcast the current weights.

        Raises:
            TrainingError: an engine did not come, or was lost.
        """
        await self._all("send", [(meeting,)] * len(self._ranks))

    async def export(self, store: Store, *parts: str) -> None:
        """Write the model folder into a store."""
        await self._to_store("export", store, parts)

    async def export_adapter(self, store: Store, *parts: str) -> None:
        """Write LoRA's factors into a store, as a folder that PEFT loads."""
        await self._to_store("export_adapter", store, parts)

    async def save(self, store: Store, *parts: str) -> None:
        """Write a checkpoint into a store.

        Raises:
            TrainingError: it cannot be written.
        """
        await self._to_store("save", store, parts)

    async def load(self, store: Store, *parts: str) -> None:
        """Go on from a checkpoint in a store.

        Raises:
            TrainingError: it is incomplete, or of another model.
        """
        await self._all("load", [(store.url, *parts)] * len(self._ranks))

    async def stop(self) -> None:
        """End all ranks."""
        import ray

        leaving = [asyncio.ensure_future(_left(rank)) for rank in self._ranks]
        if leaving:
            # Do not wait for a rank that waits for a lost engine.
            await asyncio.wait(leaving, timeout=_LEAVING_SECONDS)
        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    async def _to_store(self, method: str, store: Store, parts: tuple[str, ...]) -> None:
        try:
            await self._all(method, [(store.url, *parts)] * len(self._ranks))
        except OSError as error:
            raise TrainingError(f"{'/'.join(parts)} cannot be written to {store.url}: {raised(error)}") from error

    async def _score(self, share: list[list[Packed]]) -> list[list[list[float]]]:
        scores: list[list[list[float]]] = await self._all("score", [(rows,) for rows in share])
        return scores

    async def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = (getattr(rank, method).remote(*args) for rank, args in zip(self._ranks, arguments, strict=True))
        try:
            return list(await asyncio.gather(*calls))
        except MemagentError as error:
            raise raised(error) from error

    def _shares(self, batch: Sequence[Item]) -> list[list[Packed]]:
        learner = self._recipe.learner
        made = units(batch, learner.token_budget, share=learner.share_prefixes)
        bins = balance([unit.tokens for unit in made], learner.world_size, learner.token_budget)
        return [[pack([made[i] for i in bin_]) for bin_ in rank] for rank in bins]


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
    for name, wanted in (
        ("CPU", learner.world_size * learner.cpus + (engines * pool.cpus if pool else 0)),
        ("GPU", learner.world_size * learner.gpus + (engines * pool.gpus if pool else 0)),
    ):
        if wanted > there.get(name, 0.0):
            raise ConfigError(
                f"{learner.world_size} learner ranks and {engines} engines want {wanted:g} {name}s, and Ray has "
                f"{there.get(name, 0.0):g}. Lower learner.world_size, learner.{name.lower()}s, or pool.{name.lower()}s."
            )


async def _left(rank: Any) -> None:
    from ray.exceptions import RayError

    with suppress(RayError):
        await rank.stop.remote()


def _summed(sums: Sequence[dict[str, float]]) -> dict[str, float]:
    same = ("gradient_norm", "lr")
    names = [name for name in dict.fromkeys(name for one in sums for name in one) if name not in same]
    total = {name: sum(one.get(name, 0.0) for one in sums) for name in names}
    return total | {name: sums[0][name] for name in same}


def _upload(folder: Path, store: Store, parts: Sequence[str]) -> None:
    for file in sorted(folder.iterdir()):
        store.put_file(file, *parts, file.name)
