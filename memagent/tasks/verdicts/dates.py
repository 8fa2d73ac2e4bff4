"""Dates in answers about contracts."""

import re
from datetime import date, datetime

from dateutil import parser as dates

from memagent.tasks.contracts import DATE
from memagent.tasks.verdicts.wording import PERPETUAL

_DAY = re.compile(r"(?i)\bday of\b|\bthis\b|\bthe\b|\bdated\b|\bas of\b|[()\[\]_]")
_ORDINAL = re.compile(r"(?i)\b(\d{1,2}) ?(?:s ?t|n ?d|r ?d|t ?h)\b")
"""Also as filings have it, "1s t day"."""
CENTURY = re.compile(r"\b(?:19|20)(?=\[)")
"""What is left of a year that is blacked out."""
_PARTS = re.compile(r"\s*(\d{1,2}|\[\])/(\d{1,2}|\[\])/(\d{4}|\d{2}(?!\[)|[\d\[\]]+)\s*")
_MONTHS = "january february march april may june july august september october november december".split()


class _Years(dates.parserinfo):  # type: ignore[misc] # dateutil has no types
    """Two digits are a year from 1970 to 2069, whatever the clock says."""

    def convertyear(self, year: int, century_specified: bool = False) -> int:
        return year if century_specified or year >= 100 else year + (1900 if year >= 70 else 2000)


_YEARS = _Years()


def same_date(prediction: str, gold: str) -> bool:
    """Compare two dates however they are written; gold is in US form (5/8/14).

    Gold may name several, "a; b": every date of the answer must be one of them. It may be perpetual: the answer then
    says so. Parts that are blacked out in it ("[]/[]/2015") are not compared.
    """
    parts = [part for part in gold.split(";") if part.strip()]
    if any(PERPETUAL.search(part) for part in parts) and PERPETUAL.search(prediction):
        return True
    partial = [known for known in map(_gold_parts, parts) if known and None in known]
    if any(_fits(prediction, known) for known in partial):
        return True
    said = all_dates(prediction)
    meant = {found for part in parts if (found := parse_date(part))}
    return bool(said) and said <= meant


def parse_date(text: str) -> date | None:
    """Return the date that a text gives in full, or None. Month before day, as in the United States."""
    plain = " ".join(_DAY.sub(" ", _ORDINAL.sub(r"\1 ", text)).replace(",", " ").split())
    # What the text leaves out comes from the default; only a full date gives the same from two of them.
    found = set()
    for default in (datetime(1000, 1, 1), datetime(2001, 2, 2)):
        try:
            found.add(dates.parse(plain, parserinfo=_YEARS, default=default, fuzzy=True, ignoretz=True).date())
        except (ValueError, OverflowError):
            return None
    return found.pop() if len(found) == 1 else None


def all_dates(text: str) -> set[date]:
    """Return the full dates that a text gives."""
    written = [match.group() for match in DATE.finditer(text)] or [text]
    return {found for one in written if (found := parse_date(one))}


def _gold_parts(gold: str) -> tuple[int | None, int | None, int | None] | None:
    """Return (year, month, day) of gold, None for what is blacked out."""
    match = _PARTS.fullmatch(gold)
    if not match:
        return None
    month, day, year = (int(part) if part.isdigit() else None for part in match.groups())
    return None if year is None else _YEARS.convertyear(year, year >= 100), month, day


def _fits(prediction: str, known: tuple[int | None, int | None, int | None]) -> bool:
    found = all_dates(prediction)
    if len(found) == 1:
        one = found.pop()
        said: tuple[int | None, ...] = (one.year, one.month, one.day)
    else:
        lower = prediction.lower()
        year = re.search(r"(?<!\d)(?:19|20)\d\d(?!\d)", lower)
        months = [i for i, name in enumerate(_MONTHS, 1) if re.search(rf"(?<![a-z]){name}(?![a-z])", lower)]
        day = re.search(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th)?(?![\da-z])", lower)
        said = (int(year[0]) if year else None, months[0] if len(months) == 1 else None, int(day[1]) if day else None)
    return all(wanted in (None, given) for wanted, given in zip(known, said, strict=True))
