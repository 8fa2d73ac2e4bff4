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
from pipelines.flows.address import Address


def serve(config: Config, address: Address, reviewers: Sequence[str] = (), *, show: bool = False) -> None:
    """Serve the desk of a store until interrupted or terminated.

    Args:
        config: of the desk, and of the runs that are started there.
        address: of the desk; a proxy may pass others' requests on.
        reviewers: who may log in besides the user who starts it.
        show: open the page in the browser.

    Raises:
        UsageError: there is no such address, its port is in use, or a name is none.
    """
    address.check()
    desk = Desk(config)
    access = Access(desk.journal, [getpass.getuser(), *reviewers], address)
    listening = listen(address)
    desk.start()
    try:
        if address.warning:
            print(address.warning)
        print(f"desk: {address.public}   store: {config.store}")
        for name in dict.fromkeys([access.owner, *reviewers]):
            print(f"{name} logs in with the token in {token_file(name)}")
        print("(stop with Ctrl-C)", flush=True)
        if show:
            webbrowser.open(address.public)
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


def listen(address: Address) -> socket.socket:
    """Return a socket on which connections to an address wait. Raises UsageError: its port is in use."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(128)  # who comes before the pages are there waits
    except OSError as error:
        listening.close()
        place = f"port {address.port} of {address.host}"
        raise UsageError(f"{place} cannot be used ({error.strerror}): choose another --port") from error
    return listening


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve(load_config(), Address(int(sys.argv[1]), *sys.argv[2:3]))
    except MemagentError as error:
        sys.exit(f"memagent: no desk: {error}")
