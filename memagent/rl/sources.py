"""Training datasets: generated needles, contracts with gold answers, and harvested rows."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from memagent.errors import UsageError
from memagent.records import Segment, text_hash
from memagent.rl.dataset import Cut, DatasetRequest, DatasetSplits, Task, make_task
from memagent.segmenting import segments
from memagent.tasks.contracts import (
    CATEGORIES,
    QUESTIONS,
    Category,
    Contract,
    held_out,
    load_contracts,
    remove_answer,
    split,
)
from memagent.tasks.contracts import REWORDED as REWORDINGS
from memagent.tasks.controls import control
from memagent.tasks.needles import KINDS, REWORDED, Kind, make_needles, plant
from memagent.tasks.ruler import DraftRequest, find_kind, make_samples
from memagent.tasks.sample import Sample
from memagent.tokens import Tokenizer

NEEDLES: dict[str, float] = {
    "niah_single_1": 0.5,
    "niah_single_2": 0.5,
    "niah_single_3": 1.0,
    "niah_multikey_1": 1.0,
    "niah_multikey_2": 2.0,
    "niah_multikey_3": 1.0,
    "niah_multivalue": 1.0,
    "niah_multiquery": 1.0,
}
"""RULER's needle kinds and their weights."""
_SHORTEST = 256
"""Length of a text, in tokens, into which all of these kinds fit."""
_DRAWS = 200
_OWN = 0.5
_REMOVED = 0.15
"""Share of the texts from which the answer is removed."""
_REWORDED = 0.5
"""Share of the questions that are worded as the supervised reader never saw them."""
_VALIDATION = 30
_FULL = 0.8
"""Typical fill of a segment with soft boundaries."""


@dataclass(frozen=True)
class NeedleDataset:
    """Needles in texts: half of RULER's kinds, half in all wordings of the product; some texts lack the answer."""

    cut: Cut
    texts: Sequence[str]
    seed: int

    def task(self, number: int) -> Task:
        """Return task `number`."""
        rng = random.Random(f"{self.seed} needles {number}")
        for _ in range(_DRAWS):
            try:
                sample = self._draw(rng)
                cut = self.cut(sample.text())
            except UsageError:  # the kind needs a longer text than was drawn
                continue
            if len(cut) <= self.cut.most and self._fits(sample):
                return make_task(sample, f"needles-{self.seed}-{number}", cut, most=self.cut.most, rng=rng)
        raise UsageError(
            f"{self.cut.most} segments of {self.cut.reading.segment_tokens} tokens are too few for needles: raise "
            "rollout.segments"
        )

    def _draw(self, rng: random.Random) -> Sample:
        return self._own(rng) if rng.random() < _OWN else self._ruler(rng)

    def _fits(self, sample: Sample) -> bool:
        """Whether memory and answer have room for all that must be noted; otherwise the task cannot be learnt."""
        room = min(self.cut.reading.memory_tokens, self.cut.reading.answer_tokens)
        facts = max((len(self.cut.tokenizer.encode(fact)) for fact in sample.facts), default=0)
        return max(facts, sum(len(self.cut.tokenizer.encode(f" {answer}")) for answer in sample.answers)) < room

    def _ruler(self, rng: random.Random) -> Sample:
        kind = rng.choices(list(NEEDLES), list(NEEDLES.values()))[0]
        size = int(rng.randint(1, self.cut.most) * self.cut.reading.segment_tokens * _FULL)
        size = max(size, _SHORTEST)
        texts = rng.sample(self.texts, min(len(self.texts), 20))
        request = DraftRequest(find_kind(kind), size, self.cut.tokenizer, texts=texts)
        made = make_samples(request, 1, seed=rng.getrandbits(31))
        if rng.random() >= _REMOVED:
            return next(made)
        # RULER always asks for something that is there: trained on that alone, a policy would always answer.
        return replace(next(control(made, "answer-removed", self.seed)), answers=("",))

    def _own(self, rng: random.Random) -> Sample:
        length = rng.randint(1, self.cut.most)
        size = int(self.cut.reading.segment_tokens * _FULL)
        kind = rng.choice(KINDS)
        asked = REWORDED[kind][:-1] if rng.random() < _REWORDED else ()
        return planted_sample(rng, self.texts, self.cut.tokenizer, kind=kind, length=length, size=size, wordings=asked)


