"""The report of a training run: what it began with, what was learnt and at what cost, in one HTML file.

Runs that are still going or were interrupted have one as well: all but what a run was made of is in its metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.store import Store
from memagent.errors import UsageError
from memagent.rl.config import todays_keys
from pipelines.formatting import duration, number, percent, plain
from pipelines.report import training_plots as curves
from pipelines.report.html import embedded, sheet, write_sheet
from pipelines.report.panels import Rows, interval, series
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.records import candidate_of, find_training, metrics_of, summary_of_ended

_LAST_STEPS = 20
_SCORES = {"reward": ".3f", "strict": ".1%", "lenient": ".1%"}
_NONE = "–"
_TITLES = {
    "learning-curves": "Learning",
    "health-curves": "Health",
    "time-curves": "Time",
}
_NOTES = {
    "learning-curves": "Rollouts are sampled with noise from new tasks every step, validations are read greedily "
    "and always the same; bars are 95% intervals. Reward is what is paid for, with fines in rollouts; strict is an "
    "exact match, lenient one that is held in the answer.",
    "health-curves": "Logprob diff is the mean difference between the log-probabilities that engines sampled with and "
    "those that the learner found for the same tokens. Its lines are what others saw with healthy engines and with "
    "stale weights (TRL, issue 5312).",
    "time-curves": "The engines wait in all phases but rollout and validate.",
}
Row = Mapping[str, Any]


def draw(rows_by_run: Rows, folder: Path, *, spread: bool = False) -> list[Path]:
    """Draw what can be drawn of training runs; return the files.

    Raises:
        UsageError: there is nothing, or with `spread` the runs have no step in common.
    """
    made = curves.learning_curves(rows_by_run, folder, spread=spread)
    for picture in (curves.health_curves, curves.time_curves):
        with suppress(UsageError):  # no step was taken yet
            made += picture(rows_by_run, folder, spread=spread)
    return made


def write_training(store: Store, run_id: str, path: Path) -> Path:
    """Write the report of a training run, whole or not at all.

    Raises:
        UsageError: there is no such run; it says which there are.
        OSError: the file cannot be written.
    """
    return write_sheet(path, training_page(store, run_id))


def training_page(store: Store, run_id: str) -> str:
    """Return the report of a training run as HTML; see `write_training`."""
    run_id = find_training(store, run_id)
    rows = metrics_of(store, run_id)
    steps = [row for row in rows if row["step"] > 0]
    summary = summary_of_ended(store, run_id) or {}
    recipe = todays_keys(summary.get("config", {}).get("recipe", {}))
    return sheet(
        "training.html.j2",
        run_id=run_id,
        facts=_shown([("Ended", _ended(store, run_id, rows, summary)), *_facts(store, run_id, summary, recipe)]),
        known=bool(summary),
        recipe=_shown(_flat(recipe)),
        validations=_validations(rows),
        tasks=_tasks(rows),
        pictures=_pictures(run_id, rows),
        totals=_shown(_totals(steps)),
        steps=[_step(row) for row in steps[-_LAST_STEPS:]],
        taken=len(steps),
    )


def _ended(store: Store, run_id: str, rows: Sequence[Row], summary: Row) -> str:
    """Say how a run ended. One that was given more steps goes on, whatever it said when it ended before."""
    last = rows[-1]["step"] if rows else 0
    state = Checkpoints(store, run_id).read()
    if state is not None and state.done and summary.get("steps", last) >= last:
        return f"after {state.done}" if state.done[0].isdigit() else state.done
    kept = f"its newest checkpoint is of step {state.step}" if state is not None else "it has no checkpoint yet"
    return f"not yet: still going, or interrupted, after step {last}; {kept}. The same command takes it up again."


def _facts(store: Store, run_id: str, summary: Row, recipe: Row) -> Iterable[tuple[str, object]]:
    candidate = candidate_of(store, run_id, summary.get("candidate", ""))
    if summary:
        yield "Began with", summary["parent"]
        yield "Candidate", summary["candidate"] or "none: nothing was better than what training began with"
    elif candidate:
        yield "Began with", candidate["parent"]
        yield "Candidate", candidate["policy_id"]
    if candidate:
        yield "Gate", _gate(candidate)
    if summary:
        yield "Data", ", ".join(summary["data"])
        version = summary["data_version"]
        yield "Data version", "none" if version is None else version
    if recipe:
        yield "Recipe", _recipe(recipe)
        yield "Seed", recipe["stage"]["seed"]


def _gate(row: Row) -> str:
    """Say what became of a candidate, with the numbers it was decided by."""
    said = f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])
    overall = (row["gate"] or {}).get("overall")
    if not overall:
        return said + (" (not compared yet)" if row["status"] == "candidate" else " (without a comparison)")
    means = f"{overall['candidate']:.1%} against {overall['incumbent']:.1%}"
    return f"{said} ({means} of {row['gate'].get('incumbent', 'the promoted policy')}, n={overall['n']})"


def _recipe(recipe: Row) -> str:
    rollout, loss, stage = recipe["rollout"], recipe["loss"], recipe["stage"]
    paid = " + ".join(f"{weight:g} {name}" for name, weight in recipe["reward"]["weights"].items())
    return (
        f"{rollout['prompts']} groups of {rollout['group_size']} a step, {stage['max_steps']} steps at most; "
        f"reward {paid}; learning rate {recipe['learner']['lr']:g}; "
        f"clipped {loss['clip_low']:g} below, {loss['clip_high']:g} above; "
        f"KL {loss['kl_coef'] or 'off'}"
    )


def _flat(value: Row, prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def _marked(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the first, best and last validation, each once; best as the loop chooses, the earliest of equals."""
    found = [row for row in rows if "validation" in row]
    if not found:
        return []
    best = max(found, key=lambda row: (row["validation"]["reward"], -row["step"]))
    names: dict[int, list[str]] = {}
    for name, row in (("before" if found[0]["step"] == 0 else "first", found[0]), ("best", best), ("last", found[-1])):
        names.setdefault(row["step"], []).append(name)
    return [(", ".join(names[row["step"]]), row) for row in found if row["step"] in names]


