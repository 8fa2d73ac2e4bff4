"""Errors of a full, read-only or forbidden disk, whichever library raises them, in one line that says what to do."""

import errno
import re
from collections.abc import Iterator

_ADVICE = {
    errno.ENOSPC: "no space is left on the disk: free some, and run the same command again; it goes on where it was",
    errno.EDQUOT: "the disk quota is used up: free some space, and run the same command again; it goes on where it was",
    errno.EROFS: "the disk is read-only: give a --store that can be written, or mount it for writing",
    errno.EACCES: "permission denied: give this user the right to write there, or give another --store",
}
_RUST = re.compile(r"os error (\d+)")
"""How deltalake names the system's error."""


def storage_error(error: BaseException) -> str | None:
    """Return what to tell of an error that the disk is the reason of; None for any other."""
    for cause in _chain(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number not in _ADVICE and (match := _RUST.search(str(cause))):
            number = int(match[1])
        if number in _ADVICE:
            file = getattr(cause, "filename", None)
            return f"{file}: {_ADVICE[number]}" if file else _ADVICE[number]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it comes from; Ray keeps a worker's error in `cause`."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [getattr(one, "cause", None), one.__cause__, one.__context__]
