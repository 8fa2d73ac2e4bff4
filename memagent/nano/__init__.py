"""The bundled reader, memagent-nano: its tokenizer, training and shipped folder."""

from pathlib import Path

from memagent.errors import ConfigError

_SHIPPED = {"nano": "sft"}


def bundled(name: str = "nano") -> Path:
    """Return the folder of the model shipped under `name`.

    Raises:
        ConfigError: no such model is shipped.
    """
    if name not in _SHIPPED:
        raise ConfigError(f"no bundled model {name!r}. Shipped: {', '.join(sorted(_SHIPPED))}.")
    return Path(__file__).parent / _SHIPPED[name]
