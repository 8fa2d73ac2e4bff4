"""Places in answers about contracts."""

import re

from memagent.scoring import normalise

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
"""Places with another's name in theirs."""


def same_place(prediction: str, gold: str) -> bool:
    """Tell whether a prediction names the place of gold, or one of its places.

    "the State of New York", "laws of New York" and "N.Y." are right for "New York", "Ontario" for "Ontario, Canada",
    "England" or "English law" for "England and Wales". "West Virginia" is not Virginia, nor "Washington, D.C."
    Washington.
    """
    said = f" {_place(prediction)} "
    names = [name for part in gold.split(";") for name in re.split(r"(?i)\band\b", part.split(",")[0])]
    return any(_named(place, said) for place in map(_place, names) if place)


def _named(place: str, said: str) -> bool:
    for longer in _LONGER:
        if f" {place} " in f" {longer} " and place != longer:
            said = said.replace(f" {longer} ", "  ")
    return f" {place} " in said


def _place(text: str) -> str:
    text = _CAPITAL.sub("District of Columbia", text)
    if not text.isupper() or len(text.split()) <= 2:
        # In a text of capitals alone, IN and OR are words.
        text = _SHORT.sub(lambda match: _STATES.get(re.sub(r"[. ]", "", match[0]), match[0]), text)
    return " ".join(_ADJECTIVES.get(word, word) for word in normalise(_FILL.sub(" ", text)).split())
