"""Checks of a cluster's nodes."""

import uuid
from functools import lru_cache
from typing import Any

from infra.cluster.session import ensure_ray
from infra.store import Store
from memagent.errors import UsageError

_SECONDS = 60.0


def ensure_nodes(store: Store) -> None:
    """Start Ray if it is not running yet, and check once a session that its nodes see the store (`check_store`).

    Raises:
        UsageError: a node cannot see the store, or Ray cannot be used as configured.
        MemagentError: Ray cannot be started.
    """
    import ray

    ensure_ray()
    _checked(store.url, ray.get_runtime_context().get_job_id())


@lru_cache(maxsize=8)
def _checked(url: str, session: str) -> None:
    check_store(Store(url))


def check_store(store: Store) -> None:
    """Refuse a store that some node of the cluster cannot see: its work there would be lost.

    Needs a Ray session. A cluster of one node is not checked; nodes that do not answer within a minute, or are lost,
    are skipped.

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
        blind = sorted(calls[call] for call in done if not _saw(call))
    finally:
        store.delete(path)
    if blind:
        raise UsageError(
            f"the store {store.url} cannot be seen by the cluster's node {', '.join(blind)}: give an s3:// URL, or a "
            "folder that all nodes share"
        )


def _saw(call: Any) -> bool:
    """Return what a node said; one that was lost meanwhile is given no work, and passes."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return bool(ray.get(call))
    except RayTaskError:
        raise
    except RayError:
        return True


def _sees(store: Store, name: str) -> bool:
    return store.exists(name)
