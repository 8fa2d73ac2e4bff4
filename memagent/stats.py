"""Intervals and paired tests of scores."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypedDict, cast

_Z = 1.959964
"""The 97.5% point of the normal distribution."""
_EXACT = 15
"""Differences of several sizes up to which all sign patterns are counted."""


class ScoreDict(TypedDict):
    """A `Score` as plain data."""

    metric: str
    value: float
    n: int
    low: float
    high: float


class PairedDict(TypedDict):
    """A `Paired` as plain data."""

    difference: float
    low: float
    high: float
    p: float
    n: int
    better: int
    worse: int
    method: Literal["exact", "monte carlo"]


@dataclass(frozen=True, slots=True)
class Score:
    """A mean with its 95% interval."""

    metric: str
    value: float
    n: int
    low: float
    high: float

    def as_dict(self) -> ScoreDict:
        """Return it as plain data."""
        return cast(ScoreDict, asdict(self))


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the same samples: mean of the first minus mean of the second, with its 95% interval."""

    difference: float
    low: float
    high: float
    p: float
    """Two-sided: probability of a difference at least as large under random signs."""
    n: int
    better: int
    """Samples on which the first run scores more."""
    worse: int
    method: Literal["exact", "monte carlo"]

    def as_dict(self) -> PairedDict:
        """Return it as plain data."""
        return cast(PairedDict, asdict(self))


@dataclass(frozen=True, slots=True)
class Balanced:
    """Mean of the shares right in two classes, so that a constant answer gets one half."""

    value: float | None
    """None if a class has no samples; the interval is then 0 to 1."""
    low: float
    high: float
    yes: Score
    no: Score


def mean(metric: str, values: Sequence[float | None]) -> Score:
    """Return the mean of values in 0..1 with a 95% interval (Wilson's, exact in form for shares).

    None is a failure and counts 0. For values between 0 and 1 that are no shares (F1) the interval is wider than
    needed, never narrower.
    """
    return share(metric, math.fsum(value or 0.0 for value in values), len(values))


def share(metric: str, total: float, n: int) -> Score:
    """Return the mean of `n` values in 0..1 whose sum is `total`, with its interval; see `mean`."""
    if not n:
        return Score(metric, 0.0, 0, low=0.0, high=1.0)
    p = total / n
    centre = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    # Rounding may put p a hair above 1, and so the variance below 0.
    spread = max(0.0, p * (1 - p) / n + _Z * _Z / (4 * n * n))
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(spread)
    # Rounding must not put the mean outside its own interval either.
    return Score(metric, p, n, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)))


def balanced_accuracy(verdicts: Iterable[tuple[bool, bool]]) -> Balanced:
    """Return the balanced accuracy of (gold is yes, answer is right) pairs; a failure is a wrong answer.

    The interval joins Wilson's intervals of the two shares by square and add (Newcombe, Statistics in Medicine 17,
    1998, method 10, for a mean of two shares in place of their difference).
    """
    known = list(verdicts)
    yes = mean("yes", [float(right) for gold, right in known if gold])
    no = mean("no", [float(right) for gold, right in known if not gold])
    if not yes.n or not no.n:
        return Balanced(None, 0.0, 1.0, yes=yes, no=no)
    value = (yes.value + no.value) / 2
    below = math.hypot(yes.value - yes.low, no.value - no.low) / 2
    above = math.hypot(yes.high - yes.value, no.high - no.value) / 2
    return Balanced(value, max(0.0, value - below), min(1.0, value + above), yes=yes, no=no)


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
    from scipy.special import stdtrit

    differences = [(x or 0.0) - (y or 0.0) for x, y in zip(a, b, strict=True)]
    n = len(differences)
    middle = math.fsum(differences) / n if n else 0.0
    half = 1.0 if n < 2 else float(stdtrit(n - 1, 0.975)) * math.sqrt(_variance(differences, middle) / n)
    # One order and one direction: what is drawn depends neither on the samples' order nor on which run is first.
    ahead = math.copysign(1.0, middle)
    p, exact = _sign_flips(sorted(ahead * difference for difference in differences if difference), draws, seed)
    return Paired(
        difference=middle,
        low=max(-1.0, middle - half),
        high=min(1.0, middle + half),
        p=p,
        n=n,
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
        method="exact" if exact else "monte carlo",
    )


def _sign_flips(differences: list[float], draws: int, seed: int) -> tuple[float, bool]:
    """Return the p of the sign-flip test of differences none of which is 0, and whether all patterns were counted."""
    n = len(differences)
    if not n:
        return 1.0, True
    from scipy.stats import binomtest, permutation_test

    sizes = [abs(difference) for difference in differences]
    if max(sizes) - min(sizes) <= 1e-9 * max(sizes):
        return float(binomtest(sum(difference > 0 for difference in differences), n).pvalue), True
    exact = n <= _EXACT
    test = permutation_test(
        (differences,),
        lambda signed, axis: abs(signed.sum(axis=axis)),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=math.inf if exact else draws,
        batch=2**14,
        rng=seed,
    )
    return min(1.0, float(test.pvalue)), exact


def _variance(values: Sequence[float], middle: float) -> float:
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
