"""Compare answers about contracts with gold by type: dates, places, durations, parties, yes or no.

Pure functions of category, answer and gold. An empty answer means "not found"; failed readings (None) are not passed
in.
"""

import re
from collections.abc import Callable
from datetime import date, datetime
from functools import cache
from typing import Any

from memagent.evaluation.contracts import DATE, ENTITIES, YES_NO
from memagent.evaluation.metrics import containment, normalise

_DATES = ("Agreement Date", "Effective Date", "Expiration Date")
_DURATIONS = ("Renewal Term", "Notice Period To Terminate Renewal")
_DESCRIBED = ("Warranty Duration", "Competitive Restriction Exception")
"""Categories with yes/no gold whose question asks for the clause's text."""
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
    if category == "Notice Period To Terminate Renewal":
        # A clause quoted in full states the renewed term first: "... one year unless ... 60 days ...".
        prediction = _UNLESS.split(prediction, maxsplit=1)[-1]
    return _SAME.get(category, contains)(prediction, gold)


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
    verdicts = {"yes", "no"} & set(words)
    if len(verdicts) == 1:
        return verdicts == {"yes"}
    return True if category in _DESCRIBED and not verdicts else None


def _states(category: str, answer: str) -> bool:
    if category in _DATES:
        return bool(all_dates(answer))
    return bool(durations(answer)) if category in _DURATIONS else bool(normalise(answer))


PERPETUAL = re.compile(r"(?i)\bperpetu(?:al|ally|ity)\b|\bindefinite(?:ly)?\b")
"""Words that stand for a date or duration."""
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
_LINES = re.compile(r"\n\s*\n")


def contains(prediction: str, gold: str) -> bool:
    """Tell whether gold, or one of several after ";", stands in the answer as whole words, line by line."""
    answer = straight(prediction)
    names = [_LINES.split(part) for part in straight(gold).split(";") if normalise(part)]
    return any(all(containment(answer, [line]) == 1.0 for line in name if normalise(line)) for name in names)


def straight(text: str) -> str:
    """Return the text with straight quotation marks."""
    return text.translate(_QUOTES)


_DAY = re.compile(r"(?i)\bday of\b|\bthis\b|\bthe\b|\bdated\b|\bas of\b|[()\[\]_]")
_ORDINAL = re.compile(r"(?i)\b(\d{1,2}) ?(?:s ?t|n ?d|r ?d|t ?h)\b")
"""Also as filings have it, "1s t day"."""
CENTURY = re.compile(r"\b(?:19|20)(?=\[)")
"""The visible part of a redacted year."""
_PARTS = re.compile(r"\s*(\d{1,2}|\[\])/(\d{1,2}|\[\])/(\d{4}|\d{2}(?!\[)|[\d\[\]]+)\s*")
_MONTHS = "january february march april may june july august september october november december".split()


@cache
def _parser_info() -> Any:
    """Return how dateutil reads dates; the package comes with an extra, and only what compares dates needs it."""
    from dateutil.parser import parserinfo

    class Years(parserinfo):  # type: ignore[misc] # dateutil has no types
        """Two digits are a year from 1970 to 2069, whatever the clock says."""

        def convertyear(self, year: int, century_specified: bool = False) -> int:
            return year if century_specified or year >= 100 else year + (1900 if year >= 70 else 2000)

    return Years()


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
    answered = all_dates(prediction)
    expected = {date for part in parts if (date := parse_date(part))}
    return bool(answered) and answered <= expected


def parse_date(text: str) -> date | None:
    """Return the date that a text gives in full, or None. Month before day, as in the United States."""
    plain = " ".join(_DAY.sub(" ", _ORDINAL.sub(r"\1 ", text)).replace(",", " ").split())
    # What the text leaves out comes from the default; only a full date gives the same from two of them.
    from dateutil.parser import parse

    info, parsed = _parser_info(), set()
    for default in (datetime(1000, 1, 1), datetime(2001, 2, 2)):
        try:
            parsed.add(parse(plain, parserinfo=info, default=default, fuzzy=True, ignoretz=True).date())
        except (ValueError, OverflowError):
            return None
    return parsed.pop() if len(parsed) == 1 else None


