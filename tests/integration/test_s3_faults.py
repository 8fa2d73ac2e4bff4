"""A store on an S3 server that fails: a share of its requests is spoilt, or it is killed and comes back."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.sources.discovery import list_sources
from infra.store.delta import Table
from infra.store.location import FIRST_ATTEMPTS, Store
from memagent.errors import UsageError
from tests.endurance import QUESTIONS, make_archive
from tests.support.s3_faults import FAULTS, Fault, faulty_s3
from tests.support.s3_server import S3Server, running_s3
from tests.support.waiting import wait_for

_DOCUMENTS = 12
_SHARES: dict[Fault, float] = {"slow": 0.03}
"""Where a fifth would take a quarter of an hour."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "archive"
    make_archive(folder, _DOCUMENTS, 30)
    return folder


@pytest.fixture(scope="module")
def calm(archive: Path) -> dict[tuple[str, str], str]:
    """The answers of an undisturbed run."""
    store = str(archive.parent / "calm")
    assert subprocess.run(command(archive, store), capture_output=True).returncode == 0
    return found(store)


def command(archive: Path, store: str, *sets: str) -> list[str]:
    asked = [part for question in QUESTIONS for part in ("-q", question)]
    argv = [sys.executable, "-m", "memagent", "ask", str(archive), *asked, "--store", store]
    return [*argv, "--engine", "scripted", "--json", *(part for one in sets for part in ("--set", one))]


def found(store: str) -> dict[tuple[str, str], str]:
    """Return the answers by text and question, of which each has one."""
    rows = Table(Store(store), "answers").read(None, ["content_hash", "question", "answer"]).to_pylist()
    answers = {(row["content_hash"], row["question"]): row["answer"] for row in rows}
    assert len(answers) == len(rows) == _DOCUMENTS * len(QUESTIONS)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_share_of_the_requests_is_spoilt(
    s3_bucket: str, archive: Path, calm: dict[tuple[str, str], str], fault: Fault
) -> None:
    with faulty_s3(_SHARES.get(fault, 0.2), fault) as proxy:
        done = subprocess.run(command(archive, f"{s3_bucket}/faults/{fault}"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert proxy.done[fault] > 10
    summary = json.loads(done.stdout)
    summary = summary.get("summary", summary)
    assert summary["readings"]["read_now"] == _DOCUMENTS * len(QUESTIONS)
    assert found(f"{s3_bucket}/faults/{fault}") == calm


@pytest.mark.parametrize("fault", ["500", "503"])
def test_however_many_requests_fail_in_a_process_one_that_is_made_again_is_answered(
    s3_bucket: str, fault: Fault
) -> None:
    store = Store(f"{s3_bucket}/faults/often-{fault}")
    path = store.write_part(pa.table({"a": [1, 2, 3]}), "part.parquet")
    with faulty_s3(0.2, fault) as proxy:
        again = Store(store.url)  # its clients are built where it is used
        for _ in range(200):
            assert pq.read_table(path, filesystem=again.arrow, pre_buffer=False).num_rows == 3
    assert proxy.done[fault] > 150


def test_a_busy_server_is_waited_for(s3_bucket: str) -> None:
    store = Store(f"{s3_bucket}/faults/busy")
    path = store.write_bytes(b"all of it", "file")
    with faulty_s3(1.0, "slow") as proxy, Store(store.url).arrow.open_input_file(path) as file:
        assert file.read() == b"all of it"
    assert sum(proxy.done.values()) <= 3, "nothing was asked for again"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    """A server that may be killed: all other tests share one."""
    with running_s3(tmp_path) as running:
        yield running


@pytest.mark.slow
def test_the_server_is_killed_and_comes_back(
    server: S3Server, archive: Path, calm: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    store = f"{server.bucket}/killed"
    slowly = ("engine.scripted_delay=0.3", "pool.inflight=4", "flush_seconds=0.5")
    tally = tmp_path / "tally"
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(
            command(archive, store, *slowly),
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "MEMAGENT_SCRIPTED_TALLY": str(tally)},
        )
    words = (tmp_path / "said").read_text
    wait_for(lambda: tally.exists() and tally.stat().st_size > 10, run, words)
    server.kill()
    time.sleep(3)  # requests of these seconds find nobody
    server.start()
    if run.wait():  # a file that was being read broke off with the server: the same command goes on
        again = subprocess.run(command(archive, store, *slowly), capture_output=True, text=True)
        assert again.returncode == 0, again.stderr[-3000:]
    assert found(store) == calm


def test_a_source_at_a_wrong_address_is_said_after_three_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as wrong:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = wrong.accept()
                except OSError:
                    return
                taken.append(connection)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{wrong.getsockname()[1]}"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match="source 's3://no/where/': it cannot be listed"):
            list_sources(["s3://no/where/"])
        wrong.shutdown(socket.SHUT_RDWR)
    assert 0 < len(taken) <= 2 * FIRST_ATTEMPTS, "the HTTP client asks once again by itself"
