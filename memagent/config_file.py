"""A configuration file with every key and what it does: chosen ones are set, the others stand as comments."""

import json
import textwrap
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, JsonValue

from memagent.config import Config, ReadingConfig

_WIDTH = 100


def configuration_file(chosen: Mapping[str, JsonValue]) -> str:
    """Return the text of a configuration file (TOML).

    Args:
        chosen: values by dotted key (``engine.model``); all other keys are comments with their defaults.
    """
    lines = [
        "# Configuration of memagent. Use it by --config FILE, or name it in $MEMAGENT_CONFIG_FILE.",
        "# A key that stands as a comment has its default; options on the command line come before this file.",
        "",
        *_keys(Config, "", chosen),
    ]
    for name, field in Config.model_fields.items():
        section = ReadingConfig if name == "reading" else field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            lines += ["", *_comment((section.__doc__ or "").strip()), f"[{name}]", *_keys(section, f"{name}.", chosen)]
    return "\n".join(lines) + "\n"


def _keys(section: type[BaseModel], prefix: str, chosen: Mapping[str, JsonValue]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if name == "reading" or (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            continue
        yield from _comment(field.description or "")
        default = field.get_default(call_default_factory=True)
        if f"{prefix}{name}" in chosen:
            yield f"{name} = {_toml(chosen[f'{prefix}{name}'])}"
        else:
            yield f"# {name} = {_toml(default)}" if default is not None else f"# {name}: not set"
        yield ""


def _comment(text: str) -> list[str]:
    words = " ".join(text.replace("``", "").replace("`", "").split())
    return textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _toml(value: JsonValue) -> str:
    """Return a value as TOML; texts, numbers, lists and empty tables of JSON are the same there."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
