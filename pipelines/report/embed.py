"""JSON inside HTML."""

import json
from typing import Any

from markupsafe import Markup


def embed(value: Any) -> Markup:
    """Write JSON that can stand in a script element, whatever the texts in it hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  no character that HTML gives a meaning is left


def size(value: Any) -> int:
    """Return the bytes that a value takes in the file, in a script element of its own."""
    return len(embed(value).encode("utf-8", "surrogatepass")) + _ELEMENT


_ELEMENT = len('<script type="application/json" id="document-1000000"></script>\n')
