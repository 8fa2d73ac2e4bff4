"""What integration tests run on: a real S3 server beside the local folder, and Ray in this process."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store import Store, file_system
from tests.integration.flowing import archive, cluster, served, sets  # noqa: F401  (fixtures)
from tests.ports import first_port
from tests.waiting import wait_for


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those that Ray gives itself."""
    for kind in ("DeprecationWarning", "FutureWarning", "ResourceWarning"):
        config.addinivalue_line("filterwarnings", rf"ignore::{kind}:ray\.")


@pytest.fixture(scope="session")
def s3_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start SeaweedFS on 127.0.0.1 and give a bucket's URL; ``AWS_*`` variables lead there."""
    folder = tmp_path_factory.mktemp("seaweedfs")
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


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh place for data: a local folder, and a prefix of a bucket."""
    if request.param == "local":
        return str(tmp_path / "root")
    bucket: str = request.getfixturevalue("s3_bucket")
    return f"{bucket}/{uuid.uuid4().hex}"


@pytest.fixture
def store(root: str) -> Store:
    """A fresh store, local and on S3."""
    return Store(f"{root}/store")


@pytest.fixture(scope="session")
def ray_in_process(s3_bucket: str) -> Iterator[None]:
    """Ray in this process, once for all tests that want it; its workers inherit the way to S3."""
    from infra.cluster.session import ray_session
    from memagent.config import RayConfig

    with ray_session(RayConfig(cpus=2)):
        yield


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
