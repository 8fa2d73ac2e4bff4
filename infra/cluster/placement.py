"""Where an engine's actor runs: on one node, or with the ranks of its model on several."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.cluster import session
from infra.system.processes import usable_cores
from memagent.config import PoolConfig
from memagent.errors import UsageError

_NVIDIA, _AMD = Path("/proc/driver/nvidia/gpus"), Path("/dev/kfd")
"""Where NVIDIA's driver lists this machine's GPUs, a folder each; the device of AMD's, which are not counted here."""
_log = logging.getLogger("memagent.ray")

_SEES_ALL = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Of an engine's actor without a GPU, since its ranks have them: it must see them all, to find out what they are."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineActor:
    """An actor with an engine, and what the cluster has set aside for the ranks of its model."""

    actor: Any
    groups: "EngineGroups | None" = None
    """Its placement group, if ranks may be on several nodes."""

    def end(self) -> None:
        """Kill the actor, and free what was set aside."""
        import ray

        ray.kill(self.actor)
        if self.groups is not None:
            self.groups.end()


def start_engine(
    worker: type, arguments: tuple[Any, ...], pool: PoolConfig, slot: dict[str, Any] | None = None, **options: Any
) -> EngineActor:
    """Start an actor that has an engine; it waits until the cluster has room.

    With `pool.nodes` above 1 a placement group of a GPU each is set aside, on as few nodes as possible. The engine runs
    in the group, and makes the ranks of its model actors in it (`infra.engines.vllm`).

    Args:
        pool: what an engine needs.
        slot: its place on GPUs that it shares (`GpuSlots.engine`).
        options: further options of the actor.
    """
    import ray

    groups = None
    if slot is None and pool.nodes == 1:
        slot = {"num_cpus": pool.cpus, "num_gpus": pool.gpus or None}
    elif slot is None:
        groups = EngineGroups(pool)
        slot = groups.new()
    return EngineActor(ray.remote(worker).options(**slot, **options).remote(*arguments), groups)


class EngineGroups:
    """Placement groups of engines whose model's ranks may be on several nodes."""

    def __init__(self, pool: PoolConfig) -> None:
        """Say what each of them needs: `pool.gpus` GPUs, on at most `pool.nodes` nodes."""
        self._pool = pool
        self._groups: list[Any] = []

    def new(self) -> dict[str, Any]:
        """Set aside what one more engine needs, as soon as the cluster has it; return its actor's options."""
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        pool = self._pool
        first = {"GPU": 1.0} | ({"CPU": pool.cpus} if pool.cpus else {})
        group = placement_group([first, *({"GPU": 1.0} for _ in range(int(pool.gpus) - 1))], strategy="PACK")
        self._groups.append(group)
        inside = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        return {
            "num_cpus": pool.cpus,
            "num_gpus": 0,
            "scheduling_strategy": inside,
            "runtime_env": {"env_vars": _SEES_ALL},
        }

    def end(self) -> None:
        """Free what was set aside."""
        from ray.util import remove_placement_group

        while self._groups:
            remove_placement_group(self._groups.pop())


def check_fits(pool: PoolConfig) -> bool:
    """Tell whether any node could take an engine. A cluster may still grow; the Ray of one process does not.

    Raises UsageError: Ray runs in this process, and the machine is too small for an engine.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    of_largest = sum(sorted((node.get("GPU", 0) for node in nodes), reverse=True)[: pool.nodes])
    on_one = pool.gpus if pool.nodes == 1 else 1
    if of_largest >= pool.gpus and any(
        node.get("CPU", 0) >= pool.cpus and node.get("GPU", 0) >= on_one for node in nodes
    ):
        return True
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")}
    message = _no_room(pool, most["CPU"], most["GPU"])
    if session.started_here:
        raise UsageError(message)
    _log.warning("%s; waiting for one that joins", message)
    return False


def check_machine(pool: PoolConfig) -> None:
    """Refuse an engine for which this machine is too small.

    Raises UsageError: it has fewer processors or GPUs than the engine needs.
    """
    gpus = len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0
    if pool.cpus > usable_cores() or (pool.gpus > gpus and not _AMD.exists()):
        raise UsageError(_no_room(pool, usable_cores(), gpus))


def _no_room(pool: PoolConfig, cpus: float, gpus: float) -> str:
    return (
        f"an engine needs pool.cpus = {pool.cpus:g} and pool.gpus = {pool.gpus:g} on {pool.nodes} node"
        f"{'s' if pool.nodes > 1 else ''}, and there is no such room: the largest has {cpus:g} CPUs and {gpus:g} GPUs"
    )


_TURN = 0.5
"""Ray's share of a GPU for each of the two that take turns on it."""


class GpuSlots:
    """GPUs that a learner's ranks and its rollout engines share by turns: rank i and engine i are on GPU i."""

    def __init__(self, count: int, cpus: float) -> None:
        """Set aside `count` GPUs with `cpus` each, on as few nodes as possible; waits until the cluster has them."""
        import ray
        from ray.util import placement_group

        self._group = placement_group([{"GPU": 1.0, "CPU": cpus}] * count, strategy="PACK")
        ray.get(self._group.ready())

    def rank(self, index: int, cpus: float) -> dict[str, Any]:
        """Return the actor options of a rank."""
        return {"num_cpus": cpus, "num_gpus": _TURN, "scheduling_strategy": self._at(index)}

    def engine(self, index: int, pool: PoolConfig) -> dict[str, Any]:
        """Return the actor options of an engine; one of several GPUs makes its ranks actors on its slots."""
        size = max(1, round(pool.gpus))
        if size == 1:
            return {"num_cpus": pool.cpus, "num_gpus": _TURN, "scheduling_strategy": self._at(index)}
        slots = range(index * size, (index + 1) * size)
        variables = _SEES_ALL | {
            "VLLM_RAY_PER_WORKER_GPUS": str(_TURN),
            "VLLM_RAY_BUNDLE_INDICES": ",".join(map(str, slots)),
        }
        return {
            "num_cpus": pool.cpus,
            "num_gpus": 0,
            "scheduling_strategy": self._at(slots[0], ranks=True),
            "runtime_env": {"env_vars": variables},
        }

    def end(self) -> None:
        """Free the GPUs."""
        from ray.util import remove_placement_group

        remove_placement_group(self._group)

    def _at(self, index: int, *, ranks: bool = False) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=index, placement_group_capture_child_tasks=ranks
        )


def accelerators() -> list[str]:
    """Return the kinds of GPUs of the cluster, as Ray names them."""
    import ray

    prefix = "accelerator_type:"
    return [name.removeprefix(prefix) for name in ray.cluster_resources() if name.startswith(prefix)]


def ranks_are_actors() -> bool:
    """Whether this process is an engine's actor that has no GPU itself, since its model's ranks are actors that do."""
    if "ray" not in sys.modules:
        return False
    import ray
    from ray.util import get_current_placement_group

    return ray.is_initialized() and get_current_placement_group() is not None and not ray.get_gpu_ids()
