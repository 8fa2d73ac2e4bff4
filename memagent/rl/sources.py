"""Training datasets: generated needles, contracts with gold answers, and harvested rows."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.contracts import (
    CATEGORIES,
    QUESTIONS,
    Category,
    Contract,
    held_out,
    load_contracts,
    remove_answer,
    split,
)
from memagent.evaluation.contracts import REWORDED as REWORDINGS
from memagent.evaluation.controls import control
from memagent.evaluation.metrics import JUDGEMENTS, normalise
from memagent.evaluation.needles import KINDS, REWORDED, Kind, make_needles, plant
from memagent.evaluation.ruler import DraftRequest, find_kind, make_samples
from memagent.evaluation.texts import Sample
from memagent.quality.curation import Qa
from memagent.reading.evidence import says
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer
from memagent.records import Segment, text_hash
from memagent.rl.dataset import Cut, DatasetRequest, DatasetSplits, LoggedReading, Task, make_task, nothing, window

_DRAWS_A_ROW = 10
"""Draws for each distractor: some texts offer few segments that do not answer the question."""
_FACT_CHARS = 400
_HELD = 64
"""Documents whose segments are cached."""


@dataclass(frozen=True)
class RowDataset:
    """Questions on documents: the row's own documents, or its evidence among segments of other documents.

    Each epoch shuffles all rows.
    """

    cut: Cut
    rows: Sequence[Qa]
    text: Callable[[str], str]
    """Returns the text of a content hash."""
    seed: int
    alone: bool = False
    """Read a row's documents whole, and nothing beside them; of longer ones as many segments as a task may have."""
    readings: Mapping[str, LoggedReading] = field(default_factory=dict)
    """Readings that the teacher follows, by reading_id; of no more changes than a task may have segments."""
    _asked: dict[tuple[str, str], list[Qa]] = field(default_factory=lambda: defaultdict(list))
    """Rows by normalised question and content hash."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise UsageError("there are no rows to learn from: memagent harvest CORPUS")
        for row in self.rows:
            for name in row.stream:
                self._asked[normalise(row.question), name].append(row)

    def task(self, number: int) -> Task:
        """Return task `number`.

        Raises:
            UsageError: no row is usable: their texts are too long, and none has evidence or its answer verbatim.
        """
        epoch, place = divmod(number, len(self.rows))
        order = _shuffled(len(self.rows), f"{self.seed} epoch {epoch}")
        rng = random.Random(f"{self.seed} rows {number}")
        for index in (*order[place:], *order[:place]):
            row = self.rows[index]
            reading = self.readings.get(row.reading_id)
            if reading and (task := self._as_read(row, reading, f"{_name(row)}-{epoch}", rng)):
                return task
            own = self._own(row)
            wanted = self._wanted(row, own)
            if wanted is not None:
                break
        else:
            raise UsageError(
                f"none of {len(self.rows)} rows can be trained on: their answers are not found in the texts, which are "
                f"longer than {self.cut.most} segments (rollout.segments)"
            )
        # Where the answer is in a short text is not always known: it is read whole then.
        least = self.cut.most if self.alone or (any(row.answers) and not wanted) else 1
        chosen = [own[i] for i in window(len(own), wanted, self.cut.most, rng, least=least)]
        sample = Sample(
            f"{_name(row)}-{epoch}",
            row.source,
            0,
            pieces=nothing,
            question=row.question,
            answers=row.answers,
            match="exact",  # a part of an answer, or an answer among others, is not the answer
            facts=tuple(fact for segment in chosen for fact in _harvested_facts(segment, row)),
        )
        return Task(sample, tuple(chosen if self.alone else self._among(chosen, row, rng)))

    def _as_read(self, row: Qa, reading: LoggedReading, name: str, rng: random.Random) -> Task | None:
        """Return a task of the segments that changed the memory of a reading, and of some others that it read.

        None if one of them has more tokens than this reader's segments.
        """
        others = [i for i in range(len(reading.bounds)) if i not in reading.changes]
        room = min(len(others), self.cut.most - len(reading.changes))
        chosen = sorted([*reading.changes, *rng.sample(others, rng.randint(min(room, not reading.changes), room))])
        text, memory, memories, made = self.text(reading.content_hash), "", [], []
        for i in chosen:
            start, end = reading.bounds[i]
            ids = self.cut.tokenizer.encode(text[start:end])
            if len(ids) > self.cut.reading.segment_tokens:
                return None
            made.append(Segment(reading.content_hash, i, start, end, text[start:end], ids))
            memory = reading.changes.get(i, memory)
            memories.append(memory)
        facts = tuple(fact for segment in made for fact in _harvested_facts(segment, row))
        sample = Sample(name, row.source, 0, nothing, row.question, row.answers, match="exact", facts=facts)
        return Task(sample, tuple(made), tuple(memories))

    def left_out(self, count: int) -> tuple[int, int]:
        """Return how many of the first rows cannot be used (`task`), and of how many, at most `count`."""
        first = self.rows[:count]
        unusable = [row.reading_id not in self.readings and self._wanted(row, self._own(row)) is None for row in first]
        return sum(unusable), len(unusable)

    def rivals(self, task: Task) -> list[Qa]:
        """Return the rows that ask the same of another document in a task, and have other answers."""
        question, gold = normalise(task.question), frozenset(map(normalise, task.gold))
        own = next(row for row in self.rows if task.sample_id.startswith(_name(row)))
        names = {segment.content_hash for segment in task.segments}.difference(own.stream)
        asked = [row for name in sorted(names) for row in self._asked.get((question, name), ())]
        return [row for row in asked if frozenset(map(normalise, row.answers)) != gold]

    def _wanted(self, row: Qa, own: Sequence[Segment]) -> list[int] | None:
        """Return which of a text's segments hold the answer; None if that is unknown and the text is too long.

        Of several marked segments, those with the answer's own words. Segment indices are of the
        segmentation of their harvest: the answer's own words count more.
        """
        if not any(row.answers):
            return []
        marked = [i for i, segment in enumerate(own) if is_marked(segment, row)]
        if JUDGEMENTS.issuperset(map(normalise, row.answers)):  # "there is no appeal" has the word, not the verdict
            return marked if marked or len(own) <= self.cut.most else None
        holding = [i for i, segment in enumerate(own) if says(segment.text, row.answers)]
        if not holding:  # a cut may go through the answer
            pairs = enumerate(pairwise(segment.text for segment in own))
            holding = sorted(
                {j for i, (one, next_one) in pairs if says(one + next_one, row.answers) for j in (i, i + 1)}
            )
        wanted = [i for i in marked if i in holding] or holding or marked
        return wanted if wanted or len(own) <= self.cut.most else None

    def _among(self, chosen: list[Segment], row: Qa, rng: random.Random) -> list[Segment]:
        """Add distractors around a short text, up to the training length; the text keeps its order."""
        size = rng.randint(len(chosen), max(len(chosen), self.cut.most))
        others = [name for other in self.rows for name in other.stream if name not in row.stream]
        result = list(chosen)
        for _ in range(_DRAWS_A_ROW * (size - len(chosen)) if others else 0):
            if len(result) == size:
                break
            segment = rng.choice(self._of(rng.choice(others)))
            if not self._is_rival(segment, row):
                result.insert(rng.choice((0, len(result))), segment)
        return result

    def _is_rival(self, segment: Segment, row: Qa) -> bool:
        """Whether a segment of another text may answer the same question in another way."""
        return any(
            is_marked(segment, other) or says(segment.text, other.answers) or not (other.spans or other.evidence)
            for other in self._asked.get((normalise(row.question), segment.content_hash), ())
            if any(other.answers)
        )

    def _own(self, row: Qa) -> list[Segment]:
        return [segment for name in row.stream for segment in self._of(name)]

    @cached_property
    def _of(self) -> Callable[[str], list[Segment]]:
        """Return the segments of a text by its content hash; some are kept."""
        return lru_cache(_HELD)(lambda name: [replace(one, content_hash=name) for one in self.cut(self.text(name))])


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: str) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def _name(row: Qa) -> str:
    return f"qa-{row.qa_id[:12]}"


def _harvested_facts(segment: Segment, row: Qa) -> Iterator[str]:
    """Yield what a segment says of a row's answer, by the row's spans."""
    for name, start, end in row.spans:
        said = segment.text[max(0, start - segment.char_start) : max(0, end - segment.char_start)]
        if name == segment.content_hash and said:
            yield said[:_FACT_CHARS]


def is_marked(segment: Segment, row: Qa) -> bool:
    """Whether a row's evidence is in a segment."""
    if row.spans:
        return any(
            name == segment.content_hash and start < segment.char_end and end > segment.char_start
            for name, start, end in row.spans
        )
    return (segment.content_hash, segment.index) in row.evidence


