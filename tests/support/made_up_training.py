"""Rows of metrics as a training run writes them. For the tests of its pictures and its report."""

import json
import random
from typing import Any

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.schemas import POLICIES_OF, now
from memagent.rl.config import load_recipe
from pipelines.training.checkpoints import Checkpoints, State

PHASES = ("rollout", "learn", "weight_sync", "validate", "save")


def validation(rng: random.Random, tasks: tuple[str, ...] = ("niah_single_1", "word 1")) -> dict[str, Any]:
    """Return a validation of 64 tasks."""
    scores = {name: rng.randint(32, 60) / 64 for name in ("reward", "strict", "lenient")}
    return {"n": 64, **scores, "tasks": {task: rng.random() for task in tasks}}


def step(number: int, rng: random.Random, **other: Any) -> dict[str, Any]:
    """Return a step; one with engines, where `other` does not take them away."""
    seconds = {"rollout": 20.0, "learn": 10.0, "weight_sync": 1.0, "validate": 0.0, "save": 9.0}
    whole = sum(seconds.values())
    return {
        "step": number,
        "version": f"train-x:{number}",
        **{name: 0.7 + 0.1 * rng.random() for name in ("reward", "strict", "lenient")},
        **{"groups": 4, "sampled_groups": 10, "kept_share": 0.4, "trajectories": 80},
        **{"response_tokens": 6.5, "memory_tokens": 5.5, "rollout_tokens": 40_000, "trained_tokens": 10_000.0},
        **{"rollout_tokens_per_second": 2000.0, "trained_tokens_per_second": 1000.0, "tasks": {"word 1": 0.5}},
        **{"kl": 0.0, "clipped_low": 0.001, "clipped_high": 0.002, "clipped_dual": 0.0, "entropy": 0.2},
        **{"logprob_diff": 1e-5 * rng.random(), "gradient_norm": 1.2, "lr": 1e-5},
        "seconds": seconds,
        "share": {name: value / whole for name, value in seconds.items()} | {"engines_wait": 0.5},
        "engine_deaths": 0,
        "workers_replaced": 0,
        **other,
    }


def run(steps: int = 20, seed: int = 0, every: int = 5) -> list[dict[str, Any]]:
    """Return the rows of a run: a validation before it, and one every few steps."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = [{"step": 0, "validation": validation(rng)}]
    for number in range(1, steps + 1):
        held = {} if number % every else {"validation": validation(rng)}
        rows.append(step(number, rng, **held))
    return rows


def replayed(steps: int = 3) -> list[dict[str, Any]]:
    """Return the rows of a run from records: no engine, no validation."""
    rows = [step(number, random.Random(number), rollout_tokens_per_second=0.0) for number in range(1, steps + 1)]
    return [
        {name: value for name, value in row.items() if name not in ("engine_deaths", "workers_replaced")}
        for row in rows
    ]


_OF_ROLLOUTS = ("reward", "strict", "lenient", "groups", "sampled_groups", "kept_share", "tasks", "logprob_diff")


def taught(steps: int = 3) -> list[dict[str, Any]]:
    """Return the rows of a run in which a teacher wrote the readings."""
    drawn = (*_OF_ROLLOUTS, "rollout_tokens", "rollout_tokens_per_second", "kl", "engine_deaths", "workers_replaced")
    return [
        {name: value for name, value in row.items() if name not in drawn and not name.startswith("clipped")}
        for row in (step(number, random.Random(number), nll=1.0 / number) for number in range(1, steps + 1))
    ]


def keep(store: Store, run_id: str, rows: list[dict[str, Any]], state: State | None = None) -> Checkpoints:
    """Write a run's metrics, and where it is."""
    journal = Checkpoints(store, run_id)
    journal.metrics = rows[:-1]
    journal.note(rows[-1])
    if state is not None:
        journal.commit(state)
    return journal


def end(store: Store, run_id: str, steps: int, **summary: Any) -> None:
    """Write the row of a run that ended."""
    recipe = load_recipe("nano-cpu").model_dump()
    known = {
        "run_id": run_id,
        "parent": "toy@0000",
        "candidate": "toy@1111",
        "steps": steps,
        "data": ["qa:contracts", "needles"],
        "data_version": 7,
        "config": {"recipe": recipe},
        **summary,
    }
    row = {"corpus": POLICIES_OF, "run_id": run_id, "kind": "train", "status": "completed", "config": "{}"}
    Table(store, "runs").upsert([{**row, "started_at": now(), "ended_at": now(), "summary": json.dumps(known)}])


def register(store: Store, policy_id: str, **other: Any) -> None:
    """Register a version without files."""
    row = {
        **{"corpus": POLICIES_OF, "policy_id": policy_id, "name": "toy", "path": "", "parent": "toy@0000"},
        **{"status": "candidate", "reason": "", "data_version": 7, "run_id": "train-x", "config": "{}"},
        **{"metrics": "{}", "promotion": None, "commit": "", "made_at": now(), "changed_at": now()},
    }
    Table(store, "policies").insert_new([{**row, **other}])
