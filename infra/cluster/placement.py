"""Where an engine's actor runs: on one node, or with the ranks of its model on several."""

import sys
from dataclasses import dataclass
from typing import Any

from memagent.config import PoolConfig

_SEES_ALL = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Of an engine's actor without a GPU, since its ranks have them: it must see them all, to find out what they are."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineActor:
    """An actor with an engine, and what the cluster has set aside for the ranks of its model."""

    actor: Any
    group: Any = None
    """The placement group, if ranks may be on several nodes."""

    def end(self) -> None:
        """Kill the actor, and free what was set aside."""
        import ray
        from ray.util import remove_placement_group

        ray.kill(self.actor)
        if self.group is not None:
            remove_placement_group(self.group)


def start_engine(
    worker: type, arguments: tuple[Any, ...], pool: PoolConfig, slot: dict[str, Any] | None = None, **options: Any
) -> EngineActor:
    """Start an actor that has an engine; it waits until the cluster has room.

    With `pool.nodes` above 1 a placement group of a GPU each is set aside, on as few nodes as possible. The engine runs
    in the group, and makes the ranks of its model actors in it (`infra.engines.vllm`).

    Args:
        worker: the actor's class.
        arguments: of its constructor.
        pool: what an engine needs.
        slot: its place on GPUs that it shares (`GpuSlots.engine`).
        options: further options of the actor.
    """
    import ray

    if slot is not None:
        return EngineActor(ray.remote(worker).options(**slot, **options).remote(*arguments))
    if pool.nodes == 1:
        placed = ray.remote(worker).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, **options)
        return EngineActor(placed.remote(*arguments))
    from ray.util import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    first = {"GPU": 1.0} | ({"CPU": pool.cpus} if pool.cpus else {})
    group = placement_group([first, *({"GPU": 1.0} for _ in range(int(pool.gpus) - 1))], strategy="PACK")
    inside = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    sees = {"env_vars": _SEES_ALL}
    placed = ray.remote(worker).options(
        num_cpus=pool.cpus, num_gpus=0, scheduling_strategy=inside, runtime_env=sees, **options
    )
    return EngineActor(placed.remote(*arguments), group)


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
