"""Is an answer about a contract right? Dates, places, durations, parties, yes or no: each compared as what it is.

A verdict is a pure function of category, answer and gold. An empty answer means "not found"; a failed reading (None)
is wrong before it comes here.
"""

import re

from memagent.scoring import normalise
from memagent.tasks.cuad import ENTITIES, YES_NO
from memagent.tasks.verdicts.dates import CENTURY, all_dates, parse_date, same_date
from memagent.tasks.verdicts.durations import durations, same_duration
from memagent.tasks.verdicts.parties import parties, same_parties
from memagent.tasks.verdicts.places import same_place
from memagent.tasks.verdicts.wording import contains

__all__ = ["durations", "parse_date", "parties", "right", "says_yes"]

_DATES = ("Agreement Date", "Effective Date", "Expiration Date")
_DURATIONS = ("Renewal Term", "Notice Period To Terminate Renewal")
_DESCRIBED = ("Warranty Duration", "Competitive Restriction Exception")
"""Yes or no by gold, but asked for what the clause says."""
_UNLESS = re.compile(r"(?i)\bunless\b")


def right(category: str, prediction: str, gold: str) -> bool:
    """Tell whether `prediction` (empty: not found) answers as the annotators' `gold` (empty: not in the contract).

    - Dates: `same_date`; expirations may be perpetual. Terms and notice periods: `same_duration`.
    - Governing law: `same_place`. Parties: `same_parties`.
    - Document name: it, or one of several after ";", stands in the answer as whole words, line by line.
    - Yes or no: `says_yes` is what gold says.

    Blank gold is answered by "not found" alone. Gold that is blacked out as a whole ("[]/[]/[]") is answered by that,
    or by anything that states no date, duration or word.

    Raises:
        ValueError: the category is not one of CUAD's.
    """
    prediction, gold = prediction.strip(), gold.strip()
    if category in YES_NO:
        return says_yes(category, prediction) is (normalise(gold) == "yes")
    if category not in ENTITIES:
        raise ValueError(f"{category!r} is no category of CUAD")
    if gold and not re.search(r"[^\W_]", CENTURY.sub("", gold)):
        return not _states(category, prediction)
    if not gold or not prediction:
        return not gold and not prediction
    if prediction.lower() == gold.lower():
        return True
    if category in _DATES:
        return same_date(prediction, gold)
    if category == "Notice Period To Terminate Renewal":
        # A clause that is quoted in full tells the term that is renewed first: "... one year unless ... 60 days ...".
        return same_duration(_UNLESS.split(prediction, maxsplit=1)[-1], gold)
    if category in _DURATIONS:
        return same_duration(prediction, gold)
    if category == "Governing Law":
        return same_place(prediction, gold)
    if category == "Parties":
        return same_parties(prediction, gold)
    return contains(prediction, gold)


def says_yes(category: str, answer: str) -> bool | None:
    """Return what an answer says to a yes/no category, or None where it says neither.

    "Not found" is no: gold is No exactly where there is no such clause. The first word decides, else whichever of the
    two words stands in the answer alone. Two categories ask what the clause says: there, saying it is yes.
    """
    words = normalise(answer).split()
    if not words:
        return False
    if words[0] in ("yes", "no"):
        return words[0] == "yes"
    said = {"yes", "no"} & set(words)
    if len(said) == 1:
        return said == {"yes"}
    return True if category in _DESCRIBED and not said else None


def _states(category: str, answer: str) -> bool:
    if category in _DATES:
        return bool(all_dates(answer))
    return bool(durations(answer)) if category in _DURATIONS else bool(normalise(answer))
