"""Where a server of this package listens, and the addresses under which it is reached. Imports nothing heavy."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

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

        Raises:
            UsageError: saying what to give.
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
