"""Names of runs: ids, and what people give for one: an id, the beginning of one, or ``last``."""

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from memagent.errors import UsageError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 5


def new_run_id() -> str:
    """Return a run id that sorts by time."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def run_id_or_new(given: str | None) -> str:
    """Return the run id that was given, or a new one.

    Raises UsageError: it is no plain word: it becomes part of paths.
    """
    if given is None:
        return new_run_id()
    if not _RUN_ID.fullmatch(given):
        raise UsageError(
            f"run id {given!r}: use letters, digits, '.', '_' and '-' (at most 128), as in digest-2026-11-24"
        )
    return given


def resolve(given: str, known: Sequence[str], where: str, what: str = "run") -> str:
    """Return the id of the run that is meant.

    Args:
        given: an id, the beginning of one, or ``last``.
        known: the ids that there are, oldest first.
        where: they are, for the message.
        what: a run of which kind.

    Raises:
        UsageError: there is none, or several begin so; the message names the nearest ones.
    """
    if given == "last" and known:
        return known[-1]
    if given in known:
        return given
    begins = [name for name in dict.fromkeys(known) if given and name.startswith(given)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise UsageError(f"{what} {given!r}: {len(begins)} begin so: {', '.join(begins[-_SHOWN:])}")
    near = get_close_matches(given, known, n=1, cutoff=0.8)
    advice = f"did you mean {near[0]!r}?" if near else f"the newest are: {', '.join(known[-_SHOWN:]) or 'none'}"
    raise UsageError(f"no {what} {given!r} in {where}; {advice}")
