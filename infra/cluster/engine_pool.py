"""A Ray Data job over a pool of engines: blocks of items go to an engine that is free, rows come back as they are made.

Items and rows cross as JSON in one column (``item``, ``row``): rows differ in shape, and a column of text takes any.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from memagent.config import PoolConfig
from memagent.errors import ConfigError, EngineDied, MemagentError, UsageError

_CALLS = 64
"""Blocks that one worker has in hand at once at most."""


def run_on_engines(
    worker: type, arguments: tuple[Any, ...], blocks: Iterable[Iterable[Mapping[str, Any]]], pool: PoolConfig
) -> Iterator[dict[str, Any]]:
    """Hand blocks of items to workers with an engine each; yield the rows as they come.

    Needs a Ray session.

    Args:
        worker: a class whose call takes ``{"item": [JSON]}`` and yields ``{"row": [JSON]}`` (`rows_of`); one instance
            per engine, called for several blocks at once.
        arguments: of its constructor.
        blocks: the items; a block's rows come together.
        pool: how many engines, and what each of them needs of the cluster.

    Raises:
        ConfigError: a worker's engine cannot be started as configured (`fatal`).
        EngineDied: a worker's engine died too often (`fatal`).
    """
    import ray.data

    tables = [pa.table({"item": [json.dumps(item) for item in block]}) for block in blocks]
    job = ray.data.from_arrow(tables).map_batches(
        worker,
        batch_size=None,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(**_size(pool, len(tables))),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
    )
    for batch in job.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in map(json.loads, batch["row"].to_pylist()):
            if "fatal" in row:
                raise (ConfigError if row["usage"] else EngineDied)(row["fatal"])
            yield row


def rows_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return a worker's rows as it yields them."""
    return {"row": [json.dumps(row) for row in rows]}


def fatal(error: MemagentError) -> dict[str, Any]:
    """Return the row by which a worker says that it can do nothing more.

    An exception that crosses Ray Data arrives as text without its class.
    """
    return {"fatal": str(error), "usage": isinstance(error, UsageError)}


def _size(pool: PoolConfig, blocks: int) -> dict[str, int]:
    """Return the options of Ray Data's actor pool: its size, and the blocks that one worker holds.

    A pool grows where its workers have almost twice as many blocks (175%) as they work on; so a pool that may grow is
    given twice as many. No worker is given more than its share of a pool of full size: the others, once they are up,
    would find nothing left. There are no more workers than blocks.
    """
    smallest, largest = min(pool.min_size, max(1, blocks)), min(pool.max_size, max(1, blocks))
    share = max(2, math.ceil(blocks / largest))
    if smallest == largest:
        calls = min(_CALLS, share)
        return {
            "size": largest,
            "max_tasks_in_flight_per_actor": calls + 1,
            "max_concurrent_calls_per_actor": calls,
        }
    calls = min(_CALLS, share // 2)
    return {
        "min_size": smallest,
        "max_size": largest,
        "max_tasks_in_flight_per_actor": 2 * calls,
        "max_concurrent_calls_per_actor": calls,
    }
