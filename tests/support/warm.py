"""Keeps the warm engines of tests apart from the user's own, and ends them with the session."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from infra.engines.warm import stop_all


@pytest.fixture(scope="session", autouse=True)
def warm_engines_of_this_session() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="memagent-warm-")  # a test's own folder may have a path too long for a socket
    os.environ["MEMAGENT_RUNTIME"] = folder
    yield
    stop_all()
    shutil.rmtree(folder)
    del os.environ["MEMAGENT_RUNTIME"]


@pytest.fixture(scope="module")
def no_engine_is_left() -> Iterator[None]:
    """End the module's warm engines with it: each holds two gigabytes that the next module's learners need."""
    yield
    stop_all()
