"""What all pictures share: the canvas, colours and marks, names as they are written, and how they are saved.

Equal data give equal files: nothing of the machine, the hour or the order of a set is in them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.formatting import plain

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, apart for all common kinds of colour vision; marks differ too."""
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
    # Names come from users and documents: a dollar sign is a dollar sign.
    "text.parse_math": False,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """Give a figure of some inches, in our style; whatever style the caller has is left alone."""
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
    """Return a name as a legend takes it: one line, without control characters."""
    name = " ".join(plain(text).split())
    # A label that begins with an underscore would be left out of the legend.
    return f" {name}" if name.startswith("_") else name
