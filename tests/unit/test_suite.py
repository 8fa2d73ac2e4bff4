"""The tests' own parts: what runs on S3, what is started once, what is counted."""

import subprocess
from collections import Counter

import psutil
import pytest

from tests.integration.conftest import FOLDER, ON_S3
from tests.support.shared import Shared
from tests.support.starts import MOST, kind_of, too_many


@pytest.mark.parametrize("name", sorted(ON_S3))
def test_what_is_to_run_on_s3_is_there(name: str):
    file, _, test = name.partition("::")
    assert not test or f"def {test.partition('[')[0]}(" in (FOLDER / file).read_text()


def test_a_server_is_started_once_and_ended_with_the_session():
    session, starts = Shared(), []

    def start(folder):
        starts.append(folder)
        return subprocess.Popen(["sleep", "300"]), {"address": "here"}

    assert session.started("server", start) == {"address": "here"}
    worker = Shared(str(session.folder))
    assert worker.started("server", start) == {"address": "here"}
    assert starts == [session.folder / "server"]
    (process,) = session._own
    session.end()
    assert not psutil.pid_exists(process.pid) and not session.folder.exists()


def test_starts_beyond_the_bound_are_named():
    assert kind_of("/v/bin/weed server -s3 -dir=/tmp/x") == "S3 servers"
    assert kind_of("/v/bin/python -m memagent ask notes") == "commands"
    assert kind_of("/usr/bin/python -m http.server") is None
    most = Counter(MOST)
    assert too_many(most) == []
    assert too_many(most + Counter(engines=1)) == ["engines"]
