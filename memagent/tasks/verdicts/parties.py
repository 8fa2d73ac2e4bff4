"""Parties in answers about contracts."""

import re

from memagent.scoring import normalise
from memagent.tasks.verdicts.wording import contains, straight

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
    said = [f" {normalise(text)} " for text in (straight(prediction), _without_aliases(prediction))]
    return all(any(f" {name} " in one for one in said) for name in names) if names else contains(prediction, gold)


def parties(gold: str) -> list[str]:
    """Return the names of gold, normalised, without aliases and legal forms."""
    names: list[str] = []
    for part in _without_aliases(gold).split(";"):
        if not _ROLE.match(part):
            name = _AFTER.split(part.split("(")[0])[0]
            both = name.split(" and ")
            several = len(both) > 1 and all(map(_formal, both))
            names.extend(_bare(one) for one in (both if several else [name]))
    return [name for name in dict.fromkeys(names) if name]


def _without_aliases(text: str) -> str:
    text = straight(text)
    while (less := _ALIAS.sub(" ", text)) != text:
        text = less
    return text


def _formal(name: str) -> bool:
    return not _LEGAL.isdisjoint(normalise(name).split()[-1:])


def _bare(name: str) -> str:
    words = normalise(name).split()
    while len(words) > 1 and words[-1] in _LEGAL:
        words.pop()
    return " ".join(words)
