"""Checks of a cluster's nodes."""

import uuid

from infra.store import Store
from memagent.errors import UsageError

_SECONDS = 60.0


def check_store(store: Store) -> None:
    """Refuse a store that some node of the cluster cannot see: its work there would be lost.

    Needs a Ray session. A cluster of one node is not checked; nodes that do not answer within a minute are skipped.

    Raises:
        UsageError: naming the nodes.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    if store.is_s3 or len(nodes) < 2:
        return
    name = f".nodes-{uuid.uuid4().hex[:8]}"
    path = store.write_bytes(b"seen", name)
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(_sees)
        calls = {}
        for node, host in nodes.items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            calls[look.options(scheduling_strategy=there).remote(store, name)] = host
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_SECONDS)
        blind = sorted(calls[call] for call in done if not ray.get(call))
    finally:
        store.delete(path)
    if blind:
        raise UsageError(
            f"the store {store.url} cannot be seen by the cluster's node {', '.join(blind)}: give an s3:// URL, or a "
            "folder that all nodes share"
        )


def _sees(store: Store, name: str) -> bool:
    return store.exists(name)
