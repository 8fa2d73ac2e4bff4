"""Responses that say the same again and again until they are cut, as small models do now and then."""

from collections.abc import Sequence

LONGEST = 64
"""Tokens of a repeated pattern at most."""


def repeats(ids: Sequence[int], times: int) -> bool:
    """Tell whether `ids` end with one pattern of up to `LONGEST` tokens, `times` times in a row.

    A pattern of one token counts as well. With `times` below 2 nothing is a repetition.
    """
    if times < 2:
        return False
    for size in range(1, min(LONGEST, len(ids) // times) + 1):
        tail = ids[len(ids) - size * times :]
        if all(tail[i] == tail[i + size] for i in range(len(tail) - size)):
            return True
    return False
