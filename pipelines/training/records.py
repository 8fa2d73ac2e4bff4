"""What is kept of a training run beside its own files: its row in `runs`, and what its policy says of itself."""

import json
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from infra.store import Store
from infra.tables.delta import Table, now
from infra.tables.schemas import POLICIES_OF
from pipelines.training.checkpoints import Checkpoints, State
from pipelines.training.settings import Run

_ROOT = Path(__file__).parents[2]


def summary_of(run: Run, journal: Checkpoints, state: State, policy_id: str) -> dict[str, Any]:
    """Return the summary of a run as plain data."""
    validations = [{"step": row["step"], **row["validation"]} for row in journal.metrics if "validation" in row]
    last = journal.metrics[-1] if journal.metrics else {}
    return {
        "run_id": journal.run_id,
        "kind": "train",
        "corpus": POLICIES_OF,
        "policy": run.reader.policy.name,
        "parent": run.reader.policy.policy_id,
        "candidate": policy_id,
        "steps": state.step,
        "ended": state.done,
        "best_step": state.best_step,
        "validation": {
            "before": validations[0] if validations else None,
            "best": next((one for one in validations if one["step"] == state.best_step), None),
            "last": validations[-1] if validations else None,
        },
        "last": {
            name: last.get(name) for name in ("reward", "strict", "lenient", "logprob_diff", "entropy", "kept_share")
        },
        **state.counts,
        "data": list(run.data),
        "data_version": run.data_version,
        "config": {"recipe": run.recipe.model_dump(), **run.config.public()},
    }


def write_run(store: Store, started: datetime, summary: dict[str, Any]) -> None:
    """Write the run's row."""
    row = {
        "corpus": summary["corpus"],
        "run_id": summary["run_id"],
        "kind": summary["kind"],
        "status": "completed",
        "started_at": started,
        "ended_at": now(),
        "config": json.dumps(summary["config"]),
        "summary": json.dumps(summary),
    }
    Table(store, "runs").upsert([row])


def code_version() -> str:
    """Return the commit of a checkout, else the version of the package."""
    if (_ROOT / ".git").exists():
        asked = subprocess.run(["git", "-C", str(_ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    try:
        return version("memagent")
    except PackageNotFoundError:
        return ""
