"""Cores that this process may use: fewer than the machine has where a container or `taskset` says so."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
