r"""Texts that are none: JSON can name half of a surrogate pair (``"\ud800"``), and no file or table can hold it."""

import re

_HALF = re.compile(r"[\ud800-\udfff]")


def half(text: str) -> str | None:
    r"""Return the first half of a surrogate pair in a text, as ``\udXXX``; None: there is none."""
    found = _HALF.search(text)
    return f"\\u{ord(found[0]):04x}" if found else None


def mended(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair."""
    return _HALF.sub("\ufffd", text)
