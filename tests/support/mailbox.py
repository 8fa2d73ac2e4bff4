"""A mail server that keeps what it is sent: as much of SMTP (RFC 5321) as a client without a login needs."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from email.policy import default


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 mailbox")
        while line := self.rfile.readline():
            verb = line.split()[0].upper() if line.split() else b""
            if verb == b"DATA":
                self._say("354 go on")
                lines: list[bytes] = []
                while (text := self.rfile.readline()) and text != b".\r\n":
                    lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                self.server.mails.append(message_from_bytes(b"".join(lines), policy=default))  # type: ignore[attr-defined]
            self._say("221 bye" if verb == b"QUIT" else "250 yes")
            if verb == b"QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mailbox() -> Iterator[tuple[int, list[Message]]]:
    """Run a server on 127.0.0.1; gives its port, and the mails as they come."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session) as server:
        server.daemon_threads = True
        mails: list[Message] = []
        server.mails = mails  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], mails
        server.shutdown()
