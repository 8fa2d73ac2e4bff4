"""HTML of the reports: static pages of tables and figures, and JSON that is safe in a script element."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipelines.io.writer import output_file
from pipelines.report.panels import darkened
from pipelines.views.formatting import number, plain


class EmbeddedPicture(TypedDict):
    """An SVG in a template."""

    title: str
    note: str
    light: str
    """Base64."""
    dark: str
    """The same for pages of dark colours."""


def asset(name: str) -> str:
    """Return a file of this package."""
    return files("pipelines.report").joinpath(name).read_text(encoding="utf-8")


def sheet(template: str, style: str = "", script: str = "", **values: Any) -> str:
    """Render a template of this package; values are escaped, and a missing value is an error.

    The style sheet is by default that of evaluations. The template also gets the hashes of style and script, as
    ``style_hash`` and ``script_hash``, for its content security policy.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "when": when, "number": number, "figure": figure}
    style = style or asset("evaluation.css")
    html: str = environment.from_string(asset(template)).render(
        style=Markup(style),  # noqa: S704  our own
        script=Markup(script),  # noqa: S704
        style_hash=_sha(style),
        script_hash=_sha(script),
        **values,
    )
    return html


def _sha(text: str) -> str:
    """Return the hash of an inline element's text for a content security policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def when(value: datetime | None) -> str:
    """Format a timestamp."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def figure(value: float | None) -> str:
    """Format a score."""
    return "–" if value is None else f"{value:.3f}"


def write_sheet(path: Path, html: str) -> Path:
    """Write a page atomically; return its path. Raises UsageError if the file cannot be written."""
    with output_file(path) as aside:
        aside.write_text(html, encoding="utf-8")
    return path.expanduser()


def embedded(
    draw: Callable[[Path], list[Path]], titles: Mapping[str, str], notes: Mapping[str, str]
) -> list[EmbeddedPicture]:
    """Return the SVGs that are drawn into a folder as the templates expect them, with title and note by their stems."""
    with TemporaryDirectory() as folder:
        pictures = {path.stem: path.read_text(encoding="utf-8") for path in draw(Path(folder)) if path.suffix == ".svg"}
    return [
        {
            "title": titles[name],
            "note": notes.get(name, ""),
            "light": base64.b64encode(svg.encode()).decode(),
            "dark": base64.b64encode(darkened(svg).encode()).decode(),
        }
        for name, svg in pictures.items()
    ]


def embed(value: Any) -> Markup:
    """Return JSON that is safe in a script element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  no character that HTML gives a meaning is left


def size(value: Any) -> int:
    """Return the size in bytes of a value in its own script element."""
    return len(embed(value).encode("utf-8", "surrogatepass")) + _ELEMENT


_ELEMENT = len('<script type="application/json" id="document-1000000"></script>\n')
