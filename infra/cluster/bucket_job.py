"""A Ray Data job with a task for each bucket of a corpus. Little work is done in this process, without Ray."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from infra.cluster.session import ensure_ray, quiet_ray_data
from infra.tables.buckets import Bucket
from memagent.errors import MemagentError, UsageError

Result = TypeVar("Result")


def run_buckets(work: Callable[[Bucket], Result], buckets: Sequence[Bucket], *, small: bool) -> Iterator[Result]:
    """Call `work` for each bucket; yield the results as they come.

    Args:
        work: can be pickled; returns plain data (JSON). What is large it writes to the store.
        buckets: of the corpus.
        small: whether there is so little work that a single bucket is done in this process, without Ray.

    Raises:
        MemagentError: what `work` raised; its class is kept as far as it is one's own fault (`UsageError`).
    """
    if small and len(buckets) == 1:
        yield work(buckets[0])
        return
    ensure_ray()
    import ray.data

    quiet_ray_data()
    blocks = [pa.table({"index": [bucket.index], "count": [bucket.count]}) for bucket in buckets]
    job = ray.data.from_arrow(blocks).map_batches(
        _run, batch_size=None, batch_format="pyarrow", fn_kwargs={"work": work}
    )
    for batch in job.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            if row["error"]:
                raise (UsageError if row["usage"] else MemagentError)(row["error"])
            yield json.loads(row["result"])


def _run(batch: pa.Table, work: Callable[[Bucket], Any]) -> pa.Table:
    rows = []
    for row in batch.to_pylist():
        try:
            result = json.dumps(work(Bucket(row["index"], row["count"])))
            rows.append({"result": result, "error": "", "usage": False})
        except MemagentError as error:  # its class would not survive the way back
            rows.append({"result": "", "error": str(error), "usage": isinstance(error, UsageError)})
    return pa.Table.from_pylist(rows, schema=_RESULT)


_RESULT = pa.schema([("result", pa.large_string()), ("error", pa.string()), ("usage", pa.bool_())])
