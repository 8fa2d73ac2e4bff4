"""Paired tests of clustered samples: exact where they can be, and right about what correlated questions show."""

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, permutation_test

from memagent.evaluation.stats import compare, design_effect, score_test, sign_flip

scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]))
samples = st.lists(st.tuples(scores, scores, st.sampled_from("abcd")), min_size=1, max_size=30)


def drawn(rng, documents, questions, gain, correlation, discordance=0.2):
    """Differences of a candidate that is better by `gain`: questions of a document share their draw now and then."""

    def draw(shape):
        u, won, lost = rng.random(shape), (discordance + gain) / 2, (discordance - gain) / 2
        return numpy.where(u < won, 1.0, numpy.where(u < won + lost, -1.0, 0.0))

    shared = rng.random((documents, questions)) < correlation**0.5
    differences = numpy.where(shared, draw((documents, 1)), draw((documents, questions)))
    return differences.ravel(), numpy.repeat(numpy.arange(documents), questions)


@given(samples, st.randoms())
def test_the_order_of_samples_and_the_names_of_clusters_do_not_matter(rows, random):
    one = compare(*zip(*rows, strict=True))
    mixed = random.sample(rows, len(rows))
    other = compare([a for a, _, _ in mixed], [b for _, b, _ in mixed], [f"document {c}" for _, _, c in mixed])
    assert (one.p, one.n, one.clusters, one.better) == (other.p, other.n, other.clusters, other.better)
    assert one.p_margin == pytest.approx(other.p_margin) and one.low == pytest.approx(other.low)
    assert -1 <= one.low <= one.difference + 1e-12 and one.difference - 1e-12 <= one.high <= 1


@given(samples)
def test_of_two_runs_one_at_most_is_better(rows):
    a, b, clusters = zip(*rows, strict=True)
    one, other = compare(a, b, clusters), compare(b, a, clusters)
    assert one.p + other.p >= 1 - 1e-3 and one.difference == pytest.approx(-other.difference)


def test_independent_right_and_wrong_answers_are_the_exact_sign_test():
    a, b = [1.0] * 9 + [0.0] * 3 + [1.0] * 20, [0.0] * 9 + [1.0] * 3 + [1.0] * 20
    found = compare(a, b, [str(i) for i in range(32)])
    assert found.p == pytest.approx(binom.sf(8, 12, 0.5)) and found.method == "exact"
    assert (found.better, found.worse, found.clusters) == (9, 3, 32)


def test_questions_of_one_document_flip_together():
    alone = compare([1.0] * 12, [0.0] * 12, [str(i) for i in range(12)])
    together = compare([1.0] * 12, [0.0] * 12, ["a"] * 6 + ["b"] * 6)
    assert alone.p == pytest.approx(2**-12) and together.p == 0.25


def test_random_patterns_agree_with_counting_them():
    sums = numpy.array([3.0, 1.0, -2.0, 4.0, 1.0, 2.0, -1.0, 2.5, 1.0, -0.5, 1.5, 2.0, -1.0, 0.5])
    exact, method = sign_flip(sums)
    assert method == "exact"
    assert sign_flip(numpy.concatenate([sums, [0.0] * 9])) == (exact, "exact")  # a 0 has no sign
    drawn_p, method = sign_flip(numpy.concatenate([sums, [1e-3, 1e-3]]), draws=100_000)
    assert method == "monte carlo" and drawn_p == pytest.approx(exact, abs=0.01)


def by_scipy(values, *, two_sided, resamples):
    def total(signed, axis):
        return abs(signed.sum(axis=axis)) if two_sided else signed.sum(axis=axis)

    kinds = {"permutation_type": "samples", "vectorized": True, "alternative": "greater", "batch": 2**14}
    return float(permutation_test((values,), total, **kinds, n_resamples=resamples, rng=7).pvalue)


@given(st.lists(st.integers(-8, 8).filter(bool), min_size=2, max_size=10), st.booleans())
@settings(max_examples=50, deadline=None)
def test_counted_patterns_are_those_of_scipy(eighths, two_sided):
    values = numpy.array(eighths) / 8
    p, method = sign_flip(values, two_sided=two_sided)
    assert method == "exact" and p == pytest.approx(by_scipy(values, two_sided=two_sided, resamples=math.inf))


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2])
def test_drawn_patterns_are_distributed_as_those_of_scipy(shift, two_sided):
    """Two samples of 40,000 patterns: their p differ by more than five deviations in one case of a million."""
    values = numpy.random.default_rng(11).normal(shift, 0.5, 60)
    p, method = sign_flip(values, draws=40_000, two_sided=two_sided)
    other = by_scipy(values, two_sided=two_sided, resamples=40_000)
    assert method == "monte carlo" and abs(p - other) <= 5 * math.sqrt(2 * other * (1 - other) / 40_000) + 1e-4


def test_that_nothing_differs_shows_little_of_few_samples():
    """A loss of 5 points leaves 73 independent answers alike in one case of forty (0.95 ** 73 = 0.024)."""
    assert score_test(numpy.zeros(60), 0.05, effect=1.0, clusters=60) > 0.03
    assert score_test(numpy.zeros(85), 0.05, effect=1.0, clusters=85) < 0.025
    assert score_test(numpy.zeros(85), 0.05, effect=2.0, clusters=85) > 0.025
    assert score_test(numpy.zeros(400), 0.05, effect=1.0, clusters=1) == 1.0


def test_a_design_effect_is_of_the_cluster_sizes():
    assert design_effect(numpy.array([20.0] * 5), 0.1) == pytest.approx(2.9)
    assert design_effect(numpy.ones(7), 0.9) == 1.0


def of_drawn(rng, documents, questions, gain, correlation):
    differences, which = drawn(rng, documents, questions, gain, correlation)
    ours, theirs = numpy.maximum(differences, 0), numpy.maximum(-differences, 0)
    return compare(ours, theirs, which, margin=0.05, correlation=0.1)


@pytest.mark.parametrize(("documents", "questions", "correlation"), [(25, 20, 0.1), (40, 20, 0.3), (200, 1, 0.0)])
def test_false_alarms_are_as_rare_as_they_are_said_to_be(documents, questions, correlation):
    """400 runs at a level of 5%: more than 35 have a probability below 0.1% if the level holds."""
    rng = numpy.random.default_rng(7)
    better = inside = 0
    for _ in range(400):
        equal, worse = (of_drawn(rng, documents, questions, gain, correlation) for gain in (0.0, -0.05))
        better, inside = better + (equal.p < 0.05), inside + (worse.p_margin < 0.05)
    assert better <= 35 and inside <= 35


def test_an_empty_or_uneven_comparison_is_an_error():
    for a, b, clusters in (([], [], []), ([1.0], [1.0, 0.0], ["a"]), ([1.0], [1.0], [])):
        with pytest.raises(ValueError, match="scores of both runs"):
            compare(a, b, clusters)
