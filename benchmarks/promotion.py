"""What the promotion check promises, simulated: false promotions, power, groups that got worse.

    python -m benchmarks.promotion [--runs 2000]

Every run draws the answers of two policies and has them decided on as the product does. The questions of a document
correlate: a question takes its document's draw with the probability that gives the correlation, else one of its own.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import Row, arguments, result, write
from memagent.evaluation.stats import mean, paired
from memagent.rl.promotion import PlannedGroup, QuestionGroup, decide, documents_needed, level, power

ALPHA = 0.025
CORRELATION = 0.1
DISCORDANCE = 0.2
CANDIDATES = 10
SEED = 1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Planned:
    """A group of a simulated check."""

    documents: int
    questions: int = 1
    """On each document."""
    gain: float = 0.0
    discordance: float = DISCORDANCE
    correlation: float = CORRELATION
    margin: float = 0.05


def uniform(rng: np.random.Generator, plan: Planned) -> Floats:
    """Draw a number in 0..1 for each question, shape (documents, questions), that correlate within a document."""
    shape = (plan.documents, plan.questions)
    shared = rng.random(shape) < plan.correlation**0.5
    return np.where(shared, rng.random((plan.documents, 1)), rng.random(shape))


def differences(rng: np.random.Generator, plan: Planned) -> Floats:
    """Draw candidate minus incumbent for each question, shape (documents, questions): -1, 0 or 1."""
    draw, won = uniform(rng, plan), (plan.discordance + plan.gain) / 2
    return np.where(draw < won, 1.0, np.where(draw < plan.discordance, -1.0, 0.0))


def group(name: str, drawn: Floats, margin: float = 0.05) -> QuestionGroup:
    """Make a group of differences, shape (documents, questions)."""
    flat = drawn.ravel()
    documents = tuple(f"{name} {i}" for i in np.repeat(np.arange(drawn.shape[0]), drawn.shape[1]))
    return QuestionGroup(name, tuple(np.maximum(flat, 0)), tuple(np.maximum(-flat, 0)), documents, margin=margin)


def promoted(seed: int, plans: Sequence[Planned], alpha: float = level(ALPHA, 1)) -> bool:
    """Simulate a check of one candidate; return whether it is promoted."""
    rng = np.random.default_rng([SEED, seed])
    groups = [group(f"group {i}", differences(rng, plan), plan.margin) for i, plan in enumerate(plans)]
    return decide(groups, alpha, CORRELATION)["promoted"]


def promoted_as_independent(seed: int, plan: Planned) -> bool:
    """Decide as if questions were independent: better with a two-sided p below 5%, as the first version did."""
    drawn = differences(np.random.default_rng([SEED, seed]), plan).ravel()
    test = paired(list(np.maximum(drawn, 0)), list(np.maximum(-drawn, 0)))
    return test["difference"] > 0 and test["p"] < 0.05


def any_promoted(seed: int, plan: Planned, candidates: int, spending: bool = True) -> bool:
    """Compare several equal candidates with one incumbent on the same questions; return whether any is promoted.

    The incumbent's answers are drawn once: where it was unlucky with these questions, all candidates look better.
    """
    rng = np.random.default_rng([SEED, seed])
    right = uniform(rng, plan) < 0.5
    for look in range(1, candidates + 1):
        changed = uniform(rng, plan) < plan.discordance
        drawn = np.where(changed, np.where(right, -1.0, 1.0), 0.0)
        alpha = level(ALPHA, look) if spending else ALPHA
        if decide([group("questions", drawn)], alpha, CORRELATION)["promoted"]:
            return True
    return False


def share(name: str, simulate: Callable[[int], bool], runs: int, column: str, note: str = "") -> Row:
    """Run a simulation many times; return the share of runs in which it is true, with its interval."""
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(simulate, range(runs), chunksize=50))
    score = mean(name, [float(value) for value in results])
    row_interval = (round(100 * score.low, 2), round(100 * score.high, 2))
    print(f"{column}: {name}: {score.value:.2%} {row_interval}", flush=True)
    return Row(name, round(100 * score.value, 2), "%", column, row_interval, n=runs, note=note)


def false_promotions(runs: int) -> list[Row]:
    """Simulate equal policies, and candidates that are better but for one group."""
    column, rows = "false promotions", []
    for documents, questions, correlation in ((108, 20, 0.1), (108, 20, 0.3), (25, 20, 0.1), (756, 1, 0.0)):
        plan = Planned(documents, questions, correlation=correlation)
        name = f"equal: {documents} documents, {questions} questions each, correlation {correlation:g}"
        rows.append(share(name, partial(promoted, plans=[plan]), runs, column))
    plan = Planned(108, 20)
    repeated = partial(any_promoted, plan=plan, candidates=CANDIDATES)
    rows.append(share(f"equal: any of {CANDIDATES} candidates in turn", repeated, runs, column))
    name = f"the same, each at {ALPHA:.1%}"
    rows.append(share(name, partial(repeated, spending=False), runs, column, "what the levels prevent"))
    rows.append(
        share(
            "equal, taken as independent questions",
            partial(promoted_as_independent, plan=plan),
            runs,
            column,
            "what permuting whole documents prevents: the first version's test",
        )
    )
    gained = Planned(1000, gain=0.3, discordance=0.4, correlation=0.0, margin=0.1)
    for loss, documents, questions in ((0.05, 108, 20), (0.15, 100, 5)):
        plans = [gained, Planned(documents, questions, gain=-loss)]
        name = f"1,000 needles gain 30 points, {documents} x {questions} questions lose {100 * loss:g}"
        rows.append(share(name, partial(promoted, plans=plans), runs, column))
    return rows


def powers(runs: int) -> list[Row]:
    """Simulate candidates that are better by 5 points, with the documents that the table says are needed."""
    column, rows, alpha = "promoted at +5 points", [], level(ALPHA, 1)
    for questions in (1, 5, 20):
        documents = documents_needed(questions, alpha=alpha, correlation=CORRELATION, discordance=DISCORDANCE)
        assert documents is not None
        plan = Planned(documents, questions, gain=0.05)
        name = f"{documents} documents, {questions} questions each"
        stated = power([PlannedGroup((questions,) * documents)], alpha=alpha, correlation=CORRELATION)
        rows.append(share(name, partial(promoted, plans=[plan]), runs, column, f"stated: {stated:.0%}"))
    needles = [Planned(100, discordance=0.04, correlation=0.0, margin=0.1)] * 2
    plans = [*needles, Planned(150, 20, gain=0.05)]
    rows.append(
        share("150 documents, 20 questions each, beside equal needles", partial(promoted, plans=plans), runs, column)
    )
    return rows


def main() -> None:
    """Simulate and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    arguments(parser)
    given = parser.parse_args()
    rows = [*false_promotions(given.runs), *powers(given.runs)]
    write(result("promotion", "The promotion check, simulated", rows, given, seed=SEED))


if __name__ == "__main__":
    main()
