"""Prefect flows: thin. One task per stage; Ray does the work, Prefect owns schedule, retries and state.

A flow runs its Ray work in this process, or through a cluster's Jobs API where ``ray.jobs_address`` is
configured. Module entrypoints: ``pipelines.flows.digest_corpus``, ``.answer_archive``, ``.evaluate_policy``,
``.harvest_qa``, ``.retrain``.
"""

from pipelines.flows.answering import EVERY, answer_archive, digest_corpus
from pipelines.flows.evaluating import evaluate_policy
from pipelines.flows.learning import ENOUGH, harvest_qa, retrain
from pipelines.flows.ray_job import FailedItems, watcher

__all__ = [
    "ENOUGH",
    "EVERY",
    "FailedItems",
    "answer_archive",
    "digest_corpus",
    "evaluate_policy",
    "harvest_qa",
    "retrain",
    "watcher",
]
