"""Notebooks as programs: their cells one after another, the last expression of each shown as a notebook shows it."""

import ast
import json
from pathlib import Path

from tests.support.pages import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
_SHOW = "(lambda value: print(value._repr_html_() if hasattr(value, '_repr_html_') else repr(value)))"


def program(notebook: Path) -> str:
    """Return a notebook's code as one program."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(_cell("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code")


def _cell(source: str) -> str:
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return source
    lines = source.splitlines()
    shown = ast.get_source_segment(source, last)
    return "\n".join([*lines[: last.lineno - 1], f"{_SHOW}(({shown}))"])
