"""A Ray Data job of independent tasks, such as one for each bucket of a corpus."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from infra.cluster.nodes import ensure_nodes
from infra.cluster.session import quiet_ray_data
from infra.store import Store
from memagent.errors import MemagentError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(work: Callable[[Item], Result], items: Sequence[Item], store: Store, *, small: bool) -> Iterator[Result]:
    """Call `work` for each item; yield the results as they come.

    Args:
        work: a picklable function that returns plain data (JSON), and writes large data to the store.
        items: small and picklable.
        store: which tasks read and write.
        small: whether a single item is run in this process, without Ray.

    Raises:
        UsageError: a node of the cluster cannot see the store.
        UsageError, MemagentError: raised by `work`; other errors become a MemagentError with their message.
    """
    if not items:
        return
    if small and len(items) == 1:
        yield json.loads(json.dumps(work(items[0])))  # as plain as it would come from another process
        return
    ensure_nodes(store)
    import ray.data

    quiet_ray_data()
    blocks = [pa.table({"index": [index]}) for index in range(len(items))]
    job = ray.data.from_arrow(blocks).map_batches(
        _run, batch_size=None, batch_format="pyarrow", fn_kwargs={"work": work, "items": list(items)}
    )
    for batch in job.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            if row["error"]:
                raise (UsageError if row["usage"] else MemagentError)(row["error"])
            yield json.loads(row["result"])


def _run(batch: pa.Table, work: Callable[[Any], Any], items: Sequence[Any]) -> pa.Table:
    rows = []
    for index in batch["index"].to_pylist():
        try:
            rows.append({"result": json.dumps(work(items[index])), "error": "", "usage": False})
        except MemagentError as error:  # its class may not be picklable
            rows.append({"result": "", "error": str(error), "usage": isinstance(error, UsageError)})
    return pa.Table.from_pylist(rows, schema=_RESULT)


_RESULT = pa.schema([("result", pa.large_string()), ("error", pa.string()), ("usage", pa.bool_())])
