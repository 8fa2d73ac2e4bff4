"""Names of runs as people give them: an id, the beginning of one, or ``last``."""

from collections.abc import Sequence
from difflib import get_close_matches

from memagent.errors import UsageError

_SHOWN = 5


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
