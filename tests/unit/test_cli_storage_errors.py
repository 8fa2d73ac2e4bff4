import errno
import os
import threading

import pytest
from botocore.exceptions import EndpointConnectionError  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from ray.exceptions import RayTaskError

from infra.store.claims import _beat_until
from infra.store.location import Store, storage_error
from pipelines.cli import main as cli
from pipelines.web.api.protocol import api_error
from tests.support.waiting import wait_for

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/store/turns/part")


def wrapped(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception as inner:
            raise RuntimeError("a worker failed") from inner
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FULL, "/store/turns/part: no space is left"),
        (wrapped(FULL), "no space is left"),
        (RayTaskError("write", "traceback", FULL), "no space is left"),
        (DeltaError("Generic LocalFileSystem error: Read-only file system (os error 30)"), "the disk is read-only"),
        (PermissionError(errno.EACCES, "Permission denied", "/store"), "/store: permission denied"),
        (PermissionError("Access Denied."), "permission denied: give this user, or these keys"),
        (OSError("Kernel error -> Generic S3 error: error sending request (os error 111)"), "S3 does not answer"),
        (OSError("When reading: AWS Error NETWORK_CONNECTION during HeadObject"), "S3 does not answer"),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject"), "permission denied"),
    ],
)
def test_a_disk_that_cannot_be_written_is_one_line(monkeypatch, capsys, error, says):
    assert says in storage_error(error)

    def fails(**_):
        raise error

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memagent: ") and says in line


class Away:
    """A file system of S3 whose server is away."""

    def __init__(self) -> None:
        self.asked = 0

    def pipe_file(self, path: str, data: bytes) -> None:
        self.asked += 1
        raise EndpointConnectionError(endpoint_url="http://s3/x")


def test_a_server_that_is_away_is_an_error_of_the_system_and_ends_no_heartbeat(monkeypatch):
    away, stop = Away(), threading.Event()
    monkeypatch.setattr("infra.store.location.file_system", lambda url: away)
    with pytest.raises(ConnectionError, match="S3 does not answer: Could not connect") as caught:
        Store("s3://bucket/x").write_bytes(b"", "a")
    assert "it goes on where it was" in storage_error(caught.value)
    monkeypatch.setattr("infra.store.claims._BEAT_SECONDS", 0.01)
    beating = threading.Thread(target=_beat_until, args=(Store("s3://bucket/x"), "r", stop))
    beating.start()
    wait_for(lambda: away.asked > 3)
    stop.set()
    beating.join()


def test_a_request_says_what_is_wrong_with_the_store():
    error = api_error(PermissionError(errno.EACCES, "Permission denied", "/store"))
    assert (error.status, error.code) == (503, "store_failed") and "permission denied" in str(error)


def test_other_errors_stay_what_they_are(monkeypatch):
    assert storage_error(ValueError("no")) is None
    assert storage_error(FileNotFoundError(errno.ENOENT, "no such file")) is None
    monkeypatch.setattr(cli, "app", lambda **_: {}["bug"])
    with pytest.raises(KeyError):
        cli.main()
