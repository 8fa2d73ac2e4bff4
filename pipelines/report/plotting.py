"""Shared by all plots: canvas, colours and marks, labels, and saving.

Equal data give equal files: they do not depend on the machine, the time or the order of a set.
"""

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
