"""Ports for the servers of tests, which may run in several processes side by side."""

import os

_EACH = 8
"""Ports that a process may have of a range: the processes of one run have numbers that follow each other."""


def first_port(start: int, size: int, number: int = 0) -> int:
    """Return the first of eight ports of this process in a range of `size` from `start`.

    Args:
        start: of the range; every kind of server has its own.
        size: of the range.
        number: of the server, where a process starts several of a kind.
    """
    places = size // _EACH
    return start + (os.getpid() + 61 * number) % places * _EACH
