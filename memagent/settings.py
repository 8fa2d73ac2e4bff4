"""Settings as plain data, before they are checked: TOML files, ``section.key=value`` strings, the environment."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from memagent.errors import ConfigError
from memagent.records import Json


class Section(BaseModel):
    """A part of a configuration: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Environment(BaseSettings):
    """The variables of the environment that configure memagent: each field is ``MEMAGENT_`` and its name."""

    model_config = SettingsConfigDict(env_prefix="MEMAGENT_", env_ignore_empty=True, frozen=True)

    config: Json | None = None
    """The complete configuration as JSON, from the process that started this one or submitted this job."""
    config_file: str | None = None
    """A TOML file; not read where the complete configuration is given."""
    store: str | None = None
    """The store, over both."""
    cache: Path | None = None
    """Folder of downloaded policies."""
    runtime: Path | None = None
    """Folder of the sockets and logs of warm engines; only this user may enter it."""


def environment() -> Json:
    """Return the configuration from the environment, as plain data.

    Raises:
        ConfigError: ``$MEMAGENT_CONFIG_FILE`` or ``$MEMAGENT_CONFIG`` cannot be read.
    """
    try:
        given = Environment()
    except (SettingsError, ValidationError) as error:
        raise ConfigError("$MEMAGENT_CONFIG is no JSON object; a file is named by $MEMAGENT_CONFIG_FILE") from error
    settings = given.config
    if settings is None:
        settings = read_toml(given.config_file) if given.config_file else {}
    return settings | ({"store": given.store} if given.store else {})


def read_toml(path: str) -> Json:
    """Return a configuration file as plain data.

    Raises:
        ConfigError: there is none, or it is no TOML.
    """
    return _parsed(Path(path), "configuration file")


def read_shipped(name_or_path: str, folder: Path, noun: str) -> tuple[Path, Json]:
    """Return path and content of the TOML file of a name, which is in a folder of this package, or of a path.

    Raises:
        ConfigError: there is none, or it is no TOML; `noun` is what the message calls it.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = folder / f"{name_or_path}.toml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise ConfigError(f"no {noun} {name_or_path!r}. Shipped: {names}; or give a .toml file.")
    return path, _parsed(path, noun)


def _parsed(path: Path, noun: str) -> Json:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows add the mark
    except FileNotFoundError as error:
        raise ConfigError(f"no {noun} {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ConfigError(f"{noun} {path}: {error}") from error


def beneath(sections: Mapping[str, Mapping[str, Any]], config: str | None = None) -> list[str]:
    """Return sections as ``section.key=value`` strings, where neither the environment nor a configuration file says
    otherwise.

    Raises:
        ConfigError: environment or file cannot be read.
    """
    merged: Json = {name: dict(keys) for name, keys in sections.items()}
    for given in (environment(), read_toml(config) if config else {}):
        merge(merged, {name: given[name] for name in merged if name in given})
    return list(as_settings(merged))


def put_setting(data: Json, item: str) -> None:
    """Put a ``section.key=value`` string into plain data.

    Raises:
        ConfigError: it is not one.
    """
    key, eq, value = item.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"--set {item!r}: write it as section.key=value")
    put(data, key.strip(), _value(value.strip()))


def put(data: Json, dotted: str, value: Any) -> None:
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


def merge(into: Json, data: Json) -> None:
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
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
