"""Paired tests of samples that come in clusters: the questions on one document rise and fall together.

Taking such questions as independent makes chance look like a gain: with 20 questions a document that correlate by 0.1,
a mean varies three times as much as it would without.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
"""Random sign patterns of a permutation test that is not exact."""
_EXACT = 14
"""Clusters that differ, up to which all sign patterns are counted."""

Method = Literal["exact", "monte carlo"]
Floats = NDArray[np.float64]


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
    draws: int = DRAWS,
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
    return compare_differences(differences, which, margin=margin, correlation=correlation, draws=draws)


def compare_differences(
    differences: Floats, which: NDArray[np.intp], *, margin: float, correlation: float, draws: int = DRAWS
) -> Comparison:
    """Compare by differences, shape (n,), and the index of each one's cluster, shape (n,); see `compare`."""
    n, count = len(differences), int(which.max()) + 1
    sizes: Floats = np.bincount(which, minlength=count).astype(np.float64)
    sums: Floats = np.bincount(which, weights=differences, minlength=count).astype(np.float64)
    middle = float(differences.sum()) / n
    spread = _spread(sums, sizes, middle)
    effect = max(design_effect(sizes, correlation), _observed_effect(differences, middle, spread))
    half = student(0.975, count) * math.sqrt(spread) / n
    p, method = sign_flip(sums, draws)
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


def sign_flip(sums: Floats, draws: int = DRAWS) -> tuple[float, Method]:
    """Return the one-sided p of the sum of clusters' sums, shape (clusters,), under random signs, and how.

    Exact where all sums that are not 0 have one size (a binomial tail) or are `_EXACT` at most; otherwise of `draws`
    random patterns, the observed one counted among them (Phipson and Smyth, 2010, arXiv 1603.05766).
    """
    from scipy.stats import binom

    sums = np.sort(sums[np.abs(sums) > 1e-12])  # one order: the draws do not depend on that of the samples
    n = len(sums)
    if not n:
        return 1.0, "exact"
    sizes = np.abs(sums)
    if sizes.max() - sizes.min() <= 1e-9 * sizes.max():
        return float(binom.sf(int((sums > 0).sum()) - 1, n, 0.5)), "exact"
    observed = sums.sum() - 1e-9
    if n <= _EXACT:
        return float((_patterns(n) @ sums >= observed).mean()), "exact"
    reached = int((_signs(n, draws) @ sums.astype(np.float32) >= np.float32(observed - 1e-4)).sum())
    return (1 + reached) / (1 + draws), "monte carlo"


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
    b = -won - lost - (2 * n - won + lost) * margin
    c = lost * margin * (1 + margin)
    least = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)  # probability of a loss if the hypothesis holds
    variance = n * (2 * least - margin * (1 + margin))
    if variance <= 0:
        return 1.0
    return float(stdtr(clusters - 1, -(won - lost + n * margin) / math.sqrt(variance)))


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return it as plain data."""
    return {name: getattr(comparison, name) for name in Comparison.__dataclass_fields__}


def _spread(sums: Floats, sizes: Floats, middle: float) -> float:
    """Variance of the sum of all differences, of the clusters' sums about their expectations."""
    count = len(sums)
    if count < 2:
        return math.inf
    return float(np.square(sums - sizes * middle).sum()) * count / (count - 1)


def _observed_effect(differences: Floats, middle: float, spread: float) -> float:
    alone = float(np.square(differences - middle).sum())
    return spread / alone if alone > 1e-12 and math.isfinite(spread) else 1.0


@lru_cache(maxsize=2)
def _patterns(n: int) -> Floats:
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    signs: Floats = (1 - 2 * bits).astype(np.float64)
    return signs


@lru_cache(maxsize=4)
def _signs(n: int, draws: int) -> NDArray[np.float32]:
    return np.random.default_rng(n).integers(0, 2, (draws, n), dtype=np.int8).astype(np.float32) * 2 - 1
