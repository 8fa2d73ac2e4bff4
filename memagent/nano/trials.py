"""Trials of a reader: whole readings of documents whose answers are known, scored by document."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import date

from memagent.reading import Generate, Reading, Scheme
from memagent.records import Segment
from memagent.segmenting import segments
from memagent.tasks.contracts import CATEGORIES, DATE, QUESTIONS, Category, Contract, remove_answer
from memagent.tasks.needles import Kind, make_needles, plant
from memagent.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Trial:
    """One document, one question, the right answer (empty: not in the document), and where it counts."""

    text: str
    question: str
    answer: str
    group: str
    same: Callable[[str, str], bool]
    """Whether an answer given means the answer wanted."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a reader made of a trial."""

    trial: Trial
    answer: str
    right: bool
    memory: str
    """The last memory, which tells a wrong note from a wrong answer."""
    segments: int


class _Held:
    """A stream that is held in memory."""

    def __init__(self, parts: list[Segment]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        for part in self._parts[start:stop]:
            yield part


def needle_trials(
    rng: random.Random, texts: Sequence[str], tokenizer: Tokenizer, kind: Kind, length: int, n: int, size: int
) -> list[Trial]:
    """Make `n` documents of `length` segments of `size` tokens; one in six holds no answer."""
    trials: list[Trial] = []
    while len(trials) < n:
        text = ""
        while len(text) < length * size * 4.5:
            text += rng.choice(texts)[:20_000] + "\n\n"
        needles = make_needles(rng, kind, 2 + length // 2 + rng.randint(0, 2))
        found = rng.random() >= 1 / 6
        planted = needles if found else needles[1:]
        # Filler has about four characters a token; cut to the length that is asked for.
        cut = list(segments("", text, tokenizer, size))
        room = cut[min(length, len(cut)) - 1].char_end - sum(len(n.sentence) + 1 for n in planted)
        text, _ = plant(text[: max(0, room)], [n.sentence for n in planted], rng)
        answer = needles[0].value if found else ""
        group = f"{kind} {length}" + ("" if found else " none")
        trials.append(Trial(text, needles[0].question, answer, group, _equal))
    return trials


def contract_trials(contracts: Sequence[Contract], category: Category, *, removed: bool = False) -> list[Trial]:
    """Ask one category of each contract; with `removed`, of those that had the answer, without it."""
    trials = []
    for contract in contracts:
        text, answer = contract.text, contract.answers[category]
        if removed:
            if not contract.spans[category]:
                continue
            text, answer = remove_answer(text, contract.spans[category]), ""
        group = f"{category}{' removed' if removed else '' if answer else ' none'}"
        same = same_date if category == "Agreement Date" else same_text
        trials.append(Trial(text, QUESTIONS[category][0], answer, group, same))
    return trials


async def run_trials(
    trials: Sequence[Trial], scheme: Scheme, generate: Generate, inflight: int = 64
) -> list[Result]:
    """Read every trial with the product's own loop, `inflight` at once."""
    gate = asyncio.Semaphore(inflight)

    async def one(trial: Trial) -> Result:
        async with gate:
            config = scheme.config
            cut = list(segments("", trial.text, scheme.prompts.tokenizer, config.segment_tokens, config.boundary))
            memories = [""]
            reading = Reading(
                "trial", trial.question, _Held(cut), scheme, generate, lambda turn: memories.append(turn.memory)
            )
            outcome = await reading.run()
            right = trial.same(outcome.answer, trial.answer) if trial.answer else not outcome.found
            return Result(trial, outcome.answer, right and outcome.found == bool(trial.answer), memories[-1], len(cut))

    return list(await asyncio.gather(*map(one, trials)))


def same_text(given: str, wanted: str) -> bool:
    """Whether the answer holds what is wanted, or one of its parts ("England, United Kingdom; Wales")."""
    said = f" {_plain(given)} "
    parts = [wanted, *(part.split(",")[0] for part in wanted.split(";"))]
    return any(f" {_plain(part)} " in said for part in parts if _plain(part))


def same_date(given: str, wanted: str) -> bool:
    """Whether both are the same day; `wanted` is in US form (5/8/14)."""
    said, gold = parse_date(given), parse_date(wanted)
    return gold is not None and said == gold if gold else same_text(given, wanted)


def parse_date(text: str) -> date | None:
    """Return the first date in `text`, or None."""
    found = DATE.search(text)
    if not found:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", found.group())]
    names = [word.lower()[:3] for word in re.findall(r"[A-Za-z]{3,}", found.group())]
    month = next((i for i, name in enumerate(_MONTHS, 1) if name in names), None)
    try:
        if month:
            return date(numbers[-1], month, numbers[0])
        year = numbers[2] if numbers[2] > 99 else numbers[2] + (2000 if numbers[2] < 50 else 1900)
        return date(year, numbers[0], numbers[1])
    except (ValueError, IndexError):
        return None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def all_contract_trials(contracts: Sequence[Contract]) -> list[Trial]:
    """Every category of every contract, and the governing law taken out."""
    trials = [trial for category in CATEGORIES for trial in contract_trials(contracts, category)]
    return trials + contract_trials(contracts, "Governing Law", removed=True)


def _equal(given: str, wanted: str) -> bool:
    return _plain(given) == _plain(wanted)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]+", " ", text.lower()).split())
