"""A running endpoint of `memagent serve`, and clients of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, the way to it, and what it prints."""

    port: int
    token: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def base(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Base URL for OpenAI's clients."""
        return f"{self.base}/v1"

    def client(self, **options: object) -> openai.OpenAI:
        """Return a client with the token."""
        return openai.OpenAI(**{"base_url": self.url, "api_key": self.token, "max_retries": 0} | options)  # type: ignore[arg-type]


@contextmanager
def serving(folder: Path, store: str, port: int, options: Sequence[str] = (), *, status: int = 0) -> Iterator[Endpoint]:
    """Run `memagent serve`, with its token in `folder`, until the body ends; it must then end by itself.

    With another `status` than 0 it must end so without being told.
    """
    log = folder / f"serve-{port}.log"
    places = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
    environment = {**os.environ, **places, "MEMAGENT_STORE": store}
    command = [sys.executable, "-m", "memagent", "serve", f"--port={port}", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=ROOT, start_new_session=True)
    try:
        wait_for(lambda: "stop with Ctrl-C" in log.read_text(), process, log.read_text)
        token = (folder / "config" / "memagent" / "serve" / "token").read_text().strip()
        yield Endpoint(port, token, process, log)
        if not status:
            process.send_signal(signal.SIGTERM)
        assert process.wait() == status, log.read_text()
        assert status or log.read_text().endswith("stopped\n"), log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
