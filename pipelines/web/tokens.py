"""Tokens in files that only this user can read. Imports nothing heavy."""

import os
import re
import secrets
import stat
from pathlib import Path

import platformdirs

from memagent.errors import UsageError

_USER = "memagent"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHORTEST = 16
"""Characters of a token that somebody has chosen."""


def auth_string(file: Path) -> str:
    """Return ``user:token`` from a file; create it if it is missing or other users could read it.

    The file gets mode 0600 and its folder 0700.

    Raises:
        UsageError: file or folder belong to another user, or cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.parent.stat().st_uid != os.getuid():
            raise UsageError(f"{file.parent} belongs to another user: set PREFECT_HOME to a folder of your own")
        file.parent.chmod(0o700)
        return _read_token(file) or _create_token(file)
    except OSError as error:
        raise UsageError(f"the server's token cannot be kept in {file}: {error}") from error


def _read_token(file: Path) -> str | None:
    """Return the token in a file that no other user can read or write."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # missing, or a symbolic link
        return None
    with open(descriptor, encoding="ascii", errors="replace") as opened:
        state = os.fstat(descriptor)
        if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
            return None
        token = opened.read().strip()
    return token if token.startswith(f"{_USER}:") and len(token) >= 40 and token.isascii() else None


def _create_token(file: Path) -> str:
    token = f"{_USER}:{secrets.token_urlsafe(32)}"
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(f"{token}\n")
    aside.replace(file)
    return token


def token_file(server: str, name: str = "token") -> Path:
    """Return the file of a token.

    Args:
        server: what it is for: review, serve or metrics.
        name: of the person who has it.

    Raises:
        UsageError: the name cannot be a file's.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"reviewer {name!r}: use letters, digits, '.', '_', '-' and '@' (at most 64), as in anna")
    return platformdirs.user_config_path("memagent") / server / name


def token_in(file: Path) -> str:
    """Return the token in a file that somebody else keeps, such as a mounted secret.

    Raises:
        UsageError: there is no such file, or no token in it.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {error}") from error
    if len(text) < _SHORTEST:
        raise UsageError(f"--token-file {file}: a token has at least {_SHORTEST} characters")
    return text
