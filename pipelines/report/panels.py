"""Panels by training step, three in a row: the parts of the training plots."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from memagent.evaluation.stats import mean
from pipelines.views.formatting import one_line

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which is safe for colour blindness; marks differ too."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
WIDE = 8.0
"""Inches at 100 dots: 800 pixels."""
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "memagent",
    # Names come from users and documents: a dollar sign is no math.
    "text.parse_math": False,
}
_DARK = {
    "#000000": "#e4e8ed",
    "#0072b2": "#4ba3e3",
    "#d55e00": "#f08236",
    "#009e73": "#2fbf94",
    "#555555": "#d0d0d0",
    "#777777": "#b4b4b4",
    "#a0a0a0": "#7c7c7c",
    "#d9d9d9": "#3d4854",
    "#e5e5e5": "#2b333d",
}
"""Colours of a plot on paper, and what stands for them on a dark page; others serve on both."""
_DARK_PAGE = "#1a2027"
_COLOUR = re.compile("(fill: |stroke: )(#[0-9a-f]{6})")


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """Yield a figure (size in inches) in our style, without changing the global style."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure((width, height), dpi=100)
        FigureCanvasAgg(figure)
        yield figure


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None, "Creator": "memagent"})
    figure.savefig(paths[1], metadata={"Software": "memagent"})
    return paths


def darkened(svg: str) -> str:
    """Return an SVG of `save` in the colours of a dark page, without a background."""
    bare = svg.replace('style="fill: #ffffff"', 'style="fill: none"')
    bare = bare.replace("stroke: #ffffff", f"stroke: {_DARK_PAGE}")
    # Text without a colour is black.
    written = bare.replace('<style type="text/css">', f'<style type="text/css">text{{fill: {_DARK["#000000"]}}}')
    return _COLOUR.sub(lambda found: found[1] + _DARK.get(found[2], found[2]), written)


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a mark for each name, in order of appearance."""
    count = len(COLOURS)
    return {
        name: (COLOURS[i % count], MARKS[(i + i // count) % len(MARKS)]) for i, name in enumerate(dict.fromkeys(names))
    }


def shown_name(text: object) -> str:
    """Return a name for a legend: one line, without control characters."""
    name = one_line(text)
    # Matplotlib leaves labels that begin with an underscore out of the legend.
    return f" {name}" if name.startswith("_") else name


Rows = Sequence[Mapping[str, Any]]
"""Rows of a run's ``metrics.jsonl``."""
Line = Mapping[int, float]
"""Values by step."""
COLUMNS = 3

_WIDTH = 10.0
_HEIGHT = 2.5
_CHARS = 150
"""Characters of a line of the legend."""
_PERCENT = 100
_FEW = 40
"""Most points of a line that are marked."""
_FEW_STEPS = 6
_STYLES = ("-", "--", ":")
_GREY = "#8c8c8c"


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric that a panel shows."""

    title: str
    lines: tuple[tuple[str, str], ...]
    """Names in the rows, with their labels if there are several."""
    share: bool = False
    """Whether it is a share, shown in percent."""

    def known(self, rows: Rows, *, above_zero: bool = False) -> bool:
        """Return whether the run has a value of it."""
        lines = (series(rows, name) for name, _ in self.lines)
        return any(any(values.values()) if above_zero else values for values in lines)


@dataclass(frozen=True, slots=True)
class Panel:
    """A small plot: its title, and the function that draws it on its axes."""

    title: str
    draw: Callable[[Any], None]


def picture(
    folder: Path, name: str, panels: Sequence[Panel], handles: Sequence[Any], *, even: bool = False
) -> list[Path]:
    """Plot panels with a common legend below; return the files.

    With `even`, panels of a column have the same scale, and all panels have the same steps.
    """
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    beside = max(1, min(8, _CHARS // (longest + 3)))
    below = 0.28 * math.ceil(len(handles) / beside)
    rows = math.ceil(len(panels) / COLUMNS)
    height = _HEIGHT * rows + below
    with canvas(_WIDTH, height) as figure:
        axes_list = [figure.add_subplot(rows, COLUMNS, i + 1) for i in range(len(panels))]
        for panel, axes in zip(panels, axes_list, strict=True):
            panel.draw(axes)
        spans = [tuple(axes.dataLim.intervalx) for axes in axes_list]
        if even:
            spans = [(min(left for left, _ in spans), max(right for _, right in spans))] * len(axes_list)
        for i, (panel, axes, span) in enumerate(zip(panels, axes_list, spans, strict=True)):
            axes.set_title(panel.title, fontsize=10, loc="left")
            axes.tick_params(labelsize=9)
            axes.grid(color="#e5e5e5", lw=0.8)
            axes.set_axisbelow(True)
            _steps(axes, *span, labelled=i + COLUMNS >= len(panels))
        for column in range(COLUMNS if even else 0):
            _same_scale(axes_list[column::COLUMNS])
        figure.tight_layout(rect=(0, below / height, 1, 1))
        if handles:
            figure.legend(handles=handles, loc="lower center", ncols=beside, fontsize=9.5)
        return save(figure, folder, name)


def series(rows: Rows, metric: str) -> dict[int, float]:
    """Return a metric's finite values by step; ``/`` in the name goes into nested metrics."""
    values: dict[int, float] = {}
    for row in rows:
        value: Any = row
        for name in metric.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value):
            values[int(row["step"])] = float(value)
    return dict(sorted(values.items()))


