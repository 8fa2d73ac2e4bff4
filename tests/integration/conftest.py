"""What integration tests run on: a real S3 server beside the local folder, and Ray in this process."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.location import Store
from tests.support.flowing import archive, cluster, prefect_server, served, sets  # noqa: F401  (fixtures)

FOLDER = Path(__file__).parent
ON_S3 = {
    # The store's contract: files, conditional writes, claims, Delta commits, the turn log, data files.
    "test_store.py",
    "test_claims.py",
    "test_tables_corpora.py",
    "test_tables_delta.py",
    "test_tables_turns.py",
    "test_data_files.py",
    "test_exactly_once.py",
    # Sources on S3.
    "test_delta_sources.py::test_a_night_parses_the_files_of_new_versions",
    # Each kind of work once: ingest, also killed; a run that is broken off; a repair; a forgetting.
    "test_ingest_changes.py::test_new_changed_gone_and_renamed",
    "test_ingest_changes.py::test_killed_and_started_again_it_goes_on",
    "test_pipeline.py::test_answers_with_evidence_and_nothing_is_done_twice",
    "test_pipeline.py::test_a_run_that_was_broken_off_goes_on",
    "test_check.py::test_what_was_damaged_is_found_and_comes_back[s3-turns-garbage]",
    "test_forget.py::test_a_forgotten_document_is_in_no_file_and_does_not_come_back",
    "test_harvest.py::test_answers_and_rows_are_found_on_every_kind_of_store",
    "test_run_log.py",
}
"""Files, tests and variants that run on S3 in `make test`. All other variants on S3 are `slow`: what they are about
does not depend on the store, whose contract is tested by these."""


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those that Ray gives itself."""
    for kind in ("DeprecationWarning", "FutureWarning", "ResourceWarning"):
        config.addinivalue_line("filterwarnings", rf"ignore::{kind}:ray\.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER and "[s3" in item.name and not ON_S3.intersection(names(item)):
            item.add_marker(pytest.mark.slow)


def names(item: pytest.Item) -> tuple[str, str, str]:
    """Return the names of an item's file, test and variant, as `ON_S3` has them."""
    return item.path.name, f"{item.path.name}::{item.name.partition('[')[0]}", f"{item.path.name}::{item.name}"


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


@pytest.fixture(scope="session", autouse=True)
def ray_when_needed(s3_bucket: str) -> Iterator[None]:
    """One session of Ray for this process, from the first test that needs it; its workers know the way to S3."""
    from infra.cluster.session import lazy_ray
    from memagent.config import RayConfig

    with lazy_ray(RayConfig(cpus=2)):
        yield


@pytest.fixture(scope="session")
def ray_in_process(ray_when_needed: None) -> None:
    """Ray, started already: for tests that call it themselves, or start jobs below the command's own sizes."""
    from infra.cluster.session import ensure_ray

    ensure_ray()
