"""Training data: endless turns, played by the teacher over texts with known facts."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from examples.nano.batching import Example, Tree, grow
from examples.nano.contract_places import Fact, NeedlePlace
from examples.nano.tokenizer import CONTROL
from memagent.evaluation.needles import KINDS, Kind, Needle, ask, make_needles, plant
from memagent.reading.prompts import Prompts
from memagent.reading.segmenting import segments
from memagent.records import Segment

BRANCHES = 6
_ASKED = 24
"""The longest question and answer of a recall row."""
_WORD = re.compile(r"\b[a-z]{3,11}\b")


@dataclass(frozen=True, slots=True)
class Turns:
    """How turns are written: the prompts of the policy that is taught, and its limits."""

    prompts: Prompts
    memory_tokens: int = 64
    answer_tokens: int = 48

    def update(
        self, fact: Fact, segment: Segment, noted: NeedlePlace | None, topic: str, longest: int = 128
    ) -> Example | None:
        """Return the update turn that the teacher plays.

        None if its note is too long for the memory, or the turn without its segment, than `longest`.
        """
        encode = self.prompts.tokenizer.encode
        memory = encode(noted.note) if noted else self.prompts.no_memory
        taken = fact.update(segment, noted)
        response = encode(taken.note) if taken else self.prompts.tokenizer.literal(self.prompts.template.same)
        if len(response) > self.memory_tokens - 1 or len(memory) > self.memory_tokens:
            return None
        prompt = self.prompts.update(encode(fact.question), memory, segment.token_ids)
        if len(prompt) - len(segment.token_ids) + len(response) > longest:
            return None
        value = len(response) - len(encode(taken.value)) if taken else 0
        kind = f"{topic}/{'note' if taken else 'same'}"
        return Example(prompt, [*response, self.prompts.stop_ids[0]], kind, value)

    def answer(self, fact: Fact, noted: NeedlePlace | None, topic: str) -> Example | None:
        """Return the answer turn that the teacher plays; None if the answer is too long."""
        encode = self.prompts.tokenizer.encode
        memory = encode(noted.note) if noted else self.prompts.no_memory
        value = fact.answer(noted)
        response = encode(value or self.prompts.template.not_found)
        if len(response) > self.answer_tokens - 1 or len(memory) > self.memory_tokens:
            return None
        prompt = self.prompts.answer(encode(fact.question), memory)
        return Example(prompt, [*response, self.prompts.stop_ids[0]], f"{topic}/{'answer' if value else 'none'}")

    def tree(self, examples: list[Example], segment: Segment) -> Tree:
        """Return the turns on one segment as a tree."""
        return grow(examples, self.prompts.update([], [], segment.token_ids))


class NeedleData:
    """Needles in real text: several keys in a segment, keys that share a word, nothing to find."""

    def __init__(self, turns: Turns, texts: Sequence[str], seed: int) -> None:
        self._turns = turns
        self._texts = texts
        self._rng = random.Random(seed)
        sample = " ".join(text[:2000] for text in self._rng.sample(list(texts), min(2000, len(texts))))
        self._words = sorted(set(_WORD.findall(sample)))

    @property
    def rng(self) -> random.Random:
        """The source of all choices; its state is part of a checkpoint."""
        return self._rng

    def tree(self, kinds: Sequence[Kind], segment_tokens: int, longest: int = 128) -> Tree:
        """Return one segment and `BRANCHES` update turns on it."""
        rng = self._rng
        while True:
            kind = rng.choice(list(kinds))
            most = 9 if segment_tokens > 128 else 5
            needles = make_needles(rng, kind, rng.randint(2, most), words=self._words if rng.random() < 0.7 else ())
            planted = needles[: rng.randint(1, len(needles) - 1)]
            text, spans = self._planted(planted, kind, segment_tokens)
            facts = [_fact(n, spans[i] if i < len(planted) else None) for i, n in enumerate(needles)]
            cut = list(segments("", text, self._turns.prompts.tokenizer, segment_tokens))
            segment = rng.choice(cut)
            if len(segment.token_ids) > segment_tokens:
                continue
            examples = self._branches(list(zip(needles, facts, strict=True)), segment, kind, longest)
            if len(examples) == BRANCHES:
                return self._turns.tree(examples, segment)

    def answers(self, kinds: Sequence[Kind], count: int) -> list[Tree]:
        """Return answer turns, each a tree without a common prefix."""
        rng = self._rng
        examples: list[Example] = []
        while len(examples) < count:
            kind = rng.choice(list(kinds))
            pair = make_needles(rng, kind, 2, words=self._words if rng.random() < 0.7 else (), share=0.5)
            facts = [_fact(n, None) for n in pair]
            draw = rng.random()
            noted = facts[0].places[0] if draw < 0.75 else facts[1].places[0] if draw < 0.9 else None
            if example := self._turns.answer(facts[0], noted, kind):
                examples.append(example)
        return [Tree([], [example]) for example in examples]

    def _planted(self, needles: list[Needle], kind: Kind, size: int) -> tuple[str, list[tuple[int, int]]]:
        rng = self._rng
        source = rng.choice(self._texts)
        room = int(size * 3.6 * rng.choice((0.3, 0.9, 1.4, 2.0)))
        start = rng.randrange(max(1, len(source) - room))
        text = source[start : start + room]
        sentences = [n.sentence for n in needles]
        if rng.random() < 0.15:  # another kind of needle, of a key nobody asks for
            other = rng.choice([k for k in KINDS if k != kind])
            sentences.append(make_needles(rng, other, 1)[0].sentence)
        if rng.random() < 0.1:  # the key alone, without a value
            text, _ = plant(text, [f"Nobody knows about {rng.choice(needles).key}."], rng)
        text, spans = plant(text, sentences, rng)
        return text, spans

    def _branches(self, known: list[tuple[Needle, Fact]], segment: Segment, kind: Kind, longest: int) -> list[Example]:
        rng = self._rng
        local = [pair for pair in known if pair[1].update(segment, None)]
        away = [pair for pair in known if not pair[1].update(segment, None)]
        examples: list[Example] = []
        for _ in range(BRANCHES):
            asked, fact = rng.choice(local if local and (rng.random() < 0.65 or not away) else away)
            draw = rng.random()
            noted: NeedlePlace | None = None
            if draw < 0.12:
                noted = fact.places[0]
            elif draw < 0.24:
                noted = rng.choice([other for _, other in known if other.places != fact.places]).places[0]
            fact = Fact(ask(rng, kind, asked.key), fact.places)
            if example := self._turns.update(fact, segment, noted, topic=kind, longest=longest):
                examples.append(example)
        return examples


def _fact(asked: Needle, span: tuple[int, int] | None) -> Fact:
    """Choose where a needle stands; None: nowhere in the text, though the memory may have its note."""
    start = span[0] + asked.sentence.index(asked.note) if span else -1
    end = start + len(asked.note) if span else -1
    # With the space before it, a note has the same tokens as the text.
    return Fact(asked.question, (NeedlePlace(start, end, f" {asked.note}", f" {asked.value}"),))


class CopyData:
    """Runs of tokens that occur twice: every token of the second run is an example of copying."""

    def __init__(self, prompts: Prompts, texts: Sequence[str], seed: int) -> None:
        self._prompts = prompts
        self._texts = texts
        self.rng = random.Random(seed)

    def rows(self, count: int, length: int) -> list[Tree]:
        """Return `count` runs of 8 to `length` tokens, random or natural, each to be repeated."""
        rng, trees = self.rng, []
        low, high = len(CONTROL), self._prompts.tokenizer.vocab_size
        for _ in range(count):
            size = rng.randint(8, length)
            if rng.random() < 0.6:
                run = [rng.randrange(low, high) for _ in range(size)]
            else:
                source = rng.choice(self._texts)
                start = rng.randrange(max(1, len(source) - 6 * size))
                run = self._prompts.tokenizer.encode(source[start : start + 6 * size])[:size]
            # The second run begins anywhere in the first, so that what stood before is what matters.
            begin = rng.randrange(max(1, len(run) // 2))
            again = run[begin:]
            trees.append(Tree([], [Example(run + again[:2], again[2:], "copy")]))
        return trees


class RecallData:
    """Pairs of a key and a value with the same words between them, and one key asked again.

    Its values cannot be told apart by the tokens just before them, only by the key further back: where
    sentences of one wording stand side by side, this is what a reader needs beyond copying.
    """

    def __init__(self, prompts: Prompts, texts: Sequence[str], seed: int) -> None:
        self._prompts = prompts
        self._texts = texts
        self.rng = random.Random(seed)

    def rows(self, count: int, length: int) -> list[Tree]:
        """Return `count` rows of at most `length` tokens."""
        return [Tree([], [self._row(length)]) for _ in range(count)]

    def _row(self, length: int) -> Example:
        rng = self.rng
        between = self._run(rng.randint(0, 6))
        pairs: list[tuple[list[int], list[int]]] = []
        ids: list[int] = []
        while True:
            key, value = self._run(rng.randint(1, 4)), self._run(rng.randint(1, 5))
            if pairs and rng.random() < 0.3:  # the end of the key before, so that its start decides
                key = [*key, *pairs[-1][0][-1:]]
            more = [*self._run(rng.randint(0, 10)), *key, *between, *value]
            if len(ids) + len(more) + _ASKED > length:
                break
            pairs.append((key, value))
            ids += more
        key, value = rng.choice(pairs)
        return Example([*ids, *self._run(rng.randint(1, 3)), *key, *between], value, "recall")

    def _run(self, size: int) -> list[int]:
        rng = self.rng
        if rng.random() < 0.5:
            return [rng.randrange(len(CONTROL), self._prompts.tokenizer.vocab_size) for _ in range(size)]
        source = rng.choice(self._texts)
        start = rng.randrange(max(1, len(source) - 8 * size))
        return self._prompts.tokenizer.encode(source[start : start + 8 * size + 8])[:size]