def all_dates(text: str) -> set[date]:
    """Return the full dates that a text gives."""
    written = [match.group() for match in DATE.finditer(text)] or [text]
    return {date for text_of_date in written if (date := parse_date(text_of_date))}


def _gold_parts(gold: str) -> tuple[int | None, int | None, int | None] | None:
    """Return (year, month, day) of gold, None for what is blacked out."""
    match = _PARTS.fullmatch(gold)
    if not match:
        return None
    month, day, year = (int(part) if part.isdigit() else None for part in match.groups())
    return None if year is None else _parser_info().convertyear(year, year >= 100), month, day


def _fits(prediction: str, known: tuple[int | None, int | None, int | None]) -> bool:
    whole = all_dates(prediction)
    if len(whole) == 1:
        date = whole.pop()
        parts: tuple[int | None, ...] = (date.year, date.month, date.day)
    else:
        lower = prediction.lower()
        year = re.search(r"(?<!\d)(?:19|20)\d\d(?!\d)", lower)
        months = [i for i, name in enumerate(_MONTHS, 1) if re.search(rf"(?<![a-z]){name}(?![a-z])", lower)]
        day = re.search(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th)?(?![\da-z])", lower)
        parts = (int(year[0]) if year else None, months[0] if len(months) == 1 else None, int(day[1]) if day else None)
    return all(wanted in (None, given) for wanted, given in zip(known, parts, strict=True))


_LEGAL = frozenset(
    "inc incorporated corp corporation llc ltd limited lp llp plc co company gmbh sa ag nv bv pte pty".split()
)
_ROLE = re.compile(r"(?i)\s*(?:individually|collectively|each|together|hereinafter|and collectively)\b")
_ALIAS = re.compile(r"\([^()]*\)")
_AFTER = re.compile(r"(?i)\bd/?b/?a\b|\bdoing business as\b|\bon behalf of\b")


def same_parties(prediction: str, gold: str) -> bool:
    """Tell whether each party of gold stands in the prediction, by name without its legal form ("Inc.", "LLC").

    Gold is ``name ("alias"); name ("alias")``; aliases are not asked for.
    """
    names = parties(gold)
    # Gold loses what stands in brackets, and so may the answer: "Rise (Tianjin) Education".
    wordings = [f" {normalise(text)} " for text in (straight(prediction), _without_aliases(prediction))]
    if not names:
        return contains(prediction, gold)
    return all(any(f" {name} " in wording for wording in wordings) for name in names)


def parties(gold: str) -> list[str]:
    """Return the names of gold, normalised, without aliases and legal forms."""
    names: list[str] = []
    for part in _without_aliases(gold).split(";"):
        if not _ROLE.match(part):
            name = _AFTER.split(part.split("(")[0])[0]
            both = name.split(" and ")
            several = len(both) > 1 and all(not _LEGAL.isdisjoint(normalise(one).split()[-1:]) for one in both)
            names.extend(_bare(party) for party in (both if several else [name]))
    return [name for name in dict.fromkeys(names) if name]


def _without_aliases(text: str) -> str:
    text = straight(text)
    while (less := _ALIAS.sub(" ", text)) != text:
        text = less
    return text


def _bare(name: str) -> str:
    words = normalise(name).split()
    while len(words) > 1 and words[-1] in _LEGAL:
        words.pop()
    return " ".join(words)


