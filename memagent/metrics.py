"""Scores of answers against gold, as published, with intervals, and two runs against each other.

Sources: SQuAD (arXiv 1606.05250: normalisation, exact match, F1), RULER (arXiv 2404.06654: string_match_all,
string_match_part), LongBench (arXiv 2308.14508: qa_f1). What is published in percent is a share here.
A failed reading is a prediction like any other, and a wrong one: it never leaves an average.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_Z = 1.959964
_STUDENT = {1: 12.70620, 2: 4.30265, 3: 3.18245, 4: 2.77645}
_EXACT = 15
_CHUNK = 1000


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


def string_match_all(prediction: str, gold: Sequence[str]) -> float:
    """Return the share of references that are lower-case substrings of the prediction (RULER).

    RULER has no blank reference, which would be a substring of anything; here only a blank prediction matches one.
    """
    return sum(_within(prediction, answer) for answer in gold) / len(gold) if gold else 0.0


def string_match_part(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if any reference is a lower-case substring of the prediction (RULER's qa tasks).

    As published, "no" is found in "I do not know": read it beside `containment`, which wants whole words.
    """
    return float(any(_within(prediction, answer) for answer in gold))


def qa_f1(prediction: str, gold: Sequence[str]) -> float:
    """Return LongBench's F1: tokens after normalisation, best of the answers.

    It differs from `f1` where nothing is left after normalisation ("the" for "the"): no common token, so 0.
    LongBench has no blank gold; here it is matched by a blank prediction alone.
    """
    return max((_token_f1(prediction, answer) for answer in gold), default=0.0)


Metric = Callable[[str, Sequence[str]], float]

