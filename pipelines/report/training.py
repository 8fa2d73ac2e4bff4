"""The report of a training run: start, learning curves and cost, in one HTML file.

Works for unfinished runs too: only the summary's facts are missing then.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from infra.store.location import Store
from infra.store.runs import read_summary
from infra.store.schemas import POLICIES_OF
from memagent.errors import UsageError
from pipelines.report import plots as curves
from pipelines.report.html import embedded, sheet, write_sheet
from pipelines.report.panels import Rows, interval, series
from pipelines.training.checkpoints import Checkpoints, read_metrics
from pipelines.training.records import candidate_of, find_training
from pipelines.views.formatting import duration, number, percent, plain

_LAST_STEPS = 20
_SCORES = {"reward": ".3f", "strict": ".1%", "lenient": ".1%"}
_NONE = "–"
_TITLES = {"learning-curves": "Learning", "health-curves": "Health", "time-curves": "Time"}
_NOTES = {
    "learning-curves": "Rollouts are sampled, from new tasks every step; validations are greedy, on the same tasks; "
    "bars are 95% intervals. Reward is what training optimises, with penalties in rollouts; strict is exact match, "
    "lenient whether the answer contains the gold answer.",
    "health-curves": "Logprob diff is the mean difference between the engines' log-probabilities and the learner's "
    "of the same tokens. The dashed lines are values reported for healthy engines and for stale weights (TRL, issue "
    "5312).",
    "time-curves": "The engines are idle in all phases but rollout and validate.",
}
_TAUGHT_NOTES = {
    "learning-curves": "The loss: the mean over the tokens of the teacher's responses, of new tasks every step.",
    "health-curves": "",
    "time-curves": "In the phase rollout the teacher writes its readings; no engine runs.",
}
_COLUMNS = {
    "Step": ("step", "d"),
    "Reward": ("reward", ".3f"),
    "Strict": ("strict", ".1%"),
    "Lenient": ("lenient", ".1%"),
    "Teach": ("kept_share", ".0%"),
    "Gap": ("logprob_diff", ".2g"),
    "NLL": ("nll", ".4f"),
    "Entropy": ("entropy", ".3f"),
    "Clipped": ("clipped", ".2%"),
    "Norm": ("gradient_norm", ".2f"),
    "Response": ("response_tokens", ".1f"),
    "Sampled/s": ("rollout_tokens_per_second", ",.0f"),
    "Trained/s": ("trained_tokens_per_second", ",.0f"),
    "Seconds": ("whole", ".0f"),
}
"""Columns of the table of steps: metric and form."""
_OF_ROLLOUTS = frozenset({"Reward", "Strict", "Lenient", "Teach", "Gap", "Clipped", "Sampled/s"})
Row = Mapping[str, Any]


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Plot a training run; return the files.

    Raises UsageError: there are no metrics.
    """
    files = curves.learning_curves(rows, folder)
    for picture in (curves.health_curves, curves.time_curves):
        with suppress(UsageError):  # no step was taken yet
            files += picture(rows, folder)
    return files


def write_training(store: Store, run_id: str, path: str | Path) -> Path:
    """Write the report of a training run atomically.

    Raises:
        UsageError: there is no such run; the message lists the runs.
        OSError: the file cannot be written.
    """
    return write_sheet(Path(path), training_page(store, run_id))


def training_page(store: Store, run_id: str) -> str:
    """Return the report of a training run as HTML; see `write_training`."""
    run_id = find_training(store, run_id)
    rows = read_metrics(store, run_id)
    steps = [row for row in rows if row["step"] > 0]
    summary = read_summary(store, run_id, POLICIES_OF) or {}
    recipe = summary.get("config", {}).get("recipe", {})
    taught = curves.is_taught(steps)
    columns = [name for name in _COLUMNS if (name not in _OF_ROLLOUTS if taught else name != "NLL")]
    notes = _TAUGHT_NOTES if taught else _NOTES
    return sheet(
        "training.html.j2",
        run_id=run_id,
        taught=taught,
        facts=_shown([("Ended", _ended(store, run_id, rows, summary)), *_facts(store, run_id, summary, recipe)]),
        known=bool(summary),
        recipe=_shown(_flat(recipe)),
        validations=_validations(rows),
        tasks=_tasks(rows),
        pictures=embedded(partial(draw, rows), _TITLES, notes) if rows else [],
        totals=_shown(_totals(steps, taught)),
        columns=columns,
        steps=[_step(row, columns) for row in steps[-_LAST_STEPS:]],
        taken=len(steps),
    )


def _ended(store: Store, run_id: str, rows: Sequence[Row], summary: Row) -> str:
    """Return how a run ended. A finished run that was given more steps has not ended."""
    last = rows[-1]["step"] if rows else 0
    state = Checkpoints(store, run_id).read()
    if state is not None and state.done and summary.get("steps", last) >= last:
        return f"after {state.done}" if state.done[0].isdigit() else state.done
    checkpoint = f"its newest checkpoint is of step {state.step}" if state is not None else "it has no checkpoint yet"
    return f"not yet: running or interrupted, after step {last}; {checkpoint}. Run the same command to resume."


