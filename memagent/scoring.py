"""Scores of answers against gold, as published (SQuAD normalisation, arXiv 1606.05250), with intervals.

A failed reading is a prediction like any other, and a wrong one: it never leaves an average.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_Z = 1.959964


def normalise(text: str) -> str:
    """Lower-case, drop punctuation and articles, fold white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals a gold answer after normalisation."""
    return float(any(normalise(prediction) == normalise(answer) for answer in gold))


def containment(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if a gold answer stands in the prediction as whole words (never the other way round)."""
    said = f" {normalise(prediction)} "
    return float(any(_holds(said, normalise(answer)) for answer in gold))


def f1(prediction: str, gold: Sequence[str]) -> float:
    """Return the best token F1 over the gold answers."""
    return max((_f1(normalise(prediction).split(), normalise(answer).split()) for answer in gold), default=0.0)


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact match": exact_match,
    "containment": containment,
    "f1": f1,
}


@dataclass(frozen=True, slots=True)
class Score:
    """A mean with its 95% interval."""

    metric: str
    value: float
    n: int
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def score(pairs: Iterable[tuple[str | None, Sequence[str]]]) -> list[Score]:
    """Score (prediction, gold) pairs by every metric.

    A prediction of None is a failure and counts 0. Gold of one empty text means that the documents
    do not tell: the empty prediction ("not found") is right and any other wrong.
    """
    known = list(pairs)
    result = []
    for name, metric in METRICS.items():
        values = [0.0 if prediction is None else metric(prediction, gold) for prediction, gold in known]
        result.append(mean(name, values))
    return result


def mean(metric: str, values: Sequence[float]) -> Score:
    """Return the mean of values in 0..1 with a 95% interval (Wilson's, exact in form for shares).

    For values between 0 and 1 that are no shares (F1) it is wider than needed, never narrower.
    """
    n = len(values)
    if not n:
        return Score(metric, 0.0, 0, 0.0, 1.0)
    p = sum(values) / n
    centre = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
    return Score(metric, p, n, max(0.0, centre - half), min(1.0, centre + half))


def _holds(said: str, answer: str) -> bool:
    return f" {answer} " in said if answer else not said.strip()


def _f1(prediction: list[str], gold: list[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    common = sum((Counter(prediction) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(gold)
    return 2 * precision * recall / (precision + recall)
