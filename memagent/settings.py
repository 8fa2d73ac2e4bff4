"""Settings as plain data, before they are checked: TOML files, ``section.key=value`` strings, the environment."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.errors import ConfigError


def environment() -> dict[str, Any]:
    """Return the configuration from the environment, as plain data.

    Raises:
        ConfigError: ``$MEMAGENT_CONFIG_FILE`` or ``$MEMAGENT_CONFIG`` cannot be read.
    """
    data: dict[str, Any] = {}
    if whole := os.environ.get("MEMAGENT_CONFIG"):
        # The complete configuration, from the process that started this one or submitted this job.
        try:
            data = json.loads(whole)
        except ValueError as error:
            raise ConfigError("$MEMAGENT_CONFIG is no JSON; a file is named by $MEMAGENT_CONFIG_FILE") from error
    elif file := os.environ.get("MEMAGENT_CONFIG_FILE"):
        data = read_toml(file)
    if store := os.environ.get("MEMAGENT_STORE"):
        data["store"] = store
    return data


def read_toml(path: str) -> dict[str, Any]:
    """Return a configuration file as plain data.

    Raises:
        ConfigError: there is none, or it is no TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # editors on Windows add the mark
    except FileNotFoundError as error:
        raise ConfigError(f"no configuration file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from error


def put_setting(data: dict[str, Any], item: str) -> None:
    """Put a ``section.key=value`` string into plain data.

    Raises:
        ConfigError: it is not one.
    """
    key, eq, value = item.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"--set {item!r}: write it as section.key=value")
    put(data, key.strip(), _value(value.strip()))


def put(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Put a value into plain data under a dotted key.

    Raises:
        ConfigError: a part of the key is no section.
    """
    *sections, key = dotted.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{dotted}: {section} is not a section")
    data[key] = value


def merge(into: dict[str, Any], data: dict[str, Any]) -> None:
    """Merge plain data into other data, section by section."""
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def as_settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield plain data as ``section.key=value`` strings; None is skipped."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from as_settings(value, f"{prefix}{key}.")
        elif value is not None:
            # Strings, numbers, booleans and lists are written alike in JSON and TOML.
            yield f"{prefix}{key}={json.dumps(value, ensure_ascii=False)}"


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
