"""Shared by all plots: canvas, colours and marks, labels, and saving.

Equal data give equal files: they do not depend on the machine, the time or the order of a set.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.formatting import plain

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
    name = " ".join(plain(text).split())
    # Matplotlib leaves labels that begin with an underscore out of the legend.
    return f" {name}" if name.startswith("_") else name
