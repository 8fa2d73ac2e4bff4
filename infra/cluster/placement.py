"""Where an engine's actor runs: on one node, or with the ranks of its model on several."""

import sys
from dataclasses import dataclass
from typing import Any

from memagent.config import PoolConfig


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


def start_engine(worker: type, arguments: tuple[Any, ...], pool: PoolConfig, **options: Any) -> EngineActor:
    """Start an actor that has an engine; it waits until the cluster has room.

    With `pool.nodes` above 1 a placement group of a GPU each is set aside, on as few nodes as possible. The engine runs
    in the group, and makes the ranks of its model actors in it (`infra.engines.vllm`).

    Args:
        worker: the actor's class.
        arguments: of its constructor.
        pool: what an engine needs.
        options: further options of the actor.
    """
    import ray

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
    # The actor itself takes no GPU: its ranks do. It must see them all the same, to find out what they are.
    sees = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    placed = ray.remote(worker).options(
        num_cpus=pool.cpus, num_gpus=0, scheduling_strategy=inside, runtime_env=sees, **options
    )
    return EngineActor(placed.remote(*arguments), group)


def ranks_are_actors() -> bool:
    """Whether this process is an actor of `start_engine` for whose ranks GPUs are set aside."""
    if "ray" not in sys.modules:
        return False
    import ray
    from ray.util import get_current_placement_group

    return ray.is_initialized() and get_current_placement_group() is not None
