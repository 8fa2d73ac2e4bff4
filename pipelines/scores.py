"""The scores of all evaluations, as people look them up."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Store
from infra.tables.delta import Table
from infra.tables.rows import ScoreRow
from memagent.errors import UsageError


def score_table(store: Store, suite: str | None = None) -> pa.Table:
    """Return `infra.tables.schemas.SCORES`, oldest first; of one suite, where it is given."""
    table = Table(store, "scores").read()
    if suite is not None:
        table = table.filter(pc.equal(table["suite"], suite))
    return table.sort_by([("scored_at", "ascending"), ("length", "ascending"), ("task", "ascending")])


def last_evaluation(store: Store, suite: str | None = None) -> str:
    """Return the run id of the newest evaluation.

    Raises:
        UsageError: there is none.
    """
    table = score_table(store, suite)
    if not table.num_rows:
        raise UsageError("there is no evaluation yet: memagent evaluate --suite needles --lengths 8k")
    return str(table["run_id"][-1].as_py())


def by_run(table: pa.Table) -> list[dict[str, Any]]:
    """Return a row for each run: what it was, and its lines."""
    runs: dict[str, dict[str, Any]] = {}
    for row in table.to_pylist():
        run = runs.setdefault(
            row["run_id"],
            {name: row[name] for name in ("run_id", "suite", "policy_id", "method", "control", "seed", "scored_at")}
            | {"lines": []},
        )
        run["lines"].append(
            {name: row[name] for name in ("task", "length", "metric", "value", "low", "high", "n", "failed")}
        )
    return list(runs.values())


def same_before(store: Store, run_id: str) -> tuple[list[ScoreRow], str | None]:
    """Return the score rows of a run, and the run before it of the same policy name, samples and method, if any."""
    table: list[ScoreRow] = score_table(store).to_pylist()
    rows = [row for row in table if row["run_id"] == run_id]
    if not rows:
        raise UsageError(f"run {run_id} has no scores")
    alike, name = _samples(rows[0]), _policy_name(rows[0])
    earlier = [
        row["run_id"]
        for row in table
        if row["run_id"] != run_id
        and row["scored_at"] < rows[0]["scored_at"]
        and _samples(row) == alike
        and _policy_name(row) == name
    ]
    return rows, earlier[-1] if earlier else None


def _samples(row: ScoreRow) -> tuple[str, str, str, str]:
    """Return what names the samples of a score, and how they were read."""
    return (row["corpus"], row["samples"], row["method"], row["control"])


def _policy_name(row: ScoreRow) -> str:
    return row["policy_id"].rpartition("@")[0]