def fit_rows(rows: Sequence[Qa], *, taught: bool = False) -> list[Qa]:
    """Return the rows that a policy can learn from: those that it does not always answer right, nor always wrong.

    The teacher's are right whatever the policy says: `taught` keeps all.

    Raises:
        UsageError: there is no row, none is left, or none has an answer to find: a policy would learn to say one thing.
    """
    if not rows:
        raise UsageError("there are no rows to train on: memagent harvest CORPUS, or give --dataset FILE")
    kept = [row for row in rows if taught or row.pass_rate is None or 0 < row.pass_rate < 1]
    if not kept:
        raise UsageError(
            f"of {len(rows)} rows none can be trained on: the reader answers all of them always right or always wrong"
        )
    if len({frozenset(row.answers) for row in kept}) < 2 and len(kept) > 1:
        raise UsageError(
            f"all {len(kept)} rows have the same answer: a policy would learn to say nothing else. Harvest more, "
            "or add a dataset: --data needles"
        )
    return kept


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
                sample = self._own(rng) if rng.random() < _OWN else self._ruler(rng)
                cut = self.cut(sample.text())
            except UsageError:  # the kind needs a longer text than was drawn
                continue
            if len(cut) <= self.cut.most and self._fits(sample):
                return make_task(sample, f"needles-{self.seed}-{number}", cut, most=self.cut.most, rng=rng)
        raise UsageError(
            f"{self.cut.most} segments of {self.cut.reading.segment_tokens} tokens are too few for needles: raise "
            "rollout.segments"
        )

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
        NeedleDataset(request.cut, train, request.seed), NeedleDataset(request.cut, validation, request.validation_seed)
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
    """Make a document of `length` segments of `size` tokens, of `texts`, with needles, one of which is asked for.

    One in six has nothing to find: its answer is empty. `wordings` are of the question, with ``{key}``; else it has one
    of the usual ones.
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
