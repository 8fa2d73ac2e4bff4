"""Terms and periods in answers about contracts."""

import re

from memagent.tasks.verdicts.wording import PERPETUAL, contains

_ONES = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_UNITS = {"year": (12, 0), "quarter": (3, 0), "month": (1, 0), "week": (0, 7), "day": (0, 1)}
_RANK = list(_UNITS)


def _spelled(n: int) -> str:
    if n >= 100:
        return f"{_ONES[n // 100 - 1]} hundred" + (f" {_spelled(n % 100)}" if n % 100 else "")
    if n >= 20:
        return _TENS[n // 10 - 2] + (f" {_spelled(n % 10)}" if n % 10 else "")
    return _ONES[n - 1]


_NUMBERS = {_spelled(n): n for n in range(1, 400)} | {"a": 1, "an": 1}
_DURATION = re.compile(
    r"(?:(?<![\d.,/])(?P<digits>\d{1,4}(?:\.\d+)?)|\b(?P<words>"
    + "|".join(sorted(_NUMBERS, key=len, reverse=True))
    + r"))\s*+(?:\)\s*+)?(?:(?:calendar|consecutive|additional|successive|full|further) )*(?P<unit>"
    + "|".join(_UNITS)
    + r")s?\b|\b(?P<yearly>annual|annually|yearly)\b|\b(?P<monthly>monthly|month to month)\b"
)
_JOINED = re.compile(r" ?,? ?(?:and |plus )?")


def same_duration(prediction: str, gold: str) -> bool:
    """Compare terms and periods: "two (2) years" is "2 years" and "24 months"; 180 days are not 6 months.

    The first duration of the answer is what it says; it must be one of gold's ("60 days; 180 days"). How often a
    term is renewed ("3 successive 1 year") is not compared. Gold without a duration: both say that it is perpetual.
    """
    meant, said = durations(gold), durations(prediction)
    if meant:
        return bool(said) and said[0] in meant
    if PERPETUAL.search(gold):
        return bool(PERPETUAL.search(prediction))
    return contains(prediction, gold)


def durations(text: str) -> list[tuple[float, float]]:
    """Return the durations of a text in order, as (months, days); "4 years, 6 months" is one."""
    plain = " ".join(re.sub(r"[-\u2010-\u2015]", " ", text.lower()).replace("hundred and", "hundred").split())
    found: list[tuple[float, float]] = []
    end, rank = -1, len(_RANK)
    for match in _DURATION.finditer(plain):
        unit = match["unit"] or ("year" if match["yearly"] else "month")
        count = float(match["digits"]) if match["digits"] else float(_NUMBERS.get(match["words"] or "one", 1))
        months, days = count * _UNITS[unit][0], count * _UNITS[unit][1]
        if found and _RANK.index(unit) > rank and _JOINED.fullmatch(plain, end, match.start()):
            months, days = months + found[-1][0], days + found[-1][1]
            found.pop()
        found.append((months, days))
        end, rank = match.end(), _RANK.index(unit)
    return found
