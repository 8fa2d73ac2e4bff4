"""Quoting of file names, rows and keys for ids and tables: valid UTF-8, visible, unambiguous."""

import re
import unicodedata
from urllib.parse import unquote_to_bytes

_ESCAPE = re.compile(r"%(?=[0-9A-Fa-f]{2})")
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co")


def quoted(name: str, safe: str = "") -> str:
    """Return `name` with characters that cannot be shown, or would mislead, as ``%XX``.

    Control and format characters (new lines, zero-width and right-to-left marks), bytes that are not
    UTF-8 (as `os.fsdecode` gives them), path segments ``.`` and ``..``, and ``#``, which separates a
    row from its file, unless it is in `safe`. Different names stay different: ``%`` is escaped where
    it would read as an escape.
    """
    name = _ESCAPE.sub("%25", name)
    if not name.isascii() or not name.isprintable() or "#" in name:
        name = "".join(_quote(c) if (c == "#" and c not in safe) or _hidden(c) else c for c in name)
    if "." in name:
        name = "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in name.split("/"))
    return name


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN


def _quote(char: str) -> str:
    return "".join(
        f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape" if _is_byte(char) else "surrogatepass")
    )


def _is_byte(char: str) -> bool:
    """Whether `char` stands for a byte of a file name that is no UTF-8."""
    return "\udc80" <= char <= "\udcff"


def unquoted(name: str) -> str:
    """Return what `quoted` was given."""
    return unquote_to_bytes(name).decode("utf-8", "surrogateescape")
