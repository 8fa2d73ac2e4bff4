"""Independent tasks in Ray, such as one for each bucket of a corpus."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from infra.cluster.nodes import ensure_nodes
from infra.store import Store
from memagent.errors import MemagentError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")
_PER_CPU = 2
"""Tasks that wait or run at once, by processor: enough that none is idle, and few for the scheduler."""


def run_tasks(work: Callable[[Item], Result], items: Sequence[Item], store: Store, *, small: bool) -> Iterator[Result]:
    """Call `work` for each item; yield the results as they come.

    A task whose process or node is lost is run again. Plain tasks, not a Ray Data job: that starts its second task a
    second after its first.

    Args:
        work: a picklable function that returns plain data (JSON), and writes large data to the store.
        items: small and picklable.
        store: which tasks read and write.
        small: whether a single item is run in this process, without Ray.

    Raises:
        UsageError: a node of the cluster cannot see the store.
        UsageError, MemagentError: raised by `work`; other errors are Ray's, with the task's error as their cause.
    """
    if not items:
        return
    if small and len(items) == 1:
        yield json.loads(json.dumps(work(items[0])))  # as plain as it would come from another process
        return
    ensure_nodes(store)
    import ray

    # As often as Ray Data does: on nodes that come and go, a task may be lost many times.
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_retries=-1)(_run)
    job, shared = ray.get_runtime_context().get_job_id(), ray.put(work)
    waiting = iter(items)
    running: list[Any] = []
    try:
        while True:
            most = _PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))  # a node may have joined
            running += [task.remote(shared, item) for item in islice(waiting, max(0, most - len(running)))]
            if not running:
                return
            (done,), running = ray.wait(running)
            yield _result(ray.get(done))
    finally:
        # An error, or nobody wants the others' results. Where Ray has ended meanwhile, `cancel` would start it again.
        if running and ray.is_initialized() and ray.get_runtime_context().get_job_id() == job:
            for call in running:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(call)


def _result(answer: dict[str, Any]) -> Any:
    if error := answer.get("error"):
        raise (UsageError if answer["usage"] else MemagentError)(error)
    return json.loads(answer["result"])


def _run(work: Callable[[Any], Any], item: Any) -> dict[str, Any]:
    try:
        return {"result": json.dumps(work(item))}
    except MemagentError as error:  # its class may not be picklable
        return {"error": str(error), "usage": isinstance(error, UsageError)}