def _facts(store: Store, run_id: str, summary: Row, recipe: Row) -> Iterable[tuple[str, object]]:
    candidate = candidate_of(store, run_id, summary.get("candidate", ""))
    if summary:
        yield "Began with", summary["parent"]
        yield "Candidate", summary["candidate"] or "none: nothing was better than what training began with"
    elif candidate:
        yield "Began with", candidate["parent"]
        yield "Candidate", candidate["policy_id"]
    if candidate:
        yield "Promotion check", _check(candidate)
    if summary:
        yield "Data", ", ".join(summary["data"])
        version = summary["data_version"]
        yield "Data version", "none" if version is None else version
    if recipe:
        yield "Recipe", _recipe(recipe)
        yield "Seed", recipe["stage"]["seed"]


def _check(row: Row) -> str:
    status = f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])
    overall = (row["promotion"] or {}).get("overall")
    if not overall:
        return status + (" (not compared yet)" if row["status"] == "candidate" else " (without a comparison)")
    means = f"{overall['candidate']:.1%} against {overall['incumbent']:.1%}"
    return f"{status} ({means} of {row['promotion'].get('incumbent', 'the promoted policy')}, n={overall['n']})"


def _recipe(recipe: Row) -> str:
    rollout, loss, stage = recipe["rollout"], recipe["loss"], recipe["stage"]
    ends = f"{stage['max_steps']} steps at most"
    if rollout["teacher"]:
        rate = f"learning rate {recipe['learner']['lr']:g}"
        return f"{rollout['prompts']} readings of the teacher a step, {ends}; {rate}"
    rewards = " + ".join(f"{weight:g} {name}" for name, weight in recipe["reward"]["weights"].items())
    return (
        f"{rollout['prompts']} groups of {rollout['group_size']} a step, {ends}; "
        f"reward {rewards}; learning rate {recipe['learner']['lr']:g}; "
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
    """Return the first, best and last validation, each once; the best is the earliest of equals, as in the loop."""
    validated = [row for row in rows if "validation" in row]
    if not validated:
        return []
    best = max(validated, key=lambda row: (row["validation"]["reward"], -row["step"]))
    names: dict[int, list[str]] = {}
    for name, row in (
        ("before" if validated[0]["step"] == 0 else "first", validated[0]),
        ("best", best),
        ("last", validated[-1]),
    ):
        names.setdefault(row["step"], []).append(name)
    return [(", ".join(names[row["step"]]), row) for row in validated if row["step"] in names]


class _Validation(TypedDict):
    name: str
    step: int
    n: int
    scores: list[tuple[str, str]]


class _TaskTable(TypedDict):
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def _validations(rows: Sequence[Row]) -> list[_Validation]:
    return [
        {
            "name": name,
            "step": row["step"],
            "n": row["validation"]["n"],
            "scores": [_score(row["validation"], score, form) for score, form in _SCORES.items()],
        }
        for name, row in _marked(rows)
    ]


def _score(validation: Row, name: str, form: str) -> tuple[str, str]:
    bounds = interval(validation[name], validation["n"])
    return format(validation[name], form), f"{bounds[0]:{form}} to {bounds[1]:{form}}" if bounds else _NONE


def _tasks(rows: Sequence[Row]) -> _TaskTable:
    marked = _marked(rows)
    rewards = [row["validation"].get("tasks", {}) for _, row in marked]
    names = sorted({name for tasks in rewards for name in tasks})
    return {
        "columns": [f"{name} (step {row['step']})" for name, row in marked],
        "rows": [(plain(name), [_figure(tasks, name, ".3f") for tasks in rewards]) for name in names],
    }


def _totals(steps: Sequence[Row], taught: bool) -> Iterable[tuple[str, object]]:
    seconds = {phase: sum(series(steps, f"seconds/{phase}").values()) for phase in curves.PHASES}
    whole = sum(seconds.values())
    yield "Steps", number(len(steps))
    amounts = {"Readings of the teacher" if taught else "Rollouts": "trajectories"}
    amounts |= {} if taught else {"Tokens sampled (prompts and responses)": "rollout_tokens"}
    amounts |= {"Tokens trained (prompts and responses)": "trained_tokens", "Tokens computed": "computed_tokens"}
    for text, name in amounts.items():
        if counted := series(steps, name).values():
            yield text, number(sum(counted))
    yield "Time of the steps", duration(whole)
    yield "Time by phase", ", ".join(f"{phase} {percent(part, whole)}" for phase, part in seconds.items())
    if any("engine_deaths" in row for row in steps):  # else rollouts were replayed
        yield "Engines idle, of that time", percent(whole - seconds["rollout"] - seconds["validate"], whole)
        yield "Engines that died", number(_counted(series(steps, "engine_deaths").values()))
        yield "Workers replaced", number(_counted(series(steps, "workers_replaced").values()))


def _counted(values: Iterable[float]) -> float:
    """Sum a counter that restarts at 0 when an interrupted run resumes."""
    total = before = 0.0
    for value in values:
        total += value - before if value >= before else value
        before = value
    return total


def _step(row: Row, columns: Sequence[str]) -> list[str]:
    """Return a step's cells in some of the columns."""
    clipped = sum(series([row], name).get(row["step"], 0.0) for name in ("clipped_low", "clipped_high", "clipped_dual"))
    whole = {"clipped": clipped, "whole": sum(row.get("seconds", {}).values()), **row}
    return [_figure(whole, *_COLUMNS[name]) for name in columns]


def _figure(row: Row, name: str, form: str) -> str:
    value = row.get(name)
    return format(value, form) if isinstance(value, int | float) else _NONE


def _shown(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(plain(name), plain(value)) for name, value in pairs]
