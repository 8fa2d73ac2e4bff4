"""Where a server of this user listens, under which names, and the tokens that open it."""

import ipaddress
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from memagent.errors import UsageError

HOST = "127.0.0.1"
_LOCAL = (HOST, "localhost")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address. Requests under other names than its own are refused."""

    port: int
    host: str = HOST
    """IPv4 address or name of this machine. ``0.0.0.0`` is all of its addresses, and needs `url`."""
    url: str | None = None
    """Scheme and host under which a proxy serves it, besides."""

    def check(self) -> None:
        """Refuse what cannot be listened on, or would be reached under names that nobody has given.

        Raises UsageError: saying what to give.
        """
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
                raise UsageError(f"--url {self.url!r}: give scheme and host, as in https://review.example.org")
        if not _NAME.fullmatch(self.host):
            raise UsageError(
                f"--host {self.host!r}: give an IPv4 address or a name of this machine, without scheme and port, as in "
                "10.0.0.5 or archive.example.org"
            )
        try:
            with socket.socket() as probe:
                probe.bind((self.host, 0))
        except socket.gaierror as error:
            raise UsageError(f"--host {self.host}: there is no such name ({error.strerror})") from error
        except OSError as error:
            raise UsageError(f"--host {self.host} is no address of this machine ({error.strerror})") from error
        if self._is_all and self.url is None:
            raise UsageError(
                f"--host {self.host} is every address of this machine: give the one by which others reach it, or with "
                "--url the address of the proxy before it, since requests under other names are refused"
            )

    @property
    def local(self) -> str:
        """The URL by which this machine's own processes reach it."""
        return f"http://{HOST if self._is_all else self.host.lower()}:{self.port}"

    @property
    def public(self) -> str:
        """The URL that people are told."""
        return self._url or self.local

    @property
    def origins(self) -> list[str]:
        """Origins of its own pages; the proxy's is the last one."""
        own = _LOCAL if self._is_all or self.host.lower() in _LOCAL else (self.host.lower(),)
        return [*(f"http://{name}:{self.port}" for name in own), *([self._url] if self._url else [])]

    @property
    def names(self) -> list[str]:
        """Names that requests may call it by, without ports."""
        return list(dict.fromkeys(str(urlsplit(origin).hostname) for origin in self.origins))

    @property
    def is_private(self) -> bool:
        """Whether no other machine reaches it."""
        return ipaddress.ip_address(socket.gethostbyname(self.host)).is_loopback

    @property
    def warning(self) -> str:
        """What its user must know where other machines reach it; empty where they do not."""
        if self.is_private:
            return ""
        return (
            f"Port {self.port} of {self.host} is open to other machines, without TLS: who is on the way can read what "
            "is sent, the token too. Put a proxy with TLS before it, and let nothing else reach the port."
        )

    @property
    def _url(self) -> str:
        parts = urlsplit(self.url or "")
        return f"{parts.scheme}://{parts.netloc}".lower() if self.url else ""

    @property
    def _is_all(self) -> bool:
        return ipaddress.ip_address(socket.gethostbyname(self.host)).is_unspecified


_USER = "memagent"
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHORTEST = 16
"""Characters of a token that somebody has chosen."""


def auth_string(file: Path) -> str:
    """Return ``user:token`` from a file; create it if it is missing or other users could read it.

    The file gets mode 0600 and its folder 0700.

    Raises UsageError: file or folder belong to another user, or cannot be written.
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
    """Return the file of a person's token for review, serve or metrics.

    Raises UsageError: the name cannot be a file's.
    """
    if not _TOKEN_NAME.fullmatch(name):
        raise UsageError(f"reviewer {name!r}: use letters, digits, '.', '_', '-' and '@' (at most 64), as in anna")
    return platformdirs.user_config_path("memagent") / server / name


def token_in(file: Path) -> str:
    """Return the token in a file that somebody else keeps, such as a mounted secret.

    Raises UsageError: there is no such file, or no token in it.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {error}") from error
    if len(text) < _SHORTEST:
        raise UsageError(f"--token-file {file}: a token has at least {_SHORTEST} characters")
    return text
