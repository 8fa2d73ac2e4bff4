"""Summaries of the runs that learn, as the `runs` table keeps them."""

from typing import NotRequired, TypedDict

from memagent.records import Json


class HarvestSummary(TypedDict):
    """Summary of a harvest: training rows and their changes."""

    run_id: str
    corpus: str
    kind: str
    candidates: int
    rows: int
    new: int
    changed: int
    removed: int
    by_source: dict[str, int]
    by_split: dict[str, int]
    dropped: dict[str, int]
    """By reason."""
    qa_version: int | None
    seconds: NotRequired[float]
    export: NotRequired[str]
    """File that the rows were exported to."""


class TrainingSummary(TypedDict):
    """Summary of a training run."""

    run_id: str
    kind: str
    corpus: str
    policy: str
    parent: str
    """policy_id of the initial weights."""
    candidate: str
    """policy_id of the best weights; empty: none was better than the initial ones."""
    steps: int
    ended: str
    """Why it ended."""
    best_step: int
    validation: dict[str, Json | None]
    """before, best, last."""
    last: dict[str, float | None]
    """Metrics of the last step."""
    data: list[str]
    data_version: int | None
    config: Json
    report: NotRequired[str]
    promotion: NotRequired[Json]
