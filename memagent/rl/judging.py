"""The strict form of a task's own metric, by which training pays.

Published metrics (`memagent.metrics.MATCHES`) count an answer that holds the gold among other things: a list of all
names, the whole text, "not 5" for "5". A policy that is paid for these learns to write them, so here nothing may stand
beside the gold.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation

from memagent.metrics import MATCHES, exact_match, normalise
from memagent.tasks.contract_match import all_dates, right
from memagent.tasks.sample import Sample

_AROUND_NUMBERS = " \t\n$€£%."
_AND = frozenset({"and"})
_LAW = frozenset(
    "state commonwealth province country federal peoples republic law laws of internal under by governed".split()
)
"""Words around a place in the wording of a contract's law."""
_DATED = frozenset(
    "january february march april may june july august september october november december day of this as dated on jan "
    "feb mar apr jun jul aug sep sept oct nov dec st nd rd th".split()
)
_DAY = re.compile(r"\d+(?:st|nd|rd|th)?")


def strict_score(sample: Sample, answer: str) -> float:
    """Score an answer, 0 to 1: 1 for the gold alone; an empty answer is right where the text does not say.

    Of several gold texts that are all asked for (``match`` "all") their share counts, if nothing else is said.
    """
    gold = sample.answers
    if not any(gold) or not answer.strip():
        return float(not any(gold) and not answer.strip())
    if sample.match == "all":
        return listed(answer, gold, sample.question)
    if sample.match == "contract":
        return _of_contract(str(sample.about["category"]), answer, gold[0])
    if sample.match == "f1":
        return MATCHES["f1"](answer, gold)
    return exact(answer, gold)


def exact(answer: str, gold: Sequence[str]) -> float:
    """Return 1 for an exact match after normalisation (`memagent.metrics.exact_match`) that is no other number.

    Normalised, "-5" and "5" are one text, and so are "1.5" and "15".
    """
    return float(any(exact_match(answer, [text]) == 1.0 and not _other_number(answer, text) for text in gold))


def _other_number(answer: str, gold: str) -> bool:
    given, wanted = _number(answer), _number(gold)
    return given is not None and wanted is not None and given != wanted


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text.strip(_AROUND_NUMBERS).replace(",", ""))
    except InvalidOperation:
        return None


def listed(answer: str, gold: Sequence[str], question: str = "") -> float:
    """Return the share of the gold texts that an answer lists, each once; 0 if it says anything else.

    Where several are asked for, words of the question may stand beside them: "the code of cedar is 5, that of elm 7".
    """
    if len(gold) == 1:
        return exact(answer, gold)
    rest = f" {normalise(answer)} "
    count = 0
    for text in sorted(gold, key=len, reverse=True):
        before = rest
        rest = rest.replace(f" {normalise(text)} ", "  ", 1)
        count += rest != before
    beside = set(rest.split()) - _AND - set(normalise(question).split())
    return 0.0 if beside else count / len(gold)


def _of_contract(category: str, answer: str, gold: str) -> float:
    """Return 1 for a right date, place or name, in any form, with nothing beside it."""
    if not right(category, answer, gold):
        return 0.0
    if category.endswith("Date") and all_dates(answer):
        words = normalise(answer).split()
        plain = all(len(digits) in (1, 2, 4) for digits in re.findall(r"\d+", answer)) and len(words) == len(set(words))
        return float(plain and all(_DAY.fullmatch(word) or word in _DATED for word in words))
    if category == "Governing Law":
        return float(_nothing_beside(answer, gold, _LAW))
    return float(_nothing_beside(answer, gold, ()))


def _nothing_beside(answer: str, gold: str, filler: Collection[str]) -> bool:
    """Whether an answer has no words but those of the gold, each as often at most, and filler."""
    words = Counter(word for word in normalise(answer).split() if word not in filler)
    return not words - Counter(normalise(gold).split())
