"""The bundled reader, memagent-nano: its shipped folders. How they were made: `examples/nano`."""

from pathlib import Path

from memagent.errors import ConfigError

VERSIONS = ("rl", "sft")
"""The versions that are shipped; the first is what ``nano`` means."""


def bundled(version: str = VERSIONS[0]) -> Path:
    """Return the folder of a shipped version: trained by rewards (``rl``), or by supervision alone (``sft``).

    Raises:
        ConfigError: no such version is shipped.
    """
    if version not in VERSIONS:
        raise ConfigError(f"no bundled version {version!r} of nano. Shipped: {', '.join(VERSIONS)}.")
    return Path(__file__).parent / version
