"""HotpotQA, distractor setting (arXiv 1809.09600), each question grown to as many paragraphs as asked for."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.metrics import JUDGEMENTS, normalise
from memagent.evaluation.texts import Documents, Paragraph, Sample
from memagent.questions import FileRow, RowNames, json_rows


class Passages:
    """Paragraphs to grow texts with: JSON lines with title and text, all in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paragraphs: list[Paragraph] = list(
            dict.fromkeys((row.text("title"), row.text("text")) for row in json_rows(path))
        )
        self._lower = [f"{title}\n{text}".lower() for title, text in self.paragraphs]
        self._words = [f" {normalise(text)} " for text in self._lower]

    def draw(self, count: int, titles: set[str], answer: str, rng: random.Random) -> list[Paragraph]:
        """Return `count` paragraphs by chance, none with one of `titles` (lower case) or with the answer.

        The answer is looked for as it is, whatever the case, and as words without punctuation and articles. "yes" and
        "no" are judgements over the question's own paragraphs, no words that a paragraph gives away: all may be drawn.

        Raises:
            UsageError: too few are left.
        """
        drawn: list[Paragraph] = []
        for i in rng.sample(range(len(self.paragraphs)), len(self.paragraphs)):
            if len(drawn) == count:
                break
            if self.paragraphs[i][0].strip().lower() not in titles and not self._gives(i, answer):
                drawn.append(self.paragraphs[i])
        if len(drawn) < count:
            raise UsageError(
                f"{self.path} has {len(drawn)} paragraphs without the titles and the answer ({answer!r}) of a "
                f"question; {count} are needed. Give more passages or fewer documents."
            )
        return drawn

    def _gives(self, i: int, answer: str) -> bool:
        words = normalise(answer)
        if words in JUDGEMENTS:
            return False
        return answer.strip().lower() in self._lower[i] or (bool(words) and f" {words} " in self._words[i])


def read(
    path: Path, rows: Iterable[FileRow], passages: Path | None = None, documents: int | None = None, seed: int = 0
) -> Iterator[Sample]:
    """Yield the questions of a file, each over its own paragraphs among `documents` in all from `passages`.

    Without `documents` over its own alone. The paragraphs are shuffled by seed and question, so that the supporting
    ones stand elsewhere for each; the same seed gives the same text. Facts are the supporting sentences; depth is
    where the first supporting paragraph starts. A supporting sentence whose number is beyond its paragraph (the
    published files have a few) is left out of the facts.
    """
    others = Passages(passages) if passages and documents else None
    names = RowNames()
    for row in rows:
        name = names.add(row, "_id", row.name("_id"))
        own = own_paragraphs(row)
        supporting = supporting_sentences(row, own)
        answer = row.text("answer")
        rng = random.Random(f"{seed} {name}")
        drawn = []
        if documents and documents != len(own):
            if documents < len(own):
                raise row.wrong("context", f"{len(own)} paragraphs, more than the {documents} documents asked for.")
            if others is None:
                raise UsageError(f"{documents} documents need passages. Give a file of JSON lines with title and text.")
            drawn = others.draw(documents - len(own), {title.strip().lower() for title in own}, answer, rng)
        order = [*((title, "".join(sentences)) for title, sentences in own.items()), *drawn]
        rng.shuffle(order)
        text = Documents(tuple(order))
        first = min(i for i, (title, _) in enumerate(order) if title in supporting)
        yield Sample(
            sample_id=f"{name}/{documents}" if documents else name,
            task=path.stem,
            length=0,
            pieces=text,
            question=row.text("question"),
            answers=(answer,),
            match="part",
            facts=tuple(dict.fromkeys(fact for facts in supporting.values() for fact in facts)),
            depth=text.start(first),
            about={"documents": len(order)} | {key: row.text(key) for key in ("type", "level") if key in row.values},
        )


def own_paragraphs(row: FileRow) -> dict[str, list[str]]:
    """Return the sentences of a question's own paragraphs, by title.

    Raises:
        UsageError: they are malformed; names file, place and field.
    """
    own: dict[str, list[str]] = {}
    for i, pair in enumerate(row.list("context")):
        match pair:
            case [str(title), list(sentences)] if all(isinstance(sentence, str) for sentence in sentences):
                if title in own:
                    raise row.wrong(f"context[{i}]", f"{title!r} is the title of another paragraph of this question.")
                own[title] = sentences
            case _:
                raise row.wrong(f"context[{i}]", "a list of a title and a list of sentences is needed.")
    if not own:
        raise row.wrong("context", "an empty list; at least one paragraph is needed.")
    return own


def supporting_sentences(row: FileRow, own: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the sentences that tell the answer, by the title of their paragraph.

    Raises:
        UsageError: they are malformed, or of another setting; names file, place and field.
    """
    sentences_by_title: dict[str, list[str]] = {}
    for i, pair in enumerate(row.list("supporting_facts")):
        field = f"supporting_facts[{i}]"
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int):
            raise row.wrong(field, "a list of a title and the number of a sentence is needed.")
        title, number = pair
        if title not in own:
            raise row.wrong(field, f"{title!r} is no title in 'context'. Use the distractor setting, which has all.")
        facts = sentences_by_title.setdefault(title, [])
        if 0 <= number < len(own[title]) and own[title][number].strip():
            facts.append(own[title][number].strip())
    if not sentences_by_title:
        raise row.wrong("supporting_facts", "an empty list; at least one is needed.")
    return sentences_by_title