_FILL = re.compile(
    r"(?i)\b(?:the|state|commonwealth|province|country|federal|people['\u2019]?s|republic|laws?|of|internal)\b"
)
_STATES = dict(
    pair.split(":")
    for pair in (
        "AL:Alabama AK:Alaska AZ:Arizona AR:Arkansas CA:California CO:Colorado CT:Connecticut DE:Delaware FL:Florida "
        "GA:Georgia HI:Hawaii ID:Idaho IL:Illinois IN:Indiana IA:Iowa KS:Kansas KY:Kentucky LA:Louisiana ME:Maine "
        "MD:Maryland MA:Massachusetts MI:Michigan MN:Minnesota MS:Mississippi MO:Missouri MT:Montana NE:Nebraska "
        "NV:Nevada NH:New_Hampshire NJ:New_Jersey NM:New_Mexico NY:New_York NC:North_Carolina ND:North_Dakota OH:Ohio "
        "OK:Oklahoma OR:Oregon PA:Pennsylvania RI:Rhode_Island SC:South_Carolina SD:South_Dakota TN:Tennessee TX:Texas "
        "UT:Utah VT:Vermont VA:Virginia WA:Washington WV:West_Virginia WI:Wisconsin WY:Wyoming "
        "DC:District_of_Columbia UK:United_Kingdom US:United_States USA:United_States PRC:China"
    )
    .replace("_", "\u00a0")
    .split(" ")
)
_SHORT = re.compile(r"\b[A-Z]\.? ?[A-Z]\.?(?: ?[A-Z]\.?)?(?![A-Za-z])")
_ADJECTIVES = dict(
    pair.split(":")
    for pair in (
        "english:england swiss:switzerland german:germany dutch:netherlands french:france italian:italy spanish:spain "
        "japanese:japan chinese:china israeli:israel indian:india"
    ).split()
)
_CAPITAL = re.compile(r"(?i)\bWashington,? +D\. ?C\.|\bWashington,? +DC\b")
_LONGER = ("west virginia", "new mexico", "new south wales", "northern ireland", "british columbia")
"""Places whose names contain another place's."""


def same_place(prediction: str, gold: str) -> bool:
    """Tell whether a prediction names the place of gold, or one of its places.

    "the State of New York", "laws of New York" and "N.Y." are right for "New York", "Ontario" for "Ontario, Canada",
    "England" or "English law" for "England and Wales". "West Virginia" is not Virginia, nor "Washington, D.C."
    Washington.
    """
    answer = f" {_place(prediction)} "
    names = [name for part in gold.split(";") for name in re.split(r"(?i)\band\b", part.split(",")[0])]
    return any(_named(stated, answer) for stated in map(_place, names) if stated)


def _named(name: str, answer: str) -> bool:
    for longer in _LONGER:
        if f" {name} " in f" {longer} " and name != longer:
            answer = answer.replace(f" {longer} ", "  ")
    return f" {name} " in answer


def _place(text: str) -> str:
    text = _CAPITAL.sub("District of Columbia", text)
    if not text.isupper() or len(text.split()) <= 2:
        # In a text of capitals alone, IN and OR are words.
        text = _SHORT.sub(lambda match: _STATES.get(re.sub(r"[. ]", "", match[0]), match[0]), text)
    return " ".join(_ADJECTIVES.get(word, word) for word in normalise(_FILL.sub(" ", text)).split())


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
    expected, answered = durations(gold), durations(prediction)
    if expected:
        return bool(answered) and answered[0] in expected
    if PERPETUAL.search(gold):
        return bool(PERPETUAL.search(prediction))
    return contains(prediction, gold)


def durations(text: str) -> list[tuple[float, float]]:
    """Return the durations of a text in order, as (months, days); "4 years, 6 months" is one."""
    plain = " ".join(re.sub(r"[-\u2010-\u2015]", " ", text.lower()).replace("hundred and", "hundred").split())
    spans: list[tuple[float, float]] = []
    end, rank = -1, len(_RANK)
    for match in _DURATION.finditer(plain):
        unit = match["unit"] or ("year" if match["yearly"] else "month")
        count = float(match["digits"]) if match["digits"] else float(_NUMBERS.get(match["words"] or "one", 1))
        months, days = count * _UNITS[unit][0], count * _UNITS[unit][1]
        if spans and _RANK.index(unit) > rank and _JOINED.fullmatch(plain, end, match.start()):
            months, days = months + spans[-1][0], days + spans[-1][1]
            spans.pop()
        spans.append((months, days))
        end, rank = match.end(), _RANK.index(unit)
    return spans


_SAME: dict[str, Callable[[str, str], bool]] = {
    **dict.fromkeys(_DATES, same_date),
    **dict.fromkeys(_DURATIONS, same_duration),
    "Governing Law": same_place,
    "Parties": same_parties,
}
"""How answers of a category are compared; else by `contains`."""
