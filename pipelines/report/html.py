"""Reports that are a sheet: tables and pictures in one HTML file that runs no script and needs no network."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup


def sheet(template: str, **values: Any) -> str:
    """Return a template of this package as HTML; all values are escaped, and a value that is missing is an error.

    The template gets besides ``style``, and ``style_hash`` for its content security policy.
    """
    home = files("pipelines.report")
    style = home.joinpath("evaluation.css").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    html: str = environment.from_string(home.joinpath(template).read_text(encoding="utf-8")).render(
        style=Markup(style),  # noqa: S704  our own
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        **values,
    )
    return html


def write_sheet(path: Path, html: str) -> Path:
    """Write a sheet, whole or not at all; return its path. Raises OSError if the file cannot be written."""
    target = path.expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.tmp")
    aside.write_text(html, encoding="utf-8")
    aside.replace(target)
    return target


def embedded(picture: Path, titles: Mapping[str, str], notes: Mapping[str, str]) -> dict[str, str]:
    """Return an SVG as the templates take it; title and note go by the file's name."""
    return {
        "title": titles[picture.stem],
        "note": notes.get(picture.stem, ""),
        "data": base64.b64encode(picture.read_bytes()).decode(),
    }
