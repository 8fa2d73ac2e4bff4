"""SQuAD's format (arXiv 1606.05250; also SQuAD 2.0 and XQuAD): data, paragraphs, qas."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.tasks.loaders.jsonl import Names, Row
from memagent.tasks.sample import Sample
from memagent.tasks.texts import Whole

FIELDS = frozenset({"data"})

_BETWEEN = "\n\n"
_END = re.compile(r"[.!?][\"')\]]*\s+")


def read(path: Path, rows: Iterable[Row]) -> Iterator[Sample]:
    """Yield each question over its whole article: the paragraphs, a blank line between two.

    The fact is the sentence (or sentences) with the first answer. A question marked as impossible has blank gold.
    """
    names = Names()
    for row in rows:
        for article in row.rows("data"):
            yield from _article(path.stem, article, names)


def _article(task: str, article: Row, names: Names) -> Iterator[Sample]:
    paragraphs = list(article.rows("paragraphs"))
    contexts = [paragraph.text("context") for paragraph in paragraphs]
    whole = Whole(_BETWEEN.join(contexts))
    about = {"title": article.text("title")} if "title" in article.values else {}
    before = 0
    for paragraph, context in zip(paragraphs, contexts, strict=True):
        for asked in paragraph.rows("qas"):
            answers, at = gold_answers(asked, context)
            yield Sample(
                sample_id=names.add(asked, "id", asked.name("id")),
                task=task,
                length=0,
                pieces=whole,
                question=asked.text("question"),
                answers=answers,
                match="f1",
                facts=() if at is None else (sentence(context, at, at + len(answers[0])),),
                depth=None if at is None else (before + at) / len(whole.text),
                about=dict(about),
            )
        before += len(context) + len(_BETWEEN)


def gold_answers(asked: Row, context: str) -> tuple[tuple[str, ...], int | None]:
    """Return the answers to a question and where the first one stands; a blank one, nowhere, for an impossible one.

    Raises:
        UsageError: there is none, or it does not stand where it is said to; names file, place and field.
    """
    given = list(asked.rows("answers"))
    if asked.flag("is_impossible", default=False):
        return ("",), None
    if not given:
        raise asked.wrong("answers", "an empty list; at least one answer is needed.")
    texts = tuple(answer.text("text") for answer in given)
    at = given[0].whole("answer_start")
    if context[at : at + len(texts[0])] != texts[0]:
        raise given[0].wrong("answer_start", f"the paragraph does not have {texts[0]!r} at {at}.")
    return texts, at


def sentence(text: str, start: int, end: int) -> str:
    """Return the sentences of `text` that hold characters `start` to `end`, verbatim."""
    cuts = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    low = max(cut for cut in cuts if cut <= start)
    high = min(cut for cut in cuts if cut >= end)
    return text[low:high].strip()