METRICS: dict[str, Metric] = {
    "exact match": exact_match,
    "containment": containment,
    "f1": f1,
}
MATCHES: dict[str, Metric] = {"all": string_match_all, "part": string_match_part, "f1": qa_f1}
"""The metric of each `match` of a sample but "contract", which `memagent.tasks.contract_match` tells."""


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


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the same samples: mean of the first minus mean of the second, with its 95% interval."""

    difference: float
    low: float
    high: float
    p: float
    """Two-sided: how often signs drawn at random give a difference at least as large."""
    n: int
    better: int
    """Samples on which the first run scores more."""
    worse: int
    method: Literal["exact", "monte carlo"]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Balanced:
    """Mean of the shares right in two classes, so that a constant answer gets one half."""

    value: float | None
    """None where a class has no sample; the interval is then 0 to 1."""
    low: float
    high: float
    yes: Score
    no: Score

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def score(
    pairs: Iterable[tuple[str | None, Sequence[str]]], metrics: Mapping[str, Metric] | None = None
) -> list[Score]:
    """Score (prediction, gold) pairs by every metric of `metrics` (usually `METRICS`).

    A prediction of None is a failure and counts 0. Gold of one empty text means that the documents
    do not tell: the empty prediction ("not found") is right and any other wrong.
    """
    known = list(pairs)
    result = []
    for name, metric in (METRICS if metrics is None else metrics).items():
        values = [0.0 if prediction is None else metric(prediction, gold) for prediction, gold in known]
        result.append(mean(name, values))
    return result


def mean(metric: str, values: Sequence[float | None]) -> Score:
    """Return the mean of values in 0..1 with a 95% interval (Wilson's, exact in form for shares).

    None is a failure and counts 0. For values between 0 and 1 that are no shares (F1) the interval is wider than
    needed, never narrower.
    """
    n = len(values)
    if not n:
        return Score(metric, 0.0, 0, 0.0, 1.0)
    p = math.fsum(value or 0.0 for value in values) / n
    centre = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    # Rounding may put p a hair above 1, and so the variance below 0.
    spread = max(0.0, p * (1 - p) / n + _Z * _Z / (4 * n * n))
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(spread)
    # Rounding must not put the mean outside its own interval either.
    return Score(metric, p, n, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def balanced_accuracy(verdicts: Iterable[tuple[bool, bool]]) -> Balanced:
    """Return the balanced accuracy of (gold is yes, answer is right) pairs; a failure is a wrong answer.

    The interval joins Wilson's intervals of the two shares by square and add (Newcombe, Statistics in Medicine 17,
    1998, method 10, for a mean of two shares in place of their difference).
    """
    known = list(verdicts)
    yes = mean("yes", [float(right) for gold, right in known if gold])
    no = mean("no", [float(right) for gold, right in known if not gold])
    if not yes.n or not no.n:
        return Balanced(None, 0.0, 1.0, yes, no)
    value = (yes.value + no.value) / 2
    below = math.hypot(yes.value - yes.low, no.value - no.low) / 2
    above = math.hypot(yes.high - yes.value, no.high - no.value) / 2
    return Balanced(value, max(0.0, value - below), min(1.0, value + above), yes, no)


def paired(a: Sequence[float | None], b: Sequence[float | None], *, draws: int = 10_000, seed: int = 0) -> Paired:
    """Compare two runs sample by sample: `a[i]` and `b[i]` in 0..1 score the same sample, None is a failure (0).

    The interval is Student's for the mean of the differences, kept within -1..1; it collapses where all differences
    are equal, and tells nothing for a single sample. p is of the sign-flip permutation test (Fisher, The Design of
    Experiments, 1935, section 21; advised for such scores by Dror et al., ACL 2018, P18-1128): exact where all
    differences that are not 0 have one size (as of right and wrong: the exact McNemar test) or are `_EXACT` at most,
    otherwise from `draws` random sign patterns, the observed one counted among them (Phipson and Smyth, 2010, arXiv
    1603.05766), so that it is never 0. The order of the samples does not matter.

    Raises:
        ValueError: the runs differ in length.
    """
    differences = [(x or 0.0) - (y or 0.0) for x, y in zip(a, b, strict=True)]
    n = len(differences)
    middle = math.fsum(differences) / n if n else 0.0
    half = 1.0 if n < 2 else _student(n - 1) * math.sqrt(_variance(differences, middle) / n)
    sizes = sorted(abs(one) for one in differences if one)
    observed = abs(math.fsum(differences)) * (1 - 1e-9)
    p, exact = _flips(sizes, observed, draws, seed)
    return Paired(
        difference=middle,
        low=max(-1.0, middle - half),
        high=min(1.0, middle + half),
        p=p,
        n=n,
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
        method="exact" if exact else "monte carlo",
    )


def _flips(sizes: list[float], observed: float, draws: int, seed: int) -> tuple[float, bool]:
    """Return the share of sign patterns whose sum is at least `observed` in size, and whether all were counted."""
    n = len(sizes)
    if not n:
        return 1.0, True
    if sizes[-1] - sizes[0] <= 1e-9 * sizes[-1]:
        hits = sum(math.comb(n, k) for k in range(n + 1) if abs(n - 2 * k) * sizes[-1] >= observed)
        return hits / 2**n, True
    if n <= _EXACT:
        sums = [0.0]
        for size in sizes:
            sums = [one + size for one in sums] + [one - size for one in sums]
        return sum(abs(one) >= observed for one in sums) / len(sums), True
    import numpy

    known, random = numpy.asarray(sizes), numpy.random.default_rng(seed)
    hits = 0
    for start in range(0, draws, _CHUNK):
        signs = 2.0 * random.integers(0, 2, size=(min(_CHUNK, draws - start), n)) - 1.0
        hits += int((abs(signs @ known) >= observed).sum())
    return (hits + 1) / (draws + 1), False


def _variance(values: Sequence[float], middle: float) -> float:
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def _student(freedom: int) -> float:
    """Return the 97.5% point of Student's t (Abramowitz and Stegun 26.7.5, within 0.2% from 5 degrees of freedom)."""
    if freedom in _STUDENT:
        return _STUDENT[freedom]
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def _within(prediction: str, answer: str) -> bool:
    return answer.lower() in prediction.lower() if answer.strip() else not prediction.strip()


def _token_f1(prediction: str, answer: str) -> float:
    if not answer.strip():
        return float(not prediction.strip())
    said, meant = normalise(prediction).split(), normalise(answer).split()
    return _f1(said, meant) if said and meant else 0.0


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
