"""Counts what a test session starts: Ray, engines, and servers of S3 and Prefect, each with a bound.

Starts of processes are most of a session's time. They are counted from outside, by looking at the machine's processes
twice a second, so that those of commands which a test runs are counted as well. What belongs to the session has a
variable in its environment, or is a child of a process that has it.
"""

import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

MARKS = {
    "Ray": ("/gcs/gcs_server ",),
    "Ray nodes": ("/raylet/raylet ",),
    "engines": ("VLLM::EngineCore",),
    "S3 servers": ("weed ", "server", "-s3"),
    "Prefect servers": ("prefect.server.api.server:create_app",),
    "commands": (" -m memagent ",),
}
"""What the command line of such a process holds."""
MOST = {"Ray": 14, "Ray nodes": 22, "engines": 12, "S3 servers": 2, "Prefect servers": 3, "commands": 64}
"""Starts that `make test` may need in all: a few more than the 13, 19, 9, 1, 2 and 57 that were counted when this was
written. Lower them where fewer are needed."""
_LOOK_SECONDS = 0.5
_VARIABLE = "MEMAGENT_TEST_SESSION"


def kind_of(command: str) -> str | None:
    """Tell of which kind a process is, by its command line with spaces between the arguments."""
    return next((kind for kind, marks in MARKS.items() if all(mark in command for mark in marks)), None)


def too_many(counts: Counter[str]) -> list[str]:
    """Return the kinds of which more were started than may be."""
    return [kind for kind, most in MOST.items() if counts[kind] > most]


class Starts:
    """Counts until it is stopped."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        os.environ[_VARIABLE] = str(os.getpid())
        self._mark = f"{_VARIABLE}={os.getpid()}".encode()
        self._seen: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> Counter[str]:
        """Stop; return the counts by kind."""
        self._stop.set()
        self._thread.join()  # at once, where it has ended
        return self.counts

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                kind = kind_of(_read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace"))
                if kind is None or (pid, started := _stat(pid)[19]) in self._seen:
                    continue
                self._seen.add((pid, started))
                if self._is_of_session(pid):
                    self.counts[kind] += 1

    def _is_of_session(self, pid: str) -> bool:
        # A process that has given itself a title may have written it over its environment.
        while pid not in ("0", "1"):
            if self._mark in _read(pid, "environ").split(b"\0"):
                return True
            pid = _stat(pid)[1]
        return False


def _read(pid: str, file: str) -> bytes:
    return (Path("/proc") / pid / file).read_bytes()


def _stat(pid: str) -> list[str]:
    """Return what Linux says of a process from its state on: its parent is the second, its start the twentieth."""
    return _read(pid, "stat").decode(errors="replace").rsplit(")", 1)[1].split()
