"""Intervals and paired tests of scores."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

Method = Literal["exact", "monte carlo"]
Floats = NDArray[np.float64]
DRAWS = 10_000
"""Random sign patterns of a permutation test that is not exact."""
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


class Paired(TypedDict):
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
    method: Method


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


def balanced_accuracy(verdicts: Iterable[tuple[bool, bool]]) -> Score | None:
    """Return the balanced accuracy of (gold is yes, answer is right) pairs; a failure is a wrong answer.

    That is the mean of the shares right in the two classes, so that a constant answer gets one half; None where a class
    has no samples. The interval joins Wilson's intervals of the two shares by square and add (Newcombe, Statistics in
    Medicine 17, 1998, method 10, for a mean of two shares in place of their difference).
    """
    known = list(verdicts)
    yes, no = (mean("", [float(right) for gold, right in known if gold is side]) for side in (True, False))
    if not yes.n or not no.n:
        return None
    value = (yes.value + no.value) / 2
    below = math.hypot(yes.value - yes.low, no.value - no.low) / 2
    above = math.hypot(yes.high - yes.value, no.high - no.value) / 2
    return Score("balanced accuracy", value, len(known), low=max(0.0, value - below), high=min(1.0, value + above))


def paired(a: Sequence[float | None], b: Sequence[float | None], *, draws: int = DRAWS) -> Paired:
    """Compare two runs sample by sample: `a[i]` and `b[i]` in 0..1 score the same sample, None is a failure (0).

    The interval is Student's for the mean of the differences, kept within -1..1; it collapses where all differences
    are equal, and tells nothing for a single sample. p is of the sign-flip permutation test (`sign_flip`; advised for
    such scores by Dror et al., ACL 2018, P18-1128). The order of the samples does not matter.

    Raises:
        ValueError: the runs differ in length.
    """
    differences = [(x or 0.0) - (y or 0.0) for x, y in zip(a, b, strict=True)]
    n = len(differences)
    middle = math.fsum(differences) / n if n else 0.0
    spread = math.fsum((value - middle) ** 2 for value in differences)
    half = student(0.975, n) * math.sqrt(spread / (n - 1) / n) if n > 1 else 1.0
    p, method = sign_flip(np.array(differences), draws, two_sided=True)
    return Paired(
        difference=middle,
        low=max(-1.0, middle - half),
        high=min(1.0, middle + half),
        p=p,
        n=n,
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
        method=method,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the same clustered samples: the mean of the first minus the mean of the second, and two tests."""

    difference: float
    low: float
    """Of the 95% interval (Student's, of the clusters' sums)."""
    high: float
    p: float
    """One-sided: probability of a sum at least as large if the signs of whole clusters were random."""
    p_margin: float
    """One-sided: probability of such a result if the first run were worse by the margin."""
    n: int
    clusters: int
    better: int
    """Samples on which the first run scores more."""
    worse: int
    design_effect: float
    """Variance of the mean over that of as many independent samples."""
    method: Method


def compare(
    a: Sequence[float | None],
    b: Sequence[float | None],
    clusters: Sequence[str],
    *,
    margin: float = 0.05,
    correlation: float = 0.0,
) -> Comparison:
    """Compare two runs: `a[i]` and `b[i]` in 0..1 score the same sample of `clusters[i]`; None is a failure (0).

    Better at all is tested by a sign-flip permutation in which all samples of a cluster flip together (Fisher, The
    Design of Experiments, 1935, section 21, of the clusters' sums), which is exact whatever the correlation. Not worse
    by the margin is Tango's score test (Statistics in Medicine 17, 1998), whose variance is the least that the
    hypothesis allows: eighty samples on which both are right do not show that there is no difference of 5 points,
    which a permutation of shifted differences would say. Its counts are divided by the design effect, that of the
    samples or, where it is larger, the one that `correlation` gives.

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    if not len(a) == len(b) == len(clusters) or not len(a):
        raise ValueError("a comparison needs scores of both runs, and a cluster, for each sample")
    differences = np.array([(x or 0.0) - (y or 0.0) for x, y in zip(a, b, strict=True)])
    _, which = np.unique(np.array(clusters, dtype=object), return_inverse=True)
    n, count = len(differences), int(which.max()) + 1
    sizes: Floats = np.bincount(which, minlength=count).astype(np.float64)
    sums: Floats = np.bincount(which, weights=differences, minlength=count).astype(np.float64)
    middle = float(differences.sum()) / n
    spread = _spread(sums, sizes, middle)
    alone = float(np.square(differences - middle).sum())
    observed = spread / alone if alone > 1e-12 and math.isfinite(spread) else 1.0
    effect = max(design_effect(sizes, correlation), observed)
    half = student(0.975, count) * math.sqrt(spread) / n
    p, method = sign_flip(sums)
    return Comparison(
        difference=middle,
        low=max(-1.0, middle - half),
        high=min(1.0, middle + half),
        p=p,
        p_margin=score_test(differences, margin, effect=effect, clusters=count),
        n=n,
        clusters=count,
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        design_effect=effect,
        method=method,
    )


def design_effect(sizes: Floats, correlation: float) -> float:
    """Return the design effect of clusters of some sizes, shape (clusters,), within which samples correlate (Kish)."""
    return float(1 + (np.square(sizes).sum() / sizes.sum() - 1) * correlation)


def student(share: float, clusters: int) -> float:
    """Return a quantile of Student's distribution for a mean of clusters; infinite for a single one."""
    from scipy.special import stdtrit

    return float(stdtrit(clusters - 1, share)) if clusters > 1 else math.inf


