"""The pages of settings, commands and tables, made from the product itself: what stands below their marker.

python docs/site/reference.py [--check]

Writes docs/configuration.md, docs/cli.md and docs/tables.md; with --check it writes nothing, and ends with 1 if they
would differ.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS.parent))

from infra.store import schemas  # noqa: E402
from memagent.config import Config, ReadingConfig  # noqa: E402
from memagent.rl.config import Recipe  # noqa: E402
from pipelines.cli.main import app  # noqa: E402

_MARKER = re.compile(r"<!-- Below: .*? -->\n")
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def configuration() -> Iterator[str]:
    """Yield the lines of all settings, section by section."""
    yield from ("## Top level", "")
    yield from _settings(Config)
    for name, field in Config.model_fields.items():
        section = ReadingConfig if name == "reading" else field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from ("", f"## {name}", "", (section.__doc__ or "").strip(), "")
            yield from _settings(section)
    yield from ("", "## Recipes of training", "", "Keys of a recipe (`memagent train --recipe FILE`, `--set`).", "")
    yield from _settings(Recipe)
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ("", f"### Recipe: {name}", "", (field.annotation.__doc__ or "").strip(), "")
            yield from _settings(field.annotation)


def _settings(section: type[BaseModel]) -> Iterator[str]:
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for name, field in section.model_fields.items():
        if section is Config and name == "reading":
            continue  # has a section of its own, whose defaults are a model's
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            yield f"| `{name}` | {_type(field)} | {_default(field)} | {_cell(field.description or '')} |"


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{words} {value:g}"
        for item in field.metadata
        for key, words in _BOUNDS.items()
        if (value := getattr(item, key, None)) is not None
    ]
    return ", ".join([_named(field.annotation), *bounds])


def _named(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if kind is type(None):
        return "none"
    if get_args(kind) and get_origin(kind) in (dict, list, tuple):
        return f"`{kind}`"
    if get_args(kind):
        return " or ".join(_named(part) for part in get_args(kind))
    return f"`{kind.__name__}`"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else '`""`'


def commands() -> Iterator[str]:
    """Yield the lines of all commands, group by group."""
    for name, command in sorted(get_command(app).commands.items()):
        yield from _command(f"memagent {name}", command, 2)


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    usage = " ".join([name, *(_usage(param) for param in command.params if param.param_type_name == "argument")])
    yield from (f"{'#' * level} {name}", "", f"`{usage}`", "", (command.help or "").strip(), "")
    rows = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if rows:
        yield from ("| | | default |", "|---|---|---|")
        yield from (_row(param) for param in rows)
        yield ""
    for sub, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {sub}", inner, level + 1)


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + ("..." if argument.nargs < 0 else "")
    return name if argument.required else f"[{name}]"


_VALUES: dict[Any, str] = {int: "N", float: "NUMBER", Path: "PATH"}
"""What an option takes, by its type."""


def _row(param: Any) -> str:
    option = param.param_type_name == "option"
    value = (
        ""
        if not option or param.is_flag
        else f" {param.metavar or _VALUES.get(param.type_descriptor.annotation, 'TEXT')}"
    )
    names = ", ".join(f"`{name}{value}`" for name in (*param.opts, *param.secondary_opts)) if option else _usage(param)
    default = param.default
    bare = default is None or default is False or default == [] or callable(default)
    said = _cell(getattr(param, "help", None) or "")
    return f"| {names} | {said} | {'' if bare else f'`{default}`'} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


def tables() -> Iterator[str]:
    """Yield the lines of all tables: their key, and their columns as `infra/store/schemas.py` has them."""
    for name, table in schemas.TABLES.items():
        yield from _table(f"`{name}`: Delta", table.row, table.key)
    for row, where, key in _FILES:
        yield from _table(f"`{where}`: Parquet", row, key)


_FILES = (
    (schemas.SegmentRow, "segments/", ("content_hash", "index")),
    (schemas.TurnRow, "turns/", ("reading_id", "span", "step")),
    (schemas.PlannedReading, "runs/<run_id>/plan/", ("reading_id", "doc_id", "question_id")),
    (schemas.ResultRow, "runs/<run_id>/results.parquet", ("sample_id",)),
)
"""Parquet files: type of a row, place in the store, key."""


def _table(title: str, row: type, key: tuple[str, ...]) -> Iterator[str]:
    yield from (f"## {title}", "", _cell(row.__doc__ or ""), "")
    yield from (f"Key: {', '.join(f'`{name}`' for name in key)}.", "", "| column | type | |", "|---|---|---|")
    comments = _comments(row)
    for field in schemas.schema_of(row):
        yield f"| `{field.name}` | {_column(field.type)} | {_cell(comments.get(field.name, ''))} |"
    yield ""


def _comments(row: type) -> dict[str, str]:
    """Return what stands beside the columns of a row's type, and of the type that it extends."""
    source = inspect.getsource(row)
    base = getattr(schemas, re.findall(r"^class \w+\((\w+)\)", source)[0])
    inherited = {} if base is TypedDict else _comments(base)
    return inherited | dict(re.findall(r"^    (\w+): .*  # (.*)$", source, re.MULTILINE))


def _column(kind: Any) -> str:
    """Return a column's type in words."""
    if hasattr(kind, "value_type"):
        return f"list of {_column(kind.value_type)}"
    if hasattr(kind, "num_fields") and kind.num_fields:
        return "struct of " + ", ".join(f"`{inner.name}` {_column(inner.type)}" for inner in kind)
    return f"{kind}".replace("large_string", "string").replace("timestamp[us, tz=UTC]", "timestamp (UTC)")


def main() -> int:
    """Write the pages; with --check, compare them."""
    stale = []
    pages = (("configuration.md", configuration()), ("cli.md", commands()), ("tables.md", tables()))
    for name, lines in pages:
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        marker = _MARKER.search(text)
        assert marker, f"{name} has lost its marker"
        made = text[: marker.end()] + "\n" + "\n".join(lines).rstrip() + "\n"
        if made != text and "--check" not in sys.argv:
            page.write_text(made, encoding="utf-8")
        elif made != text:
            stale.append(f"docs/{name} is not what the product says: make reference")
    print(*stale, sep="\n", end="\n" if stale else "")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
