"""Is an answer about a contract right? Dates are parsed, places normalised, blank gold means "not found"."""

import re
from datetime import date, datetime

from dateutil import parser as dates

from memagent.scoring import containment, normalise
from memagent.tasks.contracts import Category

_FILL = re.compile(r"(?i)\b(?:the|state|commonwealth|province|country|republic|laws?|of|internal)\b")
_DAY = re.compile(r"(?i)\bday of\b|\bthis\b|\bthe\b|\bdated\b|\bas of\b|[()\[\]_]")


def right(category: Category, prediction: str, gold: str) -> bool:
    """Tell whether `prediction` (empty: not found) answers as the annotators' `gold` (empty: not in the contract)."""
    if not gold or not prediction:
        return not gold and not prediction
    if category == "Agreement Date":
        return same_date(prediction, gold)
    if category == "Governing Law":
        return same_place(prediction, gold)
    return containment(prediction, [gold]) == 1.0 or normalise(gold) == normalise(prediction)


def same_date(prediction: str, gold: str) -> bool:
    """Compare two dates however they are written; gold is in US form (5/8/14)."""
    said, meant = parse_date(prediction), parse_date(gold)
    return said is not None and said == meant


def parse_date(text: str) -> date | None:
    """Return the date that a text gives in full, or None. Month before day, as in the United States."""
    plain = " ".join(_DAY.sub(" ", text).replace(",", " ").split())
    # What the text leaves out comes from the default; only a full date gives the same from two of them.
    found = set()
    for default in (datetime(1000, 1, 1), datetime(2001, 2, 2)):
        try:
            found.add(dates.parse(plain, default=default, fuzzy=True).date())
        except (ValueError, OverflowError):
            return None
    return found.pop() if len(found) == 1 else None


def same_place(prediction: str, gold: str) -> bool:
    """Tell whether a prediction names the place of gold.

    "the State of New York" is right for "New York", and "Ontario" for "Ontario, Canada".
    """
    said = f" {_place(prediction)} "
    places = [part.split(",")[0] for part in gold.split(";")]
    return any(f" {_place(place)} " in said for place in places if _place(place))


def _place(text: str) -> str:
    return " ".join(normalise(_FILL.sub(" ", text)).split())