def sign_flip(values: Floats, draws: int = DRAWS, *, two_sided: bool = False) -> tuple[float, Method]:
    """Return p of the sum of values (of samples, or of clusters), shape (n,), under random signs, and how it was found.

    Fisher, The Design of Experiments, 1935, section 21. Exact where all values that are not 0 have one size (a binomial
    test; of right and wrong the exact McNemar test) or are `_EXACT` at most; otherwise of `draws` random patterns, the
    observed one counted among them (Phipson and Smyth, 2010, arXiv 1603.05766), so that it is never 0. One-sided it is
    the probability of a sum at least as large, two-sided of one at least as far from 0.

    `scipy.stats.permutation_test` gives the same numbers, but draws anew at each call: 60 ms for 108 values and 440 ms
    for 756, where a matrix that is kept takes 0.1 and 1 ms. `benchmarks.promotion` makes thousands of calls.
    """
    from scipy.stats import binomtest

    values = values[np.abs(values) > 1e-12]
    n = len(values)
    if not n:
        return 1.0, "exact"
    sizes = np.abs(values) / np.abs(values).max()
    if sizes.min() >= 1 - 1e-9:
        side = "two-sided" if two_sided else "greater"
        return float(binomtest(int((values > 0).sum()), n, alternative=side).pvalue), "exact"
    # One order and one direction: what is drawn depends neither on the samples' order nor on which run is first.
    sizes, observed = np.sort(sizes), float((np.sign(values) * sizes).sum())
    exact = n <= _EXACT
    signs, near = (_patterns(n), 1e-9) if exact else (_signs(n, draws), 1e-4)
    sums = signs @ sizes.astype(signs.dtype)
    reached = int((np.abs(sums) >= abs(observed) - near if two_sided else sums >= observed - near).sum())
    return (reached / 2**n, "exact") if exact else ((1 + reached) / (1 + draws), "monte carlo")


def score_test(differences: Floats, margin: float, *, effect: float, clusters: int) -> float:
    """Return the one-sided p of "worse by `margin`" (Tango, 1998), of differences in -1..1, shape (n,).

    A difference of one half counts as half a win: the variance is then wider than needed, never narrower.
    """
    from scipy.special import stdtr

    if clusters < 2:
        return 1.0
    n = len(differences) / effect
    won = float(np.clip(differences, 0, None).sum()) / effect
    lost = float(np.clip(-differences, 0, None).sum()) / effect
    variance = n * score_variance(won / n, lost / n, margin)
    if variance <= 0:
        return 1.0
    return float(stdtr(clusters - 1, -(won - lost + n * margin) / math.sqrt(variance)))


def score_variance(won: float, lost: float, margin: float) -> float:
    """Return the variance of a sample's difference in Tango's test; `won` and `lost` are shares of the samples."""
    b = -won - lost - (2 - won + lost) * margin
    # The probability of a loss if the hypothesis holds.
    least = (math.sqrt(max(0.0, b * b - 8 * lost * margin * (1 + margin))) - b) / 4
    return 2 * least - margin * (1 + margin)


def _spread(sums: Floats, sizes: Floats, middle: float) -> float:
    """Variance of the sum of all differences, of the clusters' sums about their expectations."""
    count = len(sums)
    if count < 2:
        return math.inf
    return float(np.square(sums - sizes * middle).sum()) * count / (count - 1)


@lru_cache(maxsize=2)
def _patterns(n: int) -> Floats:
    return np.asarray(1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1), np.float64)


@lru_cache(maxsize=2)
def _signs(n: int, draws: int) -> NDArray[np.float32]:
    return np.random.default_rng(n).integers(0, 2, (draws, n), dtype=np.int8).astype(np.float32) * 2 - 1
