"""What integration tests run on: a real S3 server beside the local folder, and Ray in this process."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store import Store
from tests.integration.flowing import archive, cluster, served, sets  # noqa: F401  (fixtures)
from tests.s3_server import s3_server


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those that Ray gives itself."""
    for kind in ("DeprecationWarning", "FutureWarning", "ResourceWarning"):
        config.addinivalue_line("filterwarnings", rf"ignore::{kind}:ray\.")


@pytest.fixture(scope="session")
def s3_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start SeaweedFS on 127.0.0.1 and give a bucket's URL; ``AWS_*`` variables lead there."""
    with s3_server(tmp_path_factory.mktemp("seaweedfs")) as bucket:
        yield bucket


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
