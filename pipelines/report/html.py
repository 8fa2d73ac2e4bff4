"""HTML of the reports: static pages of tables and figures, and JSON that is safe inside a script element."""

import base64
import hashlib
import json
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


def embed(value: Any) -> Markup:
    """Write JSON that can stand in a script element, whatever the texts in it hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  no character that HTML gives a meaning is left


def size(value: Any) -> int:
    """Return the bytes that a value takes in the file, in a script element of its own."""
    return len(embed(value).encode("utf-8", "surrogatepass")) + _ELEMENT


_ELEMENT = len('<script type="application/json" id="document-1000000"></script>\n')