def interval(value: float, n: int) -> tuple[float, float] | None:
    """Return the 95% interval of a mean over n values in 0..1; None if it is no such mean."""
    if n < 1 or not 0 <= value <= 1:
        return None
    score = mean("validation", [value] * n)
    return score.low, score.high


def legend(*, window: int = 1, parts: Sequence[str] = ()) -> list[Any]:
    """Return the legend's handles: smoothing, and the parts of stacks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if window > 1:
        handles.append(Line2D([], [], color=_GREY, lw=1, alpha=0.6, label="a step"))
        handles.append(Line2D([], [], color=_GREY, lw=2, label=f"mean of the last {window} steps"))
    handles += [Patch(color=colour, lw=0, label=part) for part, colour in zip(parts, COLOURS, strict=False)]
    return handles


def draw_lines(axes: Any, rows: Rows, metric: Metric, *, window: int = 1) -> None:
    """Plot a metric's lines, which differ by colour and style.

    With a `window` above 1, lines are thin, with their moving average on top.
    """
    for i, (name, label) in enumerate(metric.lines):
        line = {step: (_PERCENT if metric.share else 1) * value for step, value in series(rows, name).items()}
        _line(axes, line, COLOURS[i], style=_STYLES[i], window=window)
        if label:
            axes.plot([], [], color=COLOURS[i], ls=_STYLES[i], lw=1.6, label=label)
    if len(metric.lines) > 1:
        axes.legend(fontsize=8.5, loc="best")


def draw_intervals(axes: Any, rows: Rows, metric: Metric, counts: str) -> None:
    """Plot means with 95% intervals; `counts` names the metric with their sample sizes."""
    name, scale = metric.lines[0][0], _PERCENT if metric.share else 1
    means, sizes = series(rows, name), series(rows, counts)
    ranges = [interval(value, int(sizes.get(step, 0))) or (value, value) for step, value in means.items()]
    around = [
        [scale * (value - low) for value, (low, _) in zip(means.values(), ranges, strict=True)],
        [scale * (high - value) for value, (_, high) in zip(means.values(), ranges, strict=True)],
    ]
    values = [scale * value for value in means.values()]
    axes.errorbar(list(means), values, around, color=COLOURS[0], marker=MARKS[0], ms=4, lw=1.6, capsize=2.5)


def draw_bounds(axes: Any, values: Iterable[float], bounds: Mapping[str, float]) -> None:
    """Make the y axis logarithmic, and draw named bounds."""
    from matplotlib.ticker import LogLocator, NullLocator

    for (text, bound), colour in zip(bounds.items(), COLOURS[2:0:-1], strict=False):
        axes.axhline(bound, color=colour, ls="--", lw=1)
        axes.text(0.02, bound, text, color=colour, fontsize=8.5, va="bottom", transform=axes.get_yaxis_transform())
    shown = [*(value for value in values if value > 0), *bounds.values()]
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(min(shown) / 2, max(shown) * 5)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def draw_stack(axes: Any, parts: Mapping[str, Line]) -> None:
    """Plot stacked shares; a step extends halfway to its neighbours."""
    steps = sorted({step for line in parts.values() for step in line})
    between = [(left + right) / 2 for left, right in pairwise(steps)]
    edges = [steps[0] - 0.5, *between, steps[-1] + 0.5]
    base = [0.0] * len(steps)
    for line, colour in zip(parts.values(), COLOURS, strict=False):
        top = [low + _PERCENT * line.get(step, 0.0) for low, step in zip(base, steps, strict=True)]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, lw=0)
        base = top
    axes.set_ylim(0, 100)


def _line(axes: Any, line: Line, colour: str, style: str, window: int) -> None:
    steps, values = list(line), list(line.values())
    if window > 1:
        axes.plot(steps, values, color=colour, ls=style, lw=1, alpha=0.35)
        ends = range(1, len(values) + 1)
        values = [fmean(values[max(0, end - window) : end]) for end in ends]
        axes.plot(steps, values, color=colour, ls=style, lw=2)
    else:
        marked = {"marker": MARKS[0], "ms": 3} if len(steps) <= _FEW else {}
        axes.plot(steps, values, color=colour, ls=style, lw=1.6, **marked)


def _steps(axes: Any, left: float, right: float, *, labelled: bool) -> None:
    """Set the x axis to whole steps from `left` to `right`."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    room = 0.5 if right - left < 1 else 0.04 * (right - left)
    axes.set_xlim(left - room, right + room)
    few = range(math.ceil(left), math.floor(right) + 1)
    axes.xaxis.set_major_locator(FixedLocator(few) if len(few) <= _FEW_STEPS else MaxNLocator(nbins=6, integer=True))
    if labelled:
        axes.set_xlabel("Step", fontsize=9.5)


def _same_scale(column: Sequence[Any]) -> None:
    limits = [limit for axes in column for limit in axes.get_ylim()]
    for axes in column:
        axes.set_ylim(min(limits), max(limits))
