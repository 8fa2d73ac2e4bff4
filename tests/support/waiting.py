"""Waits of tests, for an event and not for a time: a machine that is busy with something else may take minutes.

What never comes ends with pytest's own limit (`timeout` in pyproject.toml), the net below all tests.
"""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import psutil

Found = TypeVar("Found")
_LOOK_SECONDS = 0.1


class Running(Protocol):
    """A process as `subprocess` and `multiprocessing` know it."""

    def poll(self) -> int | None: ...


def wait_for(event: Callable[[], Found], process: Running | None = None, said: Callable[[], object] = str) -> Found:
    """Wait until `event` returns something true, and return that.

    Args:
        event: looked for ten times a second.
        process: what brings the event about. Where it has ended before, the test fails.
        said: gives its last words for that failure.
    """
    while True:
        over = process is not None and process.poll() is not None
        if found := event():
            return found
        assert not over, f"it ended without what was waited for: {str(said())[-3000:]}"
        time.sleep(_LOOK_SECONDS)


def end_tree(process: psutil.Process) -> None:
    """Kill a process and all below it; those that end meanwhile are as good."""
    tree = [process]
    try:
        tree += process.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for one in tree:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