def _validations(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "step": row["step"],
            "n": row["validation"]["n"],
            "scores": [_score(row["validation"], score, form) for score, form in _SCORES.items()],
        }
        for name, row in _marked(rows)
    ]


def _score(found: Row, name: str, form: str) -> tuple[str, str]:
    known = interval(found[name], found["n"])
    return format(found[name], form), f"{known[0]:{form}} to {known[1]:{form}}" if known else _NONE


def _tasks(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the table of mean rewards by task: its columns, and a row a task."""
    marked = _marked(rows)
    found = [row["validation"].get("tasks", {}) for _, row in marked]
    names = sorted({name for tasks in found for name in tasks})
    return {
        "columns": [f"{name} (step {row['step']})" for name, row in marked],
        "rows": [(plain(name), [_figure(tasks, name, ".3f") for tasks in found]) for name in names],
    }


def _pictures(run_id: str, rows: Sequence[Row]) -> list[dict[str, str]]:
    if not rows:
        return []
    with TemporaryDirectory() as folder:
        drawn = draw({run_id: rows}, Path(folder))
        return [embedded(path, _TITLES, _NOTES) for path in drawn if path.suffix == ".svg"]


def _totals(steps: Sequence[Row]) -> Iterable[tuple[str, object]]:
    seconds = {phase: sum(series(steps, f"seconds/{phase}").values()) for phase in curves.PHASES}
    whole = sum(seconds.values())
    yield "Steps", number(len(steps))
    for name, text in (
        ("trajectories", "Rollouts"),
        ("rollout_tokens", "Tokens sampled (prompts and responses)"),
        ("trained_tokens", "Tokens trained"),
    ):
        yield text, number(sum(series(steps, name).values()))
    yield "Time of the steps", duration(whole)
    yield "Time by phase", ", ".join(f"{phase} {percent(part, whole)}" for phase, part in seconds.items())
    if any("engine_deaths" in row for row in steps):  # else rollouts came from records
        yield "Engines waited, of that time", percent(whole - seconds["rollout"] - seconds["validate"], whole)
        yield "Engines that died", number(_counted(series(steps, "engine_deaths").values()))
        yield "Workers replaced", number(_counted(series(steps, "workers_replaced").values()))


def _counted(values: Iterable[float]) -> float:
    """Add up a count that begins at 0 again whenever a run goes on after an interruption."""
    total = before = 0.0
    for value in values:
        total += value - before if value >= before else value
        before = value
    return total


def _step(row: Row) -> list[str]:
    """Return the cells of a step, as `training.html.j2` heads them."""
    clipped = sum(series([row], name).get(row["step"], 0.0) for name in ("clipped_low", "clipped_high", "clipped_dual"))
    return [
        str(row["step"]),
        *(_figure(row, name, form) for name, form in _SCORES.items()),
        *(
            _figure(row, name, form)
            for name, form in (("kept_share", ".0%"), ("logprob_diff", ".2g"), ("entropy", ".3f"))
        ),
        f"{clipped:.2%}",
        *(_figure(row, name, form) for name, form in (("gradient_norm", ".2f"), ("response_tokens", ".1f"))),
        *(_figure(row, f"{name}_tokens_per_second", ",.0f") for name in ("rollout", "trained")),
        f"{sum(row.get('seconds', {}).values()):.0f}",
    ]


def _figure(row: Row, name: str, form: str) -> str:
    value = row.get(name)
    return format(value, form) if isinstance(value, int | float) else _NONE


def _shown(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(plain(name), plain(value)) for name, value in pairs]
