"""An S3 server for tests and benchmarks."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.store.location import file_system
from tests.support.ports import first_port
from tests.support.shared import Shared
from tests.support.waiting import wait_for


class S3Server:
    """SeaweedFS on 127.0.0.1, with its files in a folder. It can be killed and started again."""

    bucket = "s3://memagent-test"

    def __init__(self, folder: Path) -> None:
        # gRPC's ports are by default those above 39,000, where a client's may be.
        names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self._folder = folder
        self._command = [str(Path(sys.executable).with_name("weed")), "server", "-s3", f"-dir={folder}"]
        self._command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-volume.max=1000"]
        self._command += ["-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        self._command += ["-s3.autoCreateBucket=false", *(f"-{name}={port}" for name, port in ports.items())]
        self.settings = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3.port']}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        """Start it, and wait until its bucket can be written. The ``AWS_*`` variables must lead there."""
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret"}
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        name = self.bucket.removeprefix("s3://")
        wait_for(lambda: _has_bucket(name), self._process, lambda: _fatal(self._folder / "log"))
        return self._process

    def kill(self) -> None:
        """Kill it: SIGTERM may leave it running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server; ``AWS_*`` variables lead there."""
    server = S3Server(folder)
    with _environment(server.settings):
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run a server, and yield its bucket's URL."""
    with running_s3(folder) as server:
        yield server.bucket


@contextmanager
def shared_s3(shared: Shared) -> Iterator[str]:
    """Yield the URL of the bucket that all tests of a session have; ``AWS_*`` variables lead there."""

    def start(folder: Path) -> "tuple[subprocess.Popen[bytes], dict[str, str]]":
        server = S3Server(folder)
        with _environment(server.settings):
            return server.start(), server.settings

    with _environment(shared.started("s3", start)):
        yield S3Server.bucket


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _free_ports(count: int) -> list[int]:
    """Return free ports below those that the system gives to clients."""
    found: list[int] = []
    for port in range(first_port(29_000, 2_000), 32_000):
        if len(found) == count:
            break
        if _free(port):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _has_bucket(name: str) -> bool:
    """Make the bucket, where the server is up, and write to it."""
    try:
        files = file_system(f"s3://{name}")
        if not files.exists(name):
            files.mkdir(name)
        files.pipe_file(f"{name}/ready", b"yes")
        return True
    except Exception:  # whatever a server says while it starts
        return False


def _fatal(log: Path) -> str:
    return " ".join(line for line in log.read_text(errors="replace").splitlines() if line.startswith("F"))
