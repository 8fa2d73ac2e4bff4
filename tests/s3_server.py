"""An S3 server for tests and benchmarks."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.store import file_system
from tests.ports import first_port
from tests.waiting import wait_for


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run SeaweedFS on 127.0.0.1, with its files in `folder`; yield a bucket's URL. ``AWS_*`` variables lead there."""
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    command = [
        str(Path(sys.executable).with_name("weed")),
        "server",
        "-s3",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    command += ["-master.telemetry=false", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    command += [
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3.port']}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_REGION": "us-east-1",
    }
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret"}
    before = {name: os.environ.get(name) for name in settings}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            os.environ.update(settings)
            wait_for(lambda: _has_bucket("memagent-test"), server, lambda: _fatal(folder / "log"))
            yield "s3://memagent-test"
        finally:
            server.kill()  # SIGTERM may leave it running, and nothing here is kept
            server.wait()
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _free_ports(count: int) -> list[int]:
    """Return free ports whose number + 10,000 is free as well: SeaweedFS takes both."""
    found: list[int] = []
    for port in range(first_port(29_000, 2_000), 40_000):
        if len(found) == count:
            break
        if _free(port) and _free(port + 10_000):
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
