"""`memagent desk`: serve the desk to this machine until it is interrupted."""

import getpass
import signal
import socket
import sys
import webbrowser
from collections.abc import Sequence

import uvicorn

from memagent.config import Config, load_config
from memagent.errors import MemagentError, UsageError
from pipelines.desk.access import Access, token_file
from pipelines.desk.app import app
from pipelines.desk.desk import Desk
from pipelines.flows.serve import HOST

PORT = 4300


def serve(
    config: Config, port: int = PORT, reviewers: Sequence[str] = (), url: str | None = None, *, show: bool = False
) -> None:
    """Serve the desk of a store until interrupted or terminated.

    Args:
        config: of the desk, and of the runs that are started there.
        port: on this machine; a proxy may pass others' requests on.
        reviewers: who may log in besides the user who starts it.
        url: the address under which a proxy serves it.
        show: open the page in the browser.

    Raises:
        UsageError: the port is in use, or a name is none.
    """
    desk = Desk(config)
    access = Access(desk.journal, [getpass.getuser(), *reviewers], port, url)
    listening = listen(port)
    desk.start()
    try:
        print(f"desk: {access.address}   store: {config.store}")
        for name in dict.fromkeys([access.owner, *reviewers]):
            print(f"{name} logs in with the token in {token_file(name)}")
        print("(stop with Ctrl-C)", flush=True)
        if show:
            webbrowser.open(access.address)
        settings = uvicorn.Config(
            app(desk, access), log_level="warning", server_header=False, proxy_headers=False, lifespan="off"
        )
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
        desk.stop()
    print("stopped", flush=True)


def listen(port: int) -> socket.socket:
    """Return a socket on which connections to a port of this machine wait. Raises UsageError: it is in use."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)  # who comes before the pages are there waits
    except OSError as error:
        listening.close()
        raise UsageError(f"port {port} of {HOST} cannot be used ({error.strerror}): choose another --port") from error
    return listening


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve(load_config(), int(sys.argv[1]))
    except MemagentError as error:
        sys.exit(f"memagent: no desk: {error}")
