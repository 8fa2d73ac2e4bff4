"""Scenes on a cluster of two nodes on this machine, each in a process of its own: Ray is one for a process.

python -m tests.support.cluster_nodes SCENE FOLDER
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from infra.cluster import jobs as nodes
from infra.cluster.board import RemoteBoard
from infra.cluster.jobs import EngineWork, run_job
from infra.cluster.placement import GpuSlots, check_fits, ranks_are_actors, start_engine
from infra.cluster.session import board_name, quiet_ray_data
from infra.store.location import Store
from memagent.config import PoolConfig
from memagent.errors import UsageError


@contextmanager
def cluster(cpus: int) -> Iterator[Any]:
    """Start a head node with so many processors, and connect to it."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    ray.init(address=started.address, log_to_driver=False, logging_level="error")
    quiet_ray_data()
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def unseen(folder: Path) -> None:
    """A folder that all nodes see is taken; one that a node does not see is refused.

    Nodes of one machine share its folders: one looks elsewhere.
    """
    with cluster(1) as started:
        started.add_node(num_cpus=1)
        nodes.check_store(Store(str(folder)))
        assert not list(folder.iterdir()), "nothing is left in it"
        head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])

        exists = Store.exists

        def sees(store: Store, name: str) -> bool:
            local = ray.get_runtime_context().get_node_id()
            return exists(store if local == head else Store(f"{store.url}/elsewhere"), name)

        Store.exists = sees  # type: ignore[method-assign]
        (folder / "note.txt").write_text("A note.")
        store = Store(str(folder / "store"))
        starts: list[Callable[[], object]] = [
            lambda: nodes.check_store(store),
            lambda: list(run_job(str, [1, 2], store, local=False)),
        ]
        for start in starts:
            try:
                start()
            except UsageError as error:
                assert "cannot be seen by the cluster's node" in str(error) and "s3://" in str(error)
            else:
                raise AssertionError("it was taken")


class Engineless:
    """A worker that has no engine to stop."""

    def __init__(self, board: object) -> None:
        pass

    async def stop(self) -> None:
        pass


class Slow(Engineless):
    """Says on which node it did an item; takes its time until it is told that both nodes were used."""

    async def run(self, item: Mapping[str, Any], attempt: object) -> Mapping[str, Any]:
        until = time.monotonic() + 8.0
        while time.monotonic() < until and not item["used"].exists():
            await asyncio.sleep(0.2)
        return {"number": item["number"], "node": ray.get_runtime_context().get_node_id()}


def joins(folder: Path) -> None:
    """A node that joins is used, and one that is lost loses nothing."""
    used = folder / "used"
    items = [{"number": number, "used": used} for number in range(800)]  # 100 seconds of one node
    results: list[Mapping[str, Any]] = []
    with cluster(0) as started:
        first = started.add_node(num_cpus=1)
        work = EngineWork(Slow, PoolConfig(min_size=1, max_size=2, cpus=1), RemoteBoard(board_name()))
        for result in run_job(work, items, Store(str(folder)), local=False):
            results.append(result)
            if len(results) == 20:
                started.add_node(num_cpus=1)
            if first is not None and len({one["node"] for one in results}) == 2:
                started.remove_node(first, allow_graceful=False)
                first = None
                used.touch()
    assert first is None, "the second node was used"
    assert sorted(result["number"] for result in results) == list(range(800))


class Spread(Engineless):
    """Makes a rank for each GPU that was set aside for its engine, as vLLM does, and says on which nodes they are."""

    async def run(self, item: Mapping[str, Any], attempt: object) -> Mapping[str, Any]:
        from ray.util import get_current_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert ranks_are_actors()
        group = get_current_placement_group()
        places = [PlacementGroupSchedulingStrategy(group, index) for index in range(group.bundle_count)]
        ranks = [Rank.options(num_gpus=1, scheduling_strategy=place).remote() for place in places]  # type: ignore[attr-defined]
        return {"nodes": await asyncio.gather(*(rank.node.remote() for rank in ranks))}


@ray.remote(num_cpus=0)
class Rank:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


class OnGpu:
    """Says on which GPU of which node it is."""

    def where(self) -> tuple[str, list[int]]:
        return str(ray.get_runtime_context().get_node_id()), ray.get_gpu_ids()

    def has_ranks(self) -> bool:
        return ranks_are_actors()

    def bundles(self) -> str:
        return os.environ.get("VLLM_RAY_BUNDLE_INDICES", "")


def gpus(folder: Path) -> None:
    """GPUs of two nodes, for an engine of more than a node has, and for a training's ranks and engines."""
    with cluster(0) as started:
        for _ in range(2):
            started.add_node(num_cpus=2, num_gpus=2)
        _spread(Store(str(folder)))
        _turns()


def _spread(store: Store) -> None:
    """An engine of more GPUs than a node has gets them on several; what it had is free when it ends."""
    pool = PoolConfig(cpus=0.5, gpus=4, nodes=2)
    for _ in range(2):
        (result,) = run_job(EngineWork(Spread, pool, RemoteBoard(board_name())), [{"number": 0}], store, local=False)
        assert len(set(result["nodes"])) == 2
    assert len(ray.util.placement_group_table()) == 2, "none is set aside that no engine uses"
    assert check_fits(pool) and not check_fits(PoolConfig(cpus=0.5, gpus=4))
    assert not check_fits(PoolConfig(cpus=0.5, gpus=6, nodes=3))


def _turns() -> None:
    """Rank i and engine i of a training are on the same GPU, on any number of nodes, and free it in the end."""
    slots, pool = GpuSlots(4, cpus=1.0), PoolConfig(cpus=0.5, gpus=1)
    ranks = [ray.remote(OnGpu).options(**slots.rank(i, 0.5)).remote() for i in range(4)]
    engines = [start_engine(OnGpu, (), pool, slots.engine(i, pool)) for i in range(4)]
    places = ray.get([rank.where.remote() for rank in ranks])
    assert ray.get([engine.actor.where.remote() for engine in engines]) == places
    assert len({(node, *gpus) for node, gpus in places}) == 4
    assert not any(ray.get([engine.actor.has_ranks.remote() for engine in engines])), "each has its GPU itself"
    for engine in engines:
        engine.end()
    pair = PoolConfig(cpus=0.5, gpus=2)  # of two GPUs: its ranks are actors on the slots that it is given
    engine = start_engine(OnGpu, (), pair, slots.engine(1, pair))
    assert ray.get(engine.actor.bundles.remote()) == "2,3" and ray.get(engine.actor.has_ranks.remote())
    engine.end()
    for rank in ranks:
        ray.kill(rank)
    slots.end()
    again = GpuSlots(4, cpus=1.0)  # waits until the GPUs are free
    again.end()


def beside(folder: Path) -> None:
    """A cluster that somebody has started on this machine is left alone: a run here has Ray of its own."""
    from infra.cluster.session import ray_session
    from memagent.config import RayConfig

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        with ray_session(RayConfig(cpus=3)):
            assert ray.cluster_resources()["CPU"] == 3
    finally:
        started.shutdown()


if __name__ == "__main__":
    scenes = {"beside": beside, "unseen": unseen, "joins": joins, "gpus": gpus}
    scenes[sys.argv[1]](Path(sys.argv[2]))
