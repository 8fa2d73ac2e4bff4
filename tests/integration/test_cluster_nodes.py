"""A store that a node of the cluster cannot see is refused before anything is read."""

import asyncio

import pytest
import ray
from ray.cluster_utils import Cluster

from infra.cluster import nodes
from infra.cluster.engine_pool import run_on_engines
from infra.store import Store
from memagent.config import PoolConfig
from memagent.errors import UsageError


@pytest.fixture(scope="module")
def two_nodes():
    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
    cluster.shutdown()


def test_a_folder_that_all_nodes_see_is_taken(two_nodes, tmp_path):
    nodes.check_store(Store(str(tmp_path)))
    assert not list(tmp_path.iterdir()), "nothing is left in it"


def test_a_folder_that_a_node_does_not_see_is_refused(two_nodes, tmp_path, monkeypatch):
    # Nodes of one machine share its folders: one of them is made to look elsewhere.
    head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])

    def sees(store, name):
        here = ray.get_runtime_context().get_node_id()
        return (store if here == head else Store(f"{store.url}/elsewhere")).exists(name)

    monkeypatch.setattr(nodes, "_sees", sees)
    with pytest.raises(UsageError, match=r"cannot be seen by the cluster's node .*give an s3:// URL"):
        nodes.check_store(Store(str(tmp_path)))


class Slow:
    """Says on which node it did an item."""

    async def run(self, item):
        await asyncio.sleep(0.2)
        return {"number": item["number"], "node": ray.get_runtime_context().get_node_id()}


def test_a_node_that_joins_is_used_and_one_that_is_lost_loses_nothing():
    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    first = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        items = [{"number": number, "conversations": 400, "again": False} for number in range(300)]
        pool = PoolConfig(min_size=1, max_size=2, cpus=1)
        results = []
        for result in run_on_engines(Slow, (), items, pool):
            results.append(result)
            if len(results) == 20:
                cluster.add_node(num_cpus=1)
            if len({seen["node"] for seen in results}) == 2 and first is not None:
                cluster.remove_node(first, allow_graceful=False)
                first = None
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert first is None, "the second node was used"
    assert sorted(result["number"] for result in results) == list(range(300))
