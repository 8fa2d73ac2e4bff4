"""What a confidence tells of an answer: how often a right one is surer than a wrong one, by several measures.

    python -m benchmarks.confidence --data FOLDER [--model nano]

FOLDER holds gold.jsonl and contracts/ (CUAD). Contracts that no training has are read with log-probabilities of all
tokens. `answers` holds the lowest mean of all conversations.
"""

import argparse
import asyncio
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.record import Row, arguments, result, write
from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.evaluation.contract_match import right
from memagent.evaluation.contracts import CATEGORIES, QUESTIONS, Category, Contract, load_contracts, split
from memagent.reading.conversations import ReadingSpec
from memagent.reading.engine import mean_probability
from memagent.reading.loop import read
from memagent.records import Turn

LONGEST = 50_000
"""Characters of a contract at most."""
AT_ONCE, RESAMPLES = 64, 2_000
NOTE = """\
Of all pairs of a right and a wrong answer, the share in which the right one is surer; ties count half, 50% is chance.
Intervals are of resampled contracts. The measures were compared on the contracts that they are reported on.
"""


@dataclass(frozen=True)
class Judged:
    """A reading with its answer's verdict."""

    document: str
    right: bool
    turns: tuple[Turn, ...]


def _lowest(turns: Sequence[Turn]) -> float:
    return min((mean_probability(turn.logprobs) or 0.0 for turn in turns), default=1.0)


def _sum(turns: Sequence[Turn]) -> float:
    return math.fsum(value for turn in turns for value in turn.logprobs or ())


MEASURES: dict[str, Callable[[Sequence[Turn]], float]] = {
    "answer, mean of its tokens": lambda turns: _lowest(turns[-1:]),
    "answer, its probability": lambda turns: _sum(turns[-1:]),
    "lowest mean of the conversations that changed the memory": lambda turns: _lowest([t for t in turns if t.changed]),
    "lowest mean of all updates": lambda turns: _lowest(turns[:-1]),
    "lowest mean of all conversations (the column)": _lowest,
    "probability of all that was said": _sum,
}


async def judged(model: str, contracts: Sequence[Contract]) -> list[Judged]:
    """Read contracts for all categories; return the readings."""
    reader = ReaderSpec(load_config(store=tempfile.gettempdir(), engine__model=model))
    spec = replace(ReadingSpec.load(model), logprobs=True)
    engine, slots = reader.make_engine(), asyncio.Semaphore(AT_ONCE)
    await engine.start()

    async def one(contract: Contract, category: Category) -> Judged:
        turns: list[Turn] = []
        async with slots:
            done = await read(contract.text, QUESTIONS[category][0], engine.generate, spec, turns.append)
        return Judged(contract.name, right(category, done.answer, contract.answers[category]), tuple(turns))

    try:
        return await asyncio.gather(*(one(contract, category) for contract in contracts for category in CATEGORIES))
    finally:
        await engine.stop()


def surer(values: Sequence[tuple[float, bool]]) -> float:
    """Return the share of pairs of a right and a wrong answer in which the right one has the higher value."""
    good, bad = [v for v, is_right in values if is_right], [v for v, is_right in values if not is_right]
    wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad)
    return wins / (len(good) * len(bad)) if good and bad else math.nan


def interval(values: dict[str, list[tuple[float, bool]]]) -> tuple[float, float]:
    """Return the 95% interval of `surer` by resampled documents."""
    rng, names = random.Random(0), list(values)
    drawn = ([v for name in rng.choices(names, k=len(names)) for v in values[name]] for _ in range(RESAMPLES))
    shares = sorted(share for share in map(surer, drawn) if not math.isnan(share))
    return round(100 * shares[len(shares) * 25 // 1000], 1), round(100 * shares[len(shares) * 975 // 1000], 1)


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="nano")
    arguments(parser)
    given = parser.parse_args()
    _, held_out = split(load_contracts(given.data))
    readings = asyncio.run(judged(given.model, [c for c in held_out if len(c.text) <= LONGEST]))
    share = 100 * sum(reading.right for reading in readings) / len(readings)
    rows = [Row("right answers", round(share, 1), "%", n=len(readings))]
    for name, measure in MEASURES.items():
        by_document: dict[str, list[tuple[float, bool]]] = {}
        for reading in readings:
            by_document.setdefault(reading.document, []).append((measure(reading.turns), reading.right))
        value = round(100 * surer([v for values in by_document.values() for v in values]), 1)
        rows.append(Row(name, value, "%", interval=interval(by_document), n=len(readings)))
        print(f"{name:58} {value} {rows[-1].interval}", flush=True)
    write(replace(result("confidence", "What a confidence tells of an answer", rows, given), note=NOTE))


if __name__ == "__main__":
    main()
