"""Trials of a reader: whole readings of documents whose answers are known, scored by document."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from memagent.config import ReadingConfig
from memagent.conversations import Generate, ListStream, ReadingRequest, ReadingSpec
from memagent.nano.texts import load_texts
from memagent.prompts import Prompts, load_template
from memagent.reading import Reading
from memagent.segmenting import segments
from memagent.tasks.contracts import (
    CATEGORIES,
    DATE,
    QUESTIONS,
    Category,
    Contract,
    load_contracts,
    remove_answer,
    split,
)
from memagent.tasks.needles import KINDS, Kind, make_needles, plant
from memagent.tokens import Tokenizer, load_tokenizer


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

    def row(self) -> dict[str, Any]:
        """Return what there is to say about it as JSON values."""
        return {
            "group": self.trial.group,
            "right": self.right,
            "question": self.trial.question,
            "wanted": self.trial.answer,
            "answer": self.answer,
            "memory": self.memory,
            "segments": self.segments,
        }


def needle_trials(
    rng: random.Random,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    kind: Kind,
    length: int,
    n: int,
    size: int,
    wordings: Sequence[str] = (),
) -> list[Trial]:
    """Make `n` documents of `length` segments of `size` tokens; one in six holds no answer.

    Questions are worded as `wordings` has them, or in one of the usual ways.
    """
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
        question = rng.choice(wordings).format(key=needles[0].key) if wordings else needles[0].question
        trials.append(Trial(text, question, answer, group, _equal))
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


def trial(
    model: Path,
    texts: Sequence[Path],
    contracts: Path | None,
    lengths: Sequence[int],
    n: int,
    seed: int,
    threads: int = 2,
    out: Path | None = None,
) -> Iterator[str]:
    """Try a model folder and yield a line for each group: right, read, share.

    Needles of every kind are planted in `texts`, `n` documents for each of `lengths`; of `contracts` the
    held-out ones are read. Each reading goes to `out` as a JSON line.
    """
    import torch

    from memagent.nano.decoding import GreedyEngine

    torch.set_num_threads(threads)
    tokenizer = load_tokenizer(str(model))
    config = ReadingConfig(**json.loads((model / "reading.json").read_text(encoding="utf-8")))
    prompts = Prompts(load_template(config.template), tokenizer, config.layout, gate=config.gate)
    corpus = load_texts(texts)
    groups = [
        needle_trials(
            random.Random(f"{seed} {kind} {length}"),
            corpus,
            tokenizer,
            kind,
            length,
            n,
            config.segment_tokens,
        )
        for length in lengths
        for kind in KINDS
    ]
    if contracts:
        kept = split(load_contracts(contracts))[1]
        groups += [contract_trials(kept, category) for category in CATEGORIES]
        groups.append(contract_trials(kept, "Governing Law", removed=True))
    engine = GreedyEngine(model)

    async def read(trials: list[Trial]) -> list[Result]:
        await engine.start()
        return await run_trials(trials, ReadingSpec(prompts, config), engine.generate)

    for group in groups:
        results = asyncio.run(read(group))
        if out:
            with out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(result.row()) + "\n" for result in results)
        yield from summary(results)


def summary(results: Sequence[Result]) -> list[str]:
    """Return a line for each group of results: name, right of how many, share."""
    lines = []
    for name in dict.fromkeys(result.trial.group for result in results):
        right = [result.right for result in results if result.trial.group == name]
        lines.append(f"{name:28} {sum(right):4} of {len(right):4}  {sum(right) / len(right):.3f}")
    return lines


async def run_trials(
    trials: Sequence[Trial], scheme: ReadingSpec, generate: Generate, inflight: int = 64
) -> list[Result]:
    """Read every trial with the product's own loop, `inflight` at once."""
    gate = asyncio.Semaphore(inflight)

    async def one(trial: Trial) -> Result:
        async with gate:
            config = scheme.config
            cut = list(segments("", trial.text, scheme.prompts.tokenizer, config.segment_tokens, config.boundary))
            memories = [""]
            request = ReadingRequest("trial", trial.question, ListStream(cut))
            reading = Reading(request, scheme, generate, lambda turn: memories.append(turn.memory))
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


def _equal(given: str, wanted: str) -> bool:
    return _plain(given) == _plain(wanted)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]+", " ", text.lower()).split())
