"""What a confined process cannot do, where the system can confine one."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from infra.sources.sandbox import Guard
from infra.system.confinement import Confinement, available
from memagent.config import IngestConfig
from memagent.errors import SourceError

_TRIES = """
    import json, os, socket, subprocess, sys
    from infra.system.confinement import confine

    def outcome(action):
        try:
            return action() or "done"
        except Exception as error:
            return type(error).__name__

    def read(path):
        with open(path) as file:
            return file.read()

    def write(path):
        with open(path, "w") as file:
            file.write("x")

    folder, open_already = sys.argv[1], open(sys.argv[1] + "/open.txt")
    secret, new = folder + "/secret.txt", folder + "/new.txt"
    confine()
    print(json.dumps({
        "open": outcome(open_already.read),
        "read": outcome(lambda: read(secret)),
        "list": outcome(lambda: ",".join(os.listdir(folder))),
        "write": outcome(lambda: write(new)),
        "delete": outcome(lambda: os.unlink(secret)),
        "parent": outcome(lambda: read(f"/proc/{os.getppid()}/environ")),
        "connect": outcome(lambda: socket.create_connection(("127.0.0.1", 9))),
        "unix": outcome(lambda: socket.socket(socket.AF_UNIX)),
        "run": outcome(lambda: subprocess.run(["true"])),
        "import": outcome(lambda: __import__("colorsys").__name__),
    }))
"""


def tried(folder: Path) -> dict[str, str]:
    (folder / "open.txt").write_text("of the source")
    (folder / "secret.txt").write_text("of another")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", textwrap.dedent(_TRIES), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    outcomes: dict[str, str] = json.loads(done.stdout)
    return outcomes


@pytest.mark.skipif(not available().landlock, reason="this kernel has no Landlock")
def test_a_confined_process_has_its_open_file_and_its_modules_alone(tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert (found["open"], found["import"]) == ("of the source", "colorsys")
    refused = {name: found[name] for name in ("read", "list", "write", "delete", "parent")}
    assert set(refused.values()) == {"PermissionError"}, refused
    assert (tmp_path / "secret.txt").read_text() == "of another"
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.skipif(not available().seccomp, reason="this system has no seccomp")
def test_a_confined_process_has_no_network_and_runs_nothing(tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert {found[name] for name in ("connect", "unix", "run")} == {"PermissionError"}, found


def test_what_holds_is_said_plainly() -> None:
    assert "neither" in str(Confinement(0, False))
    assert "the files of its user" in str(Confinement(0, True))
    assert str(Confinement(7, True)) == "no other files, no network, no other programs"
    assert "network (there is no seccomp)" in str(Confinement(7, False))


_PARSER = """
from pathlib import Path
from infra.sources.base import Parsed, SourceFormat

def parse(stream, request):
    yield Parsed(stream.read().decode() + Path(%r).read_text(), "", "text/x")

FORMAT = SourceFormat(parse)
"""


@pytest.mark.skipif(not available().landlock, reason="this kernel has no Landlock")
def test_a_parser_is_confined_unless_the_configuration_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format of another package that reads a file beside its source."""
    site, archive = tmp_path / "site", tmp_path / "archive"
    (site / "beside-1.0.dist-info").mkdir(parents=True)
    archive.mkdir()
    (archive / "dictionary").write_text(" and more")
    (archive / "a.beside").write_text("text")
    (site / "beside.py").write_text(_PARSER % str(archive / "dictionary"))
    (site / "beside-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: beside\nVersion: 1.0\n")
    (site / "beside-1.0.dist-info" / "entry_points.txt").write_text("[memagent.sources]\n.beside = beside:FORMAT\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])

    def texts(**options: bool) -> list[str]:
        guard = Guard(IngestConfig.model_validate(options))
        try:
            return [record[0].text for record in guard.parse(str(archive / "a.beside"), "a.beside")]
        finally:
            guard.close()

    with pytest.raises(SourceError, match="PermissionError"):
        texts()
    assert texts(confine=False) == ["text and more"]
