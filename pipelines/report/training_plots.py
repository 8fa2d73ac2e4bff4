"""The plots of training runs by step, each as SVG and PNG; equal data give equal files.

All take the rows of ``metrics.jsonl`` by run name. Each run is a line; with `spread`, one line is their mean, in the
range from lowest to highest.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memagent.errors import UsageError
from pipelines.report.panels import (
    Metric,
    Panel,
    Rows,
    draw_bounds,
    draw_intervals,
    draw_lines,
    draw_stack,
    legend,
    middle,
    picture,
    series,
)
from pipelines.report.plotting import shown_name

PHASES = ("rollout", "learn", "weight_sync", "validate", "save")
"""Phases of a step that the loop times."""
LOGPROB_DIFF_BOUNDS = {"0.015: healthy": 0.015, "0.2: stale weights": 0.2}
"""Mean log-probability differences with engine weights in sync and stale. Source: TRL, issue 5312."""

_SCORES = {"reward": "Reward", "strict": "Strict score (%)", "lenient": "Lenient score (%)"}
_ROLLOUTS = tuple(Metric(f"Rollouts: {text}", ((name, ""),), name != "reward") for name, text in _SCORES.items())
_VALIDATIONS = tuple(
    Metric(f"Validation: {text}", ((f"validation/{name}", ""),), name != "reward") for name, text in _SCORES.items()
)
_LOGPROB_DIFF = Metric("Logprob diff, engine to learner (nats)", (("logprob_diff", ""),))
_KL = Metric("KL to the reference (nats a token)", (("kl", ""),))
_HEALTH = (
    Metric("Entropy (nats a token)", (("entropy", ""),)),
    _LOGPROB_DIFF,
    Metric("Clipped tokens (%)", (("clipped_low", "low"), ("clipped_high", "high"), ("clipped_dual", "dual")), True),
    Metric("Gradient norm", (("gradient_norm", ""),)),
    Metric("Groups with signal (%)", (("kept_share", ""),), True),
    Metric("Tokens of a response", (("response_tokens", "all"), ("memory_tokens", "memories"))),
    _KL,
)
_SPEEDS = (
    Metric("Rollouts (tokens/s)", (("rollout_tokens_per_second", ""),)),
    Metric("Learner (tokens/s)", (("trained_tokens_per_second", ""),)),
)
_LONG = 15
"""Steps from which on lines are smoothed."""


def learning_curves(rows_by_run: Rows, folder: Path, *, spread: bool = False) -> list[Path]:
    """Plot reward, strict and lenient score of rollouts, and below them of validations.

    Validations have 95% intervals (`memagent.stats.mean`), or with `spread` the runs' range. Raises UsageError if
    there are no rows, or with `spread` the runs have no step in common.
    """
    runs = _runs(rows_by_run, spread)
    longest = max(len(rows) for rows in runs.values())
    window = max(5, longest // 20) if longest >= _LONG and not spread else 1
    panels = []
    if any(metric.known(runs) for metric in _ROLLOUTS):
        draw = partial(draw_lines, runs=runs, spread=spread, window=window)
        panels += [Panel(metric.title, partial(draw, metric=metric)) for metric in _ROLLOUTS]
    if any(metric.known(runs) for metric in _VALIDATIONS):
        draw = partial(draw_lines, runs=runs, spread=True) if spread else partial(_validation, runs=runs)
        panels += [Panel(metric.title, partial(draw, metric=metric)) for metric in _VALIDATIONS]
    return picture(folder, "learning-curves", panels, legend(runs, spread=spread, window=window), even=True)


def health_curves(rows_by_run: Rows, folder: Path, *, spread: bool = False) -> list[Path]:
    """Plot entropy, logprob diff, clipping, gradient norm, groups kept, response lengths, and KL if it was on.

    Raises UsageError as `learning_curves` does, and if no step was taken.
    """
    runs = _runs(rows_by_run, spread)
    known = [metric for metric in _HEALTH if metric.known(runs, above_zero=metric is _KL)]
    if not known:
        raise UsageError("no step was taken yet: there is no health to draw.")
    panels = [Panel(metric.title, partial(_health, runs=runs, metric=metric, spread=spread)) for metric in known]
    return picture(folder, "health-curves", panels, legend(runs, spread=spread))


def time_curves(rows_by_run: Rows, folder: Path, *, spread: bool = False) -> list[Path]:
    """Plot tokens per second of rollouts and learner, and each phase's share of a step's time.

    The shares are a panel per run, or with `spread` one of their means. Raises UsageError as `health_curves` does.
    """
    runs = _runs(rows_by_run, spread)
    shares = {run: {phase: series(rows, f"share/{phase}") for phase in PHASES} for run, rows in runs.items()}
    shares = {run: parts for run, parts in shares.items() if any(parts.values())}
    if not shares:
        raise UsageError("no step was taken yet: there is no time to draw.")
    if spread:
        shares = {"mean": {phase: middle([parts[phase] for parts in shares.values()]) for phase in PHASES}}
    known = [metric for metric in _SPEEDS if metric.known(runs, above_zero=True)]
    panels = [Panel(metric.title, partial(_from_zero, runs=runs, metric=metric, spread=spread)) for metric in known]
    for run, parts in shares.items():
        title = "Share of a step (%)" if len(runs) == 1 else f"Share of a step (%): {run}"
        panels.append(Panel(title, partial(draw_stack, parts=parts)))
    return picture(folder, "time-curves", panels, legend(runs, spread=spread, parts=PHASES))


def _runs(rows_by_run: Rows, spread: bool) -> Rows:
    runs = {shown_name(name): rows for name, rows in rows_by_run.items() if rows}
    if not runs:
        raise UsageError("there are no metrics to draw.")
    if spread and not _steps_in_common(runs):
        raise UsageError("the runs have no step in common: there is no mean to draw.")
    return runs


def _steps_in_common(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[int]:
    return set.intersection(*({int(row["step"]) for row in rows} for rows in runs.values()))


def _validation(axes: Any, runs: Rows, metric: Metric) -> None:
    draw_intervals(axes, runs, metric, "validation/n")


def _health(axes: Any, runs: Rows, metric: Metric, spread: bool) -> None:
    if metric is _LOGPROB_DIFF:
        draw_lines(axes, runs, metric, spread=spread)
        draw_bounds(
            axes,
            [value for rows in runs.values() for value in series(rows, "logprob_diff").values()],
            LOGPROB_DIFF_BOUNDS,
        )
    else:
        _from_zero(axes, runs, metric, spread)


def _from_zero(axes: Any, runs: Rows, metric: Metric, spread: bool) -> None:
    draw_lines(axes, runs, metric, spread=spread)
    axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
