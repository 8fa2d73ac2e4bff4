"""Access to the flows: the server's token, and the parameters that callers of a flow may set.

The operator starts the process, and decides which code runs and which servers get whose key: by the options of
`memagent up`, or by ``MEMAGENT_CONFIG_FILE`` in a worker's environment. A caller who may start a flow decides what is
read and how.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent.config import Config, load_config
from memagent.engine import ENGINES
from memagent.errors import ConfigError, UsageError
from memagent.settings import put_setting, read_toml

_USER = "memagent"


def auth_string(file: Path) -> str:
    """Return ``user:token`` from a file; made where there is none, and made anew where others could have read it.

    The file has mode 0600 and its folder 0700.

    Raises:
        UsageError: file or folder belong to somebody else, or cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.parent.stat().st_uid != os.getuid():
            raise UsageError(f"{file.parent} belongs to another user: set PREFECT_HOME to a folder of your own")
        file.parent.chmod(0o700)
        return _kept(file) or _made(file)
    except OSError as error:
        raise UsageError(f"the server's token cannot be kept in {file}: {error}") from error


def _kept(file: Path) -> str | None:
    """Return what a file holds, if nobody else can have read or written it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # none, or a link to somewhere else
        return None
    with open(descriptor, encoding="ascii", errors="replace") as opened:
        state = os.fstat(descriptor)
        if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
            return None
        held = opened.read().strip()
    return held if held.startswith(f"{_USER}:") and len(held) >= 40 and held.isascii() else None


def _made(file: Path) -> str:
    made = f"{_USER}:{secrets.token_urlsafe(32)}"
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(f"{made}\n")
    aside.replace(file)
    return made


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