class ContractDataset:
    """Contracts of a CUAD folder that are not held out: the segments with the answer, and a few others.

    `validation` uses thirty of them that training does not see.
    """

    def __init__(self, cut: Cut, folder: Path, seed: int, *, validation: bool = False) -> None:
        """Read the folder.

        Raises:
            UsageError: it does not hold what it should.
        """
        known = split(load_contracts(folder))[0]
        apart = held_out((contract.name for contract in known), _VALIDATION)
        chosen = (contract for contract in known if (contract.name in apart) == validation)
        self._contracts = [contract for contract in chosen if _known(contract)]
        if not self._contracts:
            raise UsageError(f"{folder} has too few contracts: of {len(known)} none is left for this part of training.")
        self._cut, self._seed = cut, seed
        self._segments: Callable[[str], list[Segment]] = lru_cache(maxsize=64)(cut)

    def task(self, number: int) -> Task:
        """Return task `number`."""
        rng = random.Random(f"{self._seed} contracts {number}")
        contract = rng.choice(self._contracts)
        category = rng.choice(_known(contract))
        text, answer = contract.text, contract.answers[category]
        facts = _facts(contract, category)
        if facts and rng.random() < _REMOVED:
            text, answer, facts = remove_answer(text, contract.spans[category]), "", ()
        sample = Sample(
            "",
            category,
            0,
            pieces=lambda: iter((text,)),
            question=rng.choice(REWORDINGS[category][:-1] if rng.random() < _REWORDED else QUESTIONS[category]),
            answers=(answer,),
            match="contract",
            facts=facts[:1],
            about={"category": category, "document": contract.name},
        )
        name, cut = f"contracts-{self._seed}-{number}", self._segments(text)
        return make_task(sample, name, cut, most=self._cut.most, rng=rng, scattered=True)


def needles(request: DatasetRequest) -> DatasetSplits:
    """Make the needle datasets: nine tenths of the texts for training, the others for validation."""
    train, validation = halves(request.texts())
    return DatasetSplits(
        NeedleDataset(request.cut, train, request.seed),
        NeedleDataset(request.cut, validation, request.validation_seed),
    )


def contracts(request: DatasetRequest) -> DatasetSplits:
    """Make the datasets of the CUAD folder that is the request's argument.

    Raises:
        UsageError: it is no such folder.
    """
    folder = Path(request.argument)
    return DatasetSplits(
        ContractDataset(request.cut, folder, request.seed),
        ContractDataset(request.cut, folder, request.validation_seed, validation=True),
    )


def halves(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (training, validation) texts, nine to one by their hash."""
    validation = [text for text in texts if int(text_hash(text)[:4], 16) % 10 == 0]
    apart = set(validation)
    return [text for text in texts if text not in apart], validation or list(texts)


def _known(contract: Contract) -> list[Category]:
    """Return the categories that a contract is silent about, or that it is known where it speaks of them.

    The answers of the others may be in none of the segments that are chosen.
    """
    return [name for name in CATEGORIES if not contract.answers[name] or _facts(contract, name)]


def _facts(contract: Contract, category: Category) -> tuple[str, ...]:
    spans = contract.spans[category]
    return tuple(contract.text[start:end] for start, end in spans if contract.text[start:end].strip())


_CHARS_A_TOKEN = 4.5
"""Limit of filler; it is cut to the requested length."""
_NOTHING = 1 / 6
"""Share of the documents without the answer."""


def planted_sample(
    rng: random.Random,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    kind: Kind,
    length: int,
    size: int,
    wordings: Sequence[str] = (),
) -> Sample:
    """Make a document of `length` segments of `size` tokens, with needles, one of which is asked for.

    Args:
        rng: source of all choices.
        texts: what it is filled with.
        tokenizer: what cuts it.
        kind: of the needles.
        length: in segments.
        size: of a segment, in tokens.
        wordings: of the question, with ``{key}``; else one of the usual ones.

    Returns:
        The sample; one in six has nothing to find (its answer is empty).
    """
    text = ""
    while len(text) < length * size * _CHARS_A_TOKEN:
        text += rng.choice(texts)[:20_000] + "\n\n"
    needles = make_needles(rng, kind, 2 + length // 2 + rng.randint(0, 2))
    found = rng.random() >= _NOTHING
    planted = needles if found else needles[1:]
    cut = list(segments("", text, tokenizer, size))
    room = cut[min(length, len(cut)) - 1].char_end - sum(len(needle.sentence) + 1 for needle in planted)
    text, _ = plant(text[: max(0, room)], [needle.sentence for needle in planted], rng)
    answer = needles[0].value if found else ""
    group = f"{kind} {length}" + ("" if found else " none")
    question = rng.choice(wordings).format(key=needles[0].key) if wordings else needles[0].question
    return Sample(
        "",
        group,
        0,
        pieces=lambda: iter((text,)),
        question=question,
        answers=(answer,),
        match="all",
        facts=(answer,) if answer else (),
    )
