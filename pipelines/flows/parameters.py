"""What the callers of a flow may set, and what only the operator may.

Whoever may start a flow chooses what is read and how. Which code is run, and which servers are spoken to with whose
key, is for the operator to say, who started the process: by the options of `memagent up`, or by
``MEMAGENT_CONFIG_FILE`` in a worker's environment. Callers' parameters add to that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memagent.config import Config, load_config
from memagent.engine import ENGINES
from memagent.errors import ConfigError
from memagent.settings import put_setting, read_toml

RESERVED = ("engine.trust_remote_code", "engine.base_url", "engine.api_key_env", "engine.options", "ray")
"""Keys and sections that are the operator's. So is ``engine.kind`` where it names an engine of another package: it may
speak to a server of its own, with a key from this process's environment."""
_CODE = ("engine.model", "engine.tokenizer")
"""What would bring code of its own with it, where the operator trusts the code of the model that is configured."""


def settings_for(config: str | None, sets: Sequence[str] | None, store: str | None) -> Config:
    """Return the operator's configuration with a caller's parameters over it.

    Args:
        config: a TOML file, or None.
        sets: ``section.key=value`` strings.
        store: the store; None leaves the operator's.

    Raises:
        ConfigError: a parameter names what is the operator's, or a key is unknown or wrong.
    """
    check(config, sets)
    return load_config(config, list(sets or ()), store=store)


def check(
    config: str | None = None, sets: Sequence[str] | None = None, engine: Mapping[str, Any] | None = None
) -> None:
    """Refuse parameters that name what is the operator's.

    Args:
        config: a configuration file.
        sets: ``section.key=value`` strings.
        engine: the engine keys of a recipe.

    Raises:
        ConfigError: naming parameter and key.
    """
    configured = load_config().engine
    reserved = (*RESERVED, *_CODE) if configured.trust_remote_code else RESERVED
    given: dict[str, Any] = {}
    for item in sets or ():
        put_setting(given, item)
    named = {"sets": given, "config": read_toml(config) if config else {}, "recipe": {"engine": engine or {}}}
    for parameter, data in named.items():
        section = data.get("engine")
        kind = section.get("kind") if isinstance(section, Mapping) else None
        others = isinstance(kind, str) and kind != configured.kind and ENGINES.origin(kind)
        refused = (*reserved, "engine.kind") if others else reserved
        for key in _keys(data):
            if any(key == one or key.startswith(f"{one}.") for one in refused):
                raise ConfigError(
                    f"{parameter}: {key} is not for a flow's parameters. Who runs the flows sets it: by an option of "
                    "`memagent up`, or in the file that MEMAGENT_CONFIG_FILE names in a worker's environment"
                )


def _keys(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of plain data, sections as well."""
    for key, value in data.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
