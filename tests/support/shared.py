"""What takes long to start and serves all tests is started once a session, by whichever worker asks first.

The session's first process, of which the workers are children, gives the folder and ends what was started.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil
from filelock import FileLock

Start: TypeAlias = "Callable[[Path], tuple[subprocess.Popen[bytes], dict[str, Any]]]"


class Shared:
    """Servers of a session: each a file that says how it is reached, and which process it is."""

    def __init__(self, folder: str = "") -> None:
        self.folder = Path(folder or tempfile.mkdtemp(prefix="memagent-tests-"))
        self._own: list[subprocess.Popen[bytes]] = []  # kept: a process that is forgotten while it runs is a warning

    def started(self, name: str, start: Start) -> dict[str, Any]:
        """Return how a server is reached, after starting it if nobody has.

        Args:
            name: of the server.
            start: starts it with its files in a folder; returns its process, and how it is reached, as JSON.
        """
        file = self.folder / f"{name}.json"
        with FileLock(self.folder / f"{name}.lock"):
            if not file.exists():
                place = self.folder / name
                place.mkdir(exist_ok=True)
                process, reached = start(place)
                self._own.append(process)
                file.write_text(json.dumps({"process": process.pid, "reached": reached}))
        found: dict[str, Any] = json.loads(file.read_text())["reached"]
        return found

    def end(self) -> None:
        """End all that were started."""
        for file in self.folder.glob("*.json"):
            _kill(json.loads(file.read_text())["process"])
        for process in self._own:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(number: int) -> None:
    try:
        root = psutil.Process(number)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=60)
