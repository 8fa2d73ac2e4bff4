"""The token by which a server of one user knows that user's own programs, in a file that nobody else reads."""

import os
import secrets
import stat
from pathlib import Path

from memagent.errors import UsageError

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
