"""`memagent serve`: the endpoint on this machine until it is interrupted."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from memagent.config import Config
from memagent.errors import EngineDied
from pipelines.desk.server import listen
from pipelines.flows.address import HOST, Address
from pipelines.serving.access import MOST_BYTES, endpoint_token, token_file
from pipelines.serving.app import READINGS, app
from pipelines.serving.protocol import Split
from pipelines.serving.reader import HeldReader

PORT = 4400
_GRACE_SECONDS = 2
"""That readings under way have to end when the server stops."""


def serve(
    config: Config,
    port: int = PORT,
    split: Split | None = None,
    *,
    at_once: int = READINGS,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Serve readings until interrupted or terminated.

    Args:
        config: store, model, reading and engine.
        port: on this machine.
        split: how the last message of a request is split where it does not say.
        at_once: requests that are read at once.
        most_bytes: of a request's body.

    Raises:
        UsageError: the port is in use, or model, template and engine do not fit together.
        MemagentError: the engine cannot be started, or has died as often as it may.
    """
    token = endpoint_token()
    listening = listen(Address(port))
    reader = HeldReader(config, split)
    try:
        with reader.session(), contextlib.suppress(KeyboardInterrupt):
            web = app(reader, token, port, at_once=at_once, most_bytes=most_bytes)
            settings = uvicorn.Config(
                web,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
            asyncio.run(_serve(reader, _Server(settings), listening, threads=2 * at_once + 8))
    finally:
        listening.close()
    print("stopped", flush=True)


class _Server(uvicorn.Server):
    """Ends at a signal without sending it again, so that the engine is stopped in good order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take interrupts and terminations while the body runs."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


async def _serve(reader: HeldReader, server: uvicorn.Server, listening: socket.socket, threads: int) -> None:
    # Requests that ask a corpus hold a thread each while they wait for answers.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
    print(f"loading {reader.spec.policy.policy_id}", flush=True)
    try:
        await reader.start()
        address = listening.getsockname()
        print(f"endpoint: http://{HOST}:{address[1]}/v1   store: {reader.config.store}")
        print(f"its API key is in {token_file()}")
        print("(stop with Ctrl-C)", flush=True)
        ending = asyncio.create_task(_end_with_engine(reader, server))
        await server.serve(sockets=[listening])
        ending.cancel()
        if reader.engine_gone.is_set():
            raise EngineDied("the engine dies again and again: see above, and memagent doctor")
    finally:
        await reader.stop()


async def _end_with_engine(reader: HeldReader, server: uvicorn.Server) -> None:
    await reader.engine_gone.wait()
    server.should_exit = True
