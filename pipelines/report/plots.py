"""The plots of a training run by step, from its ``metrics.jsonl``, and of an evaluation, each as SVG and PNG.

Equal data give equal files.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from memagent.errors import UsageError
from memagent.evaluation.stats import mean
from pipelines.report.panels import (
    COLOURS,
    MARKS,
    WIDE,
    Metric,
    Panel,
    Rows,
    canvas,
    draw_bounds,
    draw_intervals,
    draw_lines,
    draw_stack,
    legend,
    looks,
    picture,
    save,
    series,
    shown_name,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist


PHASES = ("rollout", "learn", "weight_sync", "validate", "save")
"""Phases of a step that the loop times."""
LOGPROB_DIFF_BOUNDS = {"0.015: healthy": 0.015, "0.2: stale weights": 0.2}
"""Mean log-probability differences with engine weights in sync and stale. Source: TRL, issue 5312."""

_SCORES = {"reward": "Reward", "strict": "Strict score (%)", "lenient": "Lenient score (%)"}
_ROLLOUTS = tuple(Metric(f"Rollouts: {text}", ((name, ""),), name != "reward") for name, text in _SCORES.items())
_VALIDATIONS = tuple(
    Metric(f"Validation: {text}", ((f"validation/{name}", ""),), name != "reward") for name, text in _SCORES.items()
)
_NLL = Metric("Teacher: negative log-likelihood (nats a token)", (("nll", ""),))
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


def learning_curves(rows: Rows, folder: Path) -> list[Path]:
    """Plot reward, strict and lenient score of rollouts, below them of validations; of a teacher's readings, the loss.

    Validations have 95% intervals (`stats.mean`). Raises UsageError: there are no rows.
    """
    if not rows:
        raise UsageError("there are no metrics to draw.")
    window = max(5, len(rows) // 20) if len(rows) >= _LONG else 1
    panels = []
    if any(metric.known(rows) for metric in _ROLLOUTS):
        draw = partial(draw_lines, rows=rows, window=window)
        panels += [Panel(metric.title, partial(draw, metric=metric)) for metric in _ROLLOUTS]
    if any(metric.known(rows) for metric in _VALIDATIONS):
        draw = partial(draw_intervals, rows=rows, counts="validation/n")
        panels += [Panel(metric.title, partial(draw, metric=metric)) for metric in _VALIDATIONS]
    if is_taught(rows) and _NLL.known(rows):
        panels.append(Panel(_NLL.title, partial(draw_lines, rows=rows, metric=_NLL, window=window)))
    return picture(folder, "learning-curves", panels, legend(window=window), even=True)


def health_curves(rows: Rows, folder: Path) -> list[Path]:
    """Plot entropy, logprob diff, clipping, gradient norm, groups kept, response lengths, and KL if it was on.

    Raises UsageError: no step was taken.
    """
    known = [metric for metric in _HEALTH if metric.known(rows, above_zero=metric is _KL)]
    if not known:
        raise UsageError("no step was taken yet: there is no health to draw.")
    panels = [Panel(metric.title, partial(_health, rows=rows, metric=metric)) for metric in known]
    return picture(folder, "health-curves", panels, legend())


def time_curves(rows: Rows, folder: Path) -> list[Path]:
    """Plot tokens per second of rollouts and learner, and each phase's share of a step's time.

    Raises UsageError: no step was taken.
    """
    shares = {phase: series(rows, f"share/{phase}") for phase in PHASES}
    if not any(shares.values()):
        raise UsageError("no step was taken yet: there is no time to draw.")
    known = [metric for metric in _SPEEDS if metric.known(rows, above_zero=True)]
    panels = [Panel(metric.title, partial(_from_zero, rows=rows, metric=metric)) for metric in known]
    panels.append(Panel("Share of a step (%)", partial(draw_stack, parts=shares)))
    return picture(folder, "time-curves", panels, legend(parts=PHASES))


def is_taught(rows: Rows) -> bool:
    """Whether a run's steps are of a teacher's readings, which earn no reward."""
    return any("nll" in row and "reward" not in row for row in rows)


def _health(axes: Any, rows: Rows, metric: Metric) -> None:
    if metric is _LOGPROB_DIFF:
        draw_lines(axes, rows, metric)
        draw_bounds(axes, series(rows, "logprob_diff").values(), LOGPROB_DIFF_BOUNDS)
    else:
        _from_zero(axes, rows, metric)


def _from_zero(axes: Any, rows: Rows, metric: Metric) -> None:
    draw_lines(axes, rows, metric)
    axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)


Readings = Sequence[Mapping[str, Any]]
"""Rows with `method` (as in the legend), `length` (tokens of the text, above 0), `depth` of the fact (0 start to 1 end;
None: it has none), `score` (0 to 1), `tokens` and engine `seconds` (None: the reading failed), `confidence` (0 to 1;
None: not known). What can be drawn of which rows: `pipelines.report.evaluation.draw`."""
PUBLISHED_LABEL = "published (paper), RULER-HQA"
PUBLISHED_LENGTHS = (7_000, 28_000, 112_000, 448_000, 896_000, 1_750_000, 3_500_000)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "RL-MemAgent-14B": (83.6, 84.4, 76.6, 75.0, 77.3, 76.6, 78.1),
    "RL-MemAgent-7B": (82.0, 78.9, 79.7, 74.2, 76.6, 75.8, 71.1),
    "QwenLong-L1-32B": (72.7, 72.7, 31.3, 13.3, 11.7),
    "Qwen2.5-14B-1M": (60.2, 50.0, 50.0, 8.6, 0.0),
}
"""Percent right (sub_em) by length. Source: MemAgent, arXiv 2507.02259, version 1, main results on RULER-HQA."""

LEAST_KNOWN, _GROUPS = 25, 5
"""Answers with a confidence that a reliability diagram needs, and its groups."""

_GREYS = ("#555555", "#777777", "#8c8c8c", "#a0a0a0")
_DEPTHS = 10
_SHARES = 20
_MOST_LABELLED = 12


def accuracy_by_length(rows: Readings, folder: Path, *, published: bool = True) -> list[Path]:
    """Plot accuracy by length with 95% intervals, one line per method, over the published curves."""
    groups = _grouped(rows, "score")
    below = 1.2 + 0.24 * max(len(groups), len(PUBLISHED) * published)  # inches for the legends
    with canvas(WIDE, 4.2 + below) as figure:
        axes = figure.add_subplot()
        reference = [
            axes.plot(PUBLISHED_LENGTHS[: len(values)], values, "--", color=grey, marker=mark, ms=4, lw=1, label=name)[
                0
            ]
            for (name, values), grey, mark in zip(PUBLISHED.items(), _GREYS, MARKS, strict=False)
            if published
        ]
        ours = []
        for i, (method, (colour, mark)) in enumerate(looks(groups).items()):
            # Side by side, so that intervals at one length do not overlap.
            shift = 1.03 ** (i - (len(groups) - 1) / 2)
            scores = {length * shift: mean("accuracy", values) for length, values in groups[method].items()}
            share = [100 * score.value for score in scores.values()]
            low = [100 * (score.value - score.low) for score in scores.values()]
            high = [100 * (score.high - score.value) for score in scores.values()]
            line = axes.errorbar(
                list(scores), share, [low, high], color=colour, marker=mark, ms=5, lw=1.8, capsize=3, label=method
            )
            ours.append(line)
        _lengths(axes, {*PUBLISHED_LENGTHS * published, *(length for group in groups.values() for length in group)})
        axes.set(ylim=(-3, 103), ylabel="Right answers (%)")
        bottom = below / (4.2 + below)
        figure.subplots_adjust(left=0.09, right=0.97, top=0.97, bottom=bottom)
        top = bottom - 0.65 / (4.2 + below)
        figure.legend(handles=ours, loc="upper left", bbox_to_anchor=(0.08, top), title="measured, 95% interval")
        if reference:
            figure.legend(handles=reference, loc="upper left", bbox_to_anchor=(0.5, top), title=PUBLISHED_LABEL)
        return save(figure, folder, "accuracy-by-length")


def accuracy_by_depth(rows: Readings, folder: Path) -> list[Path]:
    """Plot a heat map of one method's accuracy by depth of the fact (tenths) and length; rows without a depth are left
    out.
    """
    valid = [row for row in rows if row["depth"] is not None]
    cells: dict[tuple[int, int], list[float]] = {}
    for row in valid:
        cells.setdefault((_bin(row["depth"], _DEPTHS), int(row["length"])), []).append(float(row["score"]))
    lengths = sorted({length for _, length in cells})
    share = {cell: 100 * sum(values) / len(values) for cell, values in cells.items()}
    grid = [[share.get((depth, length), math.nan) for length in lengths] for depth in range(_DEPTHS)]
    with canvas(WIDE, 5.0) as figure:
        axes = figure.add_subplot()
        mesh = axes.pcolormesh(grid, cmap="cividis", vmin=0, vmax=100, edgecolors="white", linewidth=1)
        for (depth, length), value in share.items():
            if len(lengths) <= _MOST_LABELLED:
                colour = "white" if value < 50 else "#111111"  # on a cell's colour: the same on a dark page
                centre = (lengths.index(length) + 0.5, depth + 0.5)
                axes.text(*centre, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks([i + 0.5 for i in range(len(lengths))], [tokens_label(length) for length in lengths])
        axes.set_yticks(range(0, _DEPTHS + 1, 2), [f"{10 * i}%" for i in range(0, _DEPTHS + 1, 2)])
        axes.invert_yaxis()
        axes.set(xlabel="Length of the text (tokens)", ylabel="Depth of the fact", title=shown_name(valid[0]["method"]))
        figure.colorbar(mesh, label="Right answers (%)").outline.set_visible(False)
        figure.tight_layout()
        return save(figure, folder, "accuracy-by-depth")


def cost_by_length(rows: Readings, folder: Path) -> list[Path]:
    """Plot median tokens and seconds of a reading by length on logarithmic axes, with a line of slope 1; failed
    readings are left out.
    """
    styles = looks(shown_name(row["method"]) for row in rows)
    handle_of: dict[str, Artist] = {}
    with canvas(WIDE, 4.6) as figure:
        for i, (column, label) in enumerate(
            [("tokens", "Tokens of a reading"), ("seconds", "Engine seconds of a reading")]
        ):
            axes = figure.add_subplot(1, 2, i + 1)
            groups = _grouped([row for row in rows if (row[column] or 0) > 0], column)
            for method, group in groups.items():
                costs = [median(values) for values in group.values()]
                colour, mark = styles[method]
                axes.plot(list(group), costs, color=colour, marker=mark, ms=5, lw=1.8, label=method)
            lengths = sorted({length for group in groups.values() for length in group})
            first = next(iter(groups.values()))
            start, values = next(iter(first.items()))
            line = [median(values) * length / start for length in lengths]
            axes.plot(lengths, line, color="#d9d9d9", lw=7, zorder=1, label="slope 1 (linear)")
            axes.set_yscale("log")
            _label(axes.yaxis, *axes.get_ylim())
            _lengths(axes, lengths)
            axes.set(ylabel=label)
            handles, labels = axes.get_legend_handles_labels()
            handle_of |= dict(zip(labels, handles, strict=True))
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.legend(list(handle_of.values()), list(handle_of), loc="lower center", ncols=min(5, len(handle_of)))
        return save(figure, folder, "cost-by-length")


def reliability(rows: Readings, folder: Path) -> list[Path]:
    """Plot the share of right answers, with 95% intervals, by confidence: in five groups of equal size.

    Answers without a confidence are left out; `LEAST_KNOWN` have one.
    """
    known = (row for row in rows if row["confidence"] is not None)
    valid = sorted(known, key=lambda row: float(row["confidence"]))
    cuts = [len(valid) * i // _GROUPS for i in range(_GROUPS + 1)]
    groups = [valid[low:high] for low, high in pairwise(cuts)]
    sure = [100 * median(float(row["confidence"]) for row in group) for group in groups]
    scores = [mean("accuracy", [float(row["score"]) for row in group]) for group in groups]
    low, high = [100 * (s.value - s.low) for s in scores], [100 * (s.high - s.value) for s in scores]
    with canvas(WIDE, 4.6) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 100], [0, 100], color="#d9d9d9", lw=7, zorder=1, label="as a probability")
        shares = [100 * score.value for score in scores]
        axes.errorbar(
            sure, shares, [low, high], color=COLOURS[0], marker="o", ms=5, lw=1.8, capsize=3, label="measured"
        )
        axes.set(xlim=(max(0, sure[0] - 5), 101), ylim=(-3, 103))
        axes.set(xlabel="Confidence (%)", ylabel="Right answers (%)")
        axes.legend(loc="upper left")
        figure.tight_layout()
        return save(figure, folder, "reliability")


def memory_by_share(rows: Sequence[Mapping[str, float]], folder: Path) -> list[Path]:
    """Plot the memory's length by share of the text read: median and quartiles, by twentieths.

    Rows have the `share` of the text that was read when a memory was written, 0 to 1, and its `tokens`.
    """
    bins: dict[int, list[float]] = {}
    for row in rows:
        bins.setdefault(_bin(row["share"], _SHARES), []).append(float(row["tokens"]))
    places = [100 * (i + 0.5) / _SHARES for i in sorted(bins)]
    quarters = [quantiles(bins[i], n=4, method="inclusive") if len(bins[i]) > 1 else 3 * bins[i] for i in sorted(bins)]
    low, middle, high = ([quarter[i] for quarter in quarters] for i in range(3))
    with canvas(WIDE, 4.4) as figure:
        axes = figure.add_subplot()
        axes.fill_between(places, low, high, color=COLOURS[0], alpha=0.25, lw=0, label="middle half")
        axes.plot(places, middle, color=COLOURS[0], marker="o", ms=4, lw=1.8, label="median")
        axes.set(xlim=(0, 100), xlabel="Read so far (% of the text)", ylabel="Tokens of the memory")
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.1), ncols=2)
        figure.tight_layout()
        return save(figure, folder, "memory-by-share")


def tokens_label(value: float) -> str:
    """Format a count for an axis: 0.5, 8K, 1.75M."""
    for unit, size in (("M", 1_000_000), ("K", 1_000)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _grouped(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, dict[int, list[float]]]:
    """Return values by method (in order of appearance) and length (rising)."""
    groups: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        groups.setdefault(shown_name(row["method"]), {}).setdefault(int(row["length"]), []).append(float(row[column]))
    return {method: dict(sorted(group.items())) for method, group in groups.items()}


def _bin(share: float, count: int) -> int:
    return min(count - 1, max(0, int(share * count)))


def _lengths(axes: Any, lengths: Iterable[int]) -> None:
    low, high = min(lengths), max(lengths)
    room = 1.3 if high > low else 2
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    _label(axes.xaxis, low / room, high * room)
    axes.set_xlabel("Length of the text (tokens)")
    axes.grid(color="#e5e5e5", lw=0.8)
    axes.set_axisbelow(True)


def _label(axis: Any, low: float, high: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 3) if high / low > 50 else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: tokens_label(value))
