"""Questions over paragraphs among others (qa_1, qa_2), of data in SQuAD's and HotpotQA's formats."""

import random
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, islice
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.loaders import hotpot, public, recognise
from memagent.evaluation.ruler.kinds import Asked, Draft, DraftRequest, Meter
from memagent.evaluation.texts import Paragraph, numbered
from memagent.questions import FileRow, json_rows

_SENTENCE = re.compile(r"\S.*?(?:[.!?][\"')\]\u201d\u2019]*(?=\s|$)|$)", re.MULTILINE)
_MISSES = 64
"""Paragraphs that may fail to fit before a text counts as full."""


class QaDocuments:
    """A question's own paragraphs, numbered and shuffled among random others."""

    def __init__(self, request: DraftRequest) -> None:
        """Prepare for texts of the length, or of so many documents. Raises UsageError: no paragraphs or questions."""
        self._request, self._kind = request, request.kind
        self._pool = list(dict.fromkeys(request.paragraphs))
        if not self._pool or not request.questions:
            raise UsageError(f"{self._kind.name} needs questions with paragraphs, and other paragraphs around them.")
        self._meter = Meter(request.tokenizer)
        self._cost = cache(lambda i: self._tokens(self._pool[i]))
        self._head = cache(lambda digits: self._meter(f"\n\nDocument {'7' * digits}:"))

    def __call__(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make the sample of question `index`, with the first of the paragraphs that tell the answer at `depth`."""
        questions = self._request.questions
        if index >= len(questions):
            raise UsageError(f"{self._kind.name} has {len(questions)} questions: ask for no more samples.")
        asked = questions[index]
        facts = _facts(asked)
        own = [*asked.paragraphs]
        rng.shuffle(own)
        own.sort(key=lambda paragraph: all(fact not in paragraph[1] for fact in facts))
        others = self._others(asked, own, rng)
        size = len(own) + len(others)
        places = _places(rng, depth, len(own), size)
        order = array("q", others)
        for position, i in sorted((position, i) for i, position in enumerate(places)):
            order.insert(position, -1 - i)
        shown = [paragraph for _, paragraph in sorted(zip(places, own, strict=True))]
        stand = _stand(facts, shown)
        sums = [0, *accumulate(len("".join(self._paragraph(i, own))) for i in order)]
        depth_of = {paragraph: sums[position] / sums[-1] for position, paragraph in zip(places, own, strict=True)}
        return Draft(
            pieces=partial(_written, self._pool, own, order),
            question=asked.question,
            answers=asked.answers,
            match="part",
            facts=tuple(fact for fact, _ in stand),
            depths=tuple(depth_of[paragraph] for _, paragraph in stand),
            about={"documents": size, "hops": self._kind.hops, "repeats": len(set(others)) < len(others)},
        )

    def _others(self, asked: Asked, own: Sequence[Paragraph], rng: random.Random) -> "array[int]":
        """Return which paragraphs of the pool to add, in random order."""
        chosen = array("q")
        foreign = self._foreign(asked, own, rng)
        if (documents := self._request.documents) is not None:
            if documents < len(own):
                raise UsageError(f"{asked.question!r} has {len(own)} paragraphs: ask for at least as many documents.")
            chosen.extend(islice(foreign, documents - len(own)))
            return chosen
        left = self._request.length - sum(self._tokens(paragraph) for paragraph in own)
        left -= sum(self._head(len(str(i + 1))) for i in range(len(own)))
        if left < 0:
            raise self._request.too_short()
        missed = 0
        while missed < _MISSES:
            i = next(foreign)
            cost = self._cost(i) + self._head(len(str(len(own) + len(chosen) + 1)))
            if cost > left:
                missed += 1
            else:
                left -= cost
                chosen.append(i)
        return chosen

    def _foreign(self, asked: Asked, own: Sequence[Paragraph], rng: random.Random) -> Iterator[int]:
        """Yield paragraphs of the pool that are not a question's own nor hold the answer, shuffled, over and over."""
        titles, texts = {title for title, _ in own}, {text for _, text in own}
        answers = [answer.lower() for answer in asked.words]

        def may(paragraph: Paragraph) -> bool:
            lowered = "\n".join(paragraph).lower()
            known = paragraph[0] in titles or paragraph[1] in texts
            return not known and not any(answer in lowered and _stands(answer, lowered) for answer in answers)

        order = array("q", range(len(self._pool)))
        while True:
            rng.shuffle(order)
            passed = 0
            for i in order:
                if may(self._pool[i]):
                    passed += 1
                    yield i
            if not passed:
                raise UsageError(f"no paragraph can stand beside those of {asked.question!r}: give others.")

    def _tokens(self, paragraph: Paragraph) -> int:
        return self._meter("\n" + "\n".join(paragraph))

    def _paragraph(self, i: int, own: Sequence[Paragraph]) -> Paragraph:
        return self._pool[i] if i >= 0 else own[-1 - i]


def _stands(answer: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) is not None


def _facts(asked: Asked) -> tuple[str, ...]:
    if not asked.paragraphs:
        raise UsageError(f"the question {asked.question!r} has no paragraphs: give them.")
    for fact in asked.facts:
        if not any(fact in text for _, text in asked.paragraphs):
            raise UsageError(f"the fact {fact!r} of {asked.question!r} stands in none of its paragraphs.")
    if asked.facts:
        return asked.facts
    answers = asked.words
    sentences = (match.group().rstrip() for _, text in asked.paragraphs for match in _SENTENCE.finditer(text))
    facts = tuple(
        dict.fromkeys(sentence for sentence in sentences if any(_stands(answer, sentence) for answer in answers))
    )
    return facts or tuple(text for _, text in asked.paragraphs)


def _places(rng: random.Random, depth: float, count: int, size: int) -> list[int]:
    """Return where `count` of `size` documents stand: the first at `depth`, the others anywhere else."""
    first = min(size - 1, int(depth * size))
    others = rng.sample(range(size - 1), count - 1)
    return [first, *(other if other < first else other + 1 for other in others)]


def _stand(facts: Sequence[str], shown: Sequence[Paragraph]) -> list[tuple[str, Paragraph]]:
    """Return the facts in the order of the text, each with its paragraph."""
    stands = []
    for fact in facts:
        i = next(i for i, (_, text) in enumerate(shown) if fact in text)
        stands.append((i, shown[i][1].index(fact), fact))
    return [(fact, shown[i]) for i, _, fact in sorted(stands)]


def _written(pool: Sequence[Paragraph], own: Sequence[Paragraph], order: "array[int]") -> Iterator[str]:
    return numbered(pool[i] if i >= 0 else own[-1 - i] for i in order)


QUESTION_KINDS = {"squad": "qa_1", "hotpot": "qa_2"}
"""The kind of task by format of the file."""


def question_kind(path: Path) -> str:
    """Return the kind whose questions a file holds.

    Raises:
        UsageError: none's, or the file cannot be read.
    """
    return _kind(path, next(json_rows(path)))


def load_questions(path: Path) -> tuple[list[Asked], list[Paragraph]]:
    """Read a file's questions that have an answer, and all its paragraphs: each question hides among the others'.

    Raises:
        UsageError: the file is of another format, or malformed: names file, line (or index) and field.
    """
    rows = list(json_rows(path))
    read = _squad if _kind(path, rows[0]) == "qa_1" else _hotpot
    asked: list[Asked] = []
    pool: list[Paragraph] = []
    for paragraphs, questions in read(rows):
        pool += paragraphs
        asked += questions
    return asked, pool


def _kind(path: Path, first: FileRow) -> str:
    name = recognise(first)
    if name not in QUESTION_KINDS:
        raise UsageError(f"{path} is of format {name}: give qa_1 a file of SQuAD's format, qa_2 one of HotpotQA's.")
    return QUESTION_KINDS[name]


def _squad(rows: Iterable[FileRow]) -> Iterator[tuple[list[Paragraph], list[Asked]]]:
    for row in rows:
        for number, article in enumerate(row.rows("data")):
            title = article.text("title") if "title" in article.values else f"Article {number + 1}"
            for paragraph in article.rows("paragraphs"):
                own = (title, paragraph.text("context"))
                yield [own], [question for asked in paragraph.rows("qas") if (question := _asked(asked, own))]


def _asked(asked: FileRow, own: Paragraph) -> Asked | None:
    answers, start = public.gold_answers(asked, own[1])
    if start is None:
        return None
    fact = public.sentence(own[1], start, start + len(answers[0]))
    return Asked(asked.text("question"), answers, (own,), (fact,))


def _hotpot(rows: Iterable[FileRow]) -> Iterator[tuple[list[Paragraph], list[Asked]]]:
    for row in rows:
        paragraphs = hotpot.own_paragraphs(row)
        facts = [fact for facts in hotpot.supporting_sentences(row, paragraphs).values() for fact in facts]
        own = tuple((title, "".join(sentences)) for title, sentences in paragraphs.items())
        yield [*own], [Asked(row.text("question"), (row.text("answer"),), own, tuple(dict.fromkeys(facts)))]
