import errno
import os

import pytest
from deltalake.exceptions import DeltaError
from ray.exceptions import RayTaskError

from pipelines.cli import main as cli
from pipelines.cli.main import storage_error

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


def test_other_errors_stay_what_they_are(monkeypatch):
    assert storage_error(ValueError("no")) is None
    assert storage_error(FileNotFoundError(errno.ENOENT, "no such file")) is None
    monkeypatch.setattr(cli, "app", lambda **_: {}["bug"])
    with pytest.raises(KeyError):
        cli.main()
