"""The ranks of a learner, as Ray actors."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from infra.cluster.rollout_pool import Weights
from infra.cluster.session import raised
from infra.learner.rank_actor import RankActor
from infra.readers import ReaderSpec
from infra.store.location import Store
from memagent.config import PoolConfig
from memagent.errors import ConfigError, MemagentError, TrainingError
from memagent.rl.config import Recipe
from memagent.rl.packing import Packed, PackedItem, Unit, balance, items, pack, units
from memagent.rl.trajectory import Group, minibatches

if TYPE_CHECKING:
    from infra.cluster.placement import GpuSlots
    from infra.learner.weights import Rendezvous

_LEAVING_SECONDS = 30.0
_LOSS_SECONDS = 15.0
"""Time until the loss of a rank is known, after another one failed for it."""


class RankLost(TrainingError):
    """A rank's process or node is gone: the ranks must be started again."""


class LearnerGroup:
    """A learner of any number of ranks."""

    def __init__(self, reader: ReaderSpec, recipe: Recipe, slots: "GpuSlots | None" = None) -> None:
        """Prepare a learner.

        Args:
            reader: its model; each node fetches the folder for itself.
            recipe: of the training.
            slots: the GPUs that it shares with engines; None: its own.
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
        address, port = await self._ranks[0].address.remote()
        begun = [(self._reader, self._recipe, i, address, port) for i in range(learner.world_size)]
        await self._all("begin", begun)

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
        equal = recipe.loss.normaliser == "trajectories"
        batches = [items(batch, equal=equal) for batch in minibatches(groups, recipe.learner.minibatch_prompts)]
        sizes = [len(batch) for batch in minibatches(groups, recipe.learner.minibatch_prompts)]
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
            except RankLost:
                raise
            except TrainingError as error:
                raise TrainingError(f"minibatch {number + 1} of {len(batches)}: {error}") from error
            computed = sum(len(row.ids) for rows in share for row in rows)
            sampled = sum(item.conversation.tokens for item in batch)
            steps.append(_summed(sums) | {"trained_tokens": float(sampled), "computed_tokens": float(computed)})
        return steps

    async def likelihoods(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        """Return for each group, trajectory and probe the mean log-probability of a token of the gold answer."""
        asked = [probe for group in groups for trajectory in group.trajectories for probe in trajectory.probes]
        same = {(*probe.prompt_ids, *probe.response_ids): probe for probe in asked}  # most memories are alike
        flat = [PackedItem(probe, 0.0) for probe in same.values()]
        bins, made = self._bins(flat)
        scores = await self._score([[pack([made[i] for i in bin_]) for bin_ in rank] for rank in bins])
        means: dict[tuple[int, ...], float] = {}
        for rank, rows in zip(bins, scores, strict=True):
            for bin_, values in zip(rank, rows, strict=True):
                start = 0
                for item in (item for i in bin_ for item in made[i].items):
                    probe, stop = item.conversation, start + len(item.conversation.response_ids)
                    means[(*probe.prompt_ids, *probe.response_ids)] = sum(values[start:stop]) / (stop - start)
                    start = stop
        return [
            [[means[(*probe.prompt_ids, *probe.response_ids)] for probe in one.probes] for one in group.trajectories]
            for group in groups
        ]

    async def weights(self, version: str) -> Weights:
        """Return the current weights for engines."""
        files = await self._all("weights", [()] * len(self._ranks))
        return Weights(version, files[0])

    async def meeting(self, engines: int) -> "Rendezvous":
        """Return where so many engine processes are given the present weights, once what is learnt now is done."""
        rendezvous: Rendezvous = await self._ranks[0].meeting.remote(engines)
        return rendezvous

    async def send(self, meeting: "Rendezvous") -> None:
        """Broadcast the current weights.

        Raises:
            TrainingError: an engine did not come, or was lost.
        """
        await self._all("send", [(meeting,)] * len(self._ranks))

    async def offload(self) -> None:
        """Free the GPUs for engines that share them."""
        await self._all("offload", [()] * len(self._ranks))

    async def reload(self) -> None:
        """Take the GPUs back from the engines, which must sleep."""
        await self._all("reload", [()] * len(self._ranks))

    async def export(self, store: Store, *parts: str) -> None:
        """Write the model folder into a store."""
        await self._to_store("export", store, parts)

    async def export_adapter(self, store: Store, *parts: str) -> None:
        """Write LoRA's factors into a store, as a folder that PEFT loads."""
        await self._to_store("export_adapter", store, parts)

    async def save(self, store: Store, *parts: str) -> None:
        """Begin to write a checkpoint into a store: each rank its share, while training goes on.

        Raises:
            TrainingError: the one before it cannot be written.
        """
        await self._to_store("save", store, parts)

    async def saved(self, store: Store, *parts: str) -> None:
        """Wait until the last checkpoint is in the store.

        Raises:
            TrainingError: it cannot be written.
        """
        await self._to_store("saved", store, parts, arguments=())

    async def load(self, store: Store, *parts: str) -> None:
        """Go on from a checkpoint in a store.

        Raises:
            TrainingError: it is incomplete, or of another model.
        """
        await self._all("load", [(store.url, *parts)] * len(self._ranks))

    async def stop(self) -> None:
        """End all ranks."""
        leaving = [asyncio.ensure_future(_left(rank)) for rank in self._ranks]
        if leaving:
            # Do not wait for a rank that waits for a lost engine.
            await asyncio.wait(leaving, timeout=_LEAVING_SECONDS)
        self._kill()

    def _kill(self) -> None:
        import ray

        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    async def _to_store(
        self, method: str, store: Store, parts: tuple[str, ...], arguments: tuple[str, ...] | None = None
    ) -> None:
        given = (store.url, *parts) if arguments is None else arguments
        try:
            await self._all(method, [given] * len(self._ranks))
        except OSError as error:
            raise TrainingError(f"{'/'.join(parts)} cannot be written to {store.url}: {raised(error)}") from error

    async def _score(self, share: list[list[Packed]]) -> list[list[list[float]]]:
        scores: list[list[list[float]]] = await self._all("score", [(rows,) for rows in share])
        return scores

    async def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all ranks.

        Raises:
            RankLost: one of them is gone.
            MemagentError: what one of them raised.
        """
        from ray.exceptions import RayActorError

        calls = [
            asyncio.ensure_future(_answer(getattr(rank, method).remote(*args)))
            for rank, args in zip(self._ranks, arguments, strict=True)
        ]
        _, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            # The ranks beside a lost one fail in their collectives, often before the loss is known.
            await asyncio.wait(calls, timeout=_LOSS_SECONDS)
        errors = [call.exception() for call in calls if call.done() and call.exception() is not None]
        if not errors:
            return [await call for call in calls]
        for call in waiting:
            call.cancel()
        lost = next((error for error in errors if isinstance(error, RayActorError)), None)
        if lost is not None:
            raise RankLost(f"a rank of the learner is gone ({type(lost).__name__})") from lost
        error = errors[0]
        assert error is not None
        raise (raised(error) if isinstance(error, MemagentError) else error) from error

    def _shares(self, batch: Sequence[PackedItem]) -> list[list[Packed]]:
        bins, made = self._bins(batch)
        return [[pack([made[i] for i in bin_]) for bin_ in rank] for rank in bins]

    def _bins(self, batch: Sequence[PackedItem]) -> tuple[list[list[list[int]]], list[Unit]]:
        """Return for each rank and micro-batch the indices of its units, and the units."""
        learner = self._recipe.learner
        made = units(batch, learner.token_budget, share=learner.share_prefixes)
        return balance([unit.tokens for unit in made], learner.world_size, learner.token_budget), made


async def _answer(reference: Any) -> Any:
    return await reference


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


async def _left(rank: Any) -> None:
    from ray.exceptions import RayError

    with suppress(RayError):
        await rank.stop.remote()


def _summed(sums: Sequence[dict[str, float]]) -> dict[str, float]:
    same = ("gradient_norm", "lr")
    names = [name for name in dict.fromkeys(name for one in sums for name in one) if name not in same]
    total = {name: sum(one.get(name, 0.0) for one in sums) for name in names}
    return total | {name: sums[0][name] for name in same}
