"""Translate pip's configuration to uv's environment variables. Run by `setup.sh` before anything is installed.

python tools/uv_settings.py     prints export lines for a shell; what the user has set for uv stays
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping

_LISTS = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_VALUES = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "no-index": "UV_NO_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
_SECTIONS = ("global", "install", ":env:")
"""Of ``pip config list``, the stronger one last."""


def uv_settings(lines: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Translate the output of ``pip config list`` to uv's environment variables.

    Args:
        lines: ``section.key='value'`` each, as pip prints them; values of several words are lists.
        environment: variables that are set already; these stay.
    """
    settings: dict[str, tuple[int, str]] = {}
    for line in lines:
        name, _, value = line.strip().partition("=")
        section, _, key = name.rpartition(".")
        if section not in _SECTIONS:
            continue
        words = " ".join(shlex.split(value)).split()
        if key in _LISTS:
            variable, separator = _LISTS[key]
            translated = separator.join(_usable(words))
        elif key in _VALUES:
            variable, translated = _VALUES[key], " ".join(words)
        else:
            continue
        strength = _SECTIONS.index(section)
        if translated and strength >= settings.get(variable, (0, ""))[0]:
            settings[variable] = (strength, translated)
    chosen = {variable: value for variable, (_, value) in settings.items()}
    # pip looks at all indexes alike, uv at the first that has the name; the lock's hashes say which file it must be.
    chosen["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {variable: value for variable, value in chosen.items() if variable not in environment}


def _usable(places: list[str]) -> list[str]:
    """Leave out folders that do not exist: pip warns of them and goes on, uv ends."""
    return [
        location
        for location in places
        if not location.startswith("file://") or os.path.isdir(location.removeprefix("file://"))
    ]


def main() -> None:
    """Print the export lines."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    for variable, value in uv_settings(listed.stdout.splitlines(), os.environ).items():
        print(f"export {variable}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
