"""Prefect flows, one task per stage: Ray does the work, Prefect owns schedule, retries and state.

A flow runs its Ray work in this process, or through a cluster's Jobs API where ``ray.jobs_address`` is
configured. Module entrypoints: ``pipelines.flows.digest_corpus``, ``.answer_archive``, ``.evaluate_policy``,
``.harvest_qa``, ``.optimize_corpus``, ``.retrain``, ``.watch_schedule``, ``.reap``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.flows.answering import answer_archive, digest_corpus, optimize_corpus
    from pipelines.flows.learning import evaluate_policy, harvest_qa, retrain
    from pipelines.flows.operating import reap, watch_schedule
    from pipelines.flows.ray_job import FailedItems, watcher

__all__ = [
    "FailedItems",
    "answer_archive",
    "digest_corpus",
    "evaluate_policy",
    "harvest_qa",
    "optimize_corpus",
    "reap",
    "retrain",
    "watch_schedule",
    "watcher",
]
_HOMES = {
    **dict.fromkeys(("answer_archive", "digest_corpus", "optimize_corpus"), "answering"),
    **dict.fromkeys(("evaluate_policy", "harvest_qa", "retrain"), "learning"),
    **dict.fromkeys(("reap", "watch_schedule"), "operating"),
    **dict.fromkeys(("FailedItems", "watcher"), "ray_job"),
}


def __getattr__(name: str) -> object:
    """Import a flow on first use, since Prefect reads its settings from the environment at import.

    `examples.demo` can so set them first, and `pipelines.flows.serve` can be used without Prefect.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
