"""Loaders for LongBench (arXiv 2308.14508), MemAgent (arXiv 2507.02259), SQuAD (arXiv 1606.05250) and CUAD files.

SQuAD 2.0 and XQuAD files have SQuAD's format. CUAD (arXiv 2103.06268) is a folder: gold.jsonl beside contracts/.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.loaders.jsonl import ColumnNames, JsonRow, read_rows, read_text
from memagent.evaluation.texts import Sample, Whole

LONGBENCH_FIELDS = frozenset({"input", "context", "answers", "length", "dataset", "_id"})
MEMAGENT_FIELDS = frozenset({"context", "input", "answers", "index"})
SQUAD_FIELDS = frozenset({"data"})

_SEPARATOR = "\n\n"
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+")


def read_longbench(path: Path, rows: Iterable[JsonRow]) -> Iterator[Sample]:
    """Yield the samples of a LongBench file. The task is the data set; ``about`` keeps `length`, which counts words.

    Sets without a question (summaries: a blank `input`) are refused.
    """
    names = ColumnNames()
    for row in rows:
        dataset = row.text("dataset")
        yield Sample(
            sample_id=names.add(row, "_id", row.name("_id")),
            task=dataset,
            length=0,
            pieces=Whole(row.text("context")),
            question=row.text("input"),
            answers=row.texts("answers"),
            match="f1",
            about={"words": row.whole("length")},
        )


def read_memagent(path: Path, rows: Iterable[JsonRow]) -> Iterator[Sample]:
    """Yield the samples of a MemAgent evaluation file. The task is named after the file; facts are not known.

    An id ends with the record's position in the file, from 0: the file's own `index` may repeat.
    """
    for number, row in enumerate(rows):
        row.whole("index")
        yield Sample(
            sample_id=f"{path.stem}/{number}",
            task=path.stem,
            length=0,
            pieces=Whole(row.text("context")),
            question=row.text("input"),
            answers=row.texts("answers"),
            match="part",
        )


def read_squad(path: Path, rows: Iterable[JsonRow]) -> Iterator[Sample]:
    """Yield each question over its whole article, with a blank line between paragraphs.

    The fact is the sentence (or sentences) with the first answer. An impossible question has a blank gold answer.
    """
    names = ColumnNames()
    for row in rows:
        for article in row.rows("data"):
            yield from _squad_article(path.stem, article, names)


def _squad_article(task: str, article: JsonRow, names: ColumnNames) -> Iterator[Sample]:
    paragraphs = list(article.rows("paragraphs"))
    contexts = [paragraph.text("context") for paragraph in paragraphs]
    whole = Whole(_SEPARATOR.join(contexts))
    about = {"title": article.text("title")} if "title" in article.values else {}
    offset = 0
    for paragraph, context in zip(paragraphs, contexts, strict=True):
        for question in paragraph.rows("qas"):
            answers, start = gold_answers(question, context)
            yield Sample(
                sample_id=names.add(question, "id", question.name("id")),
                task=task,
                length=0,
                pieces=whole,
                question=question.text("question"),
                answers=answers,
                match="f1",
                facts=() if start is None else (sentence(context, start, start + len(answers[0])),),
                depth=None if start is None else (offset + start) / len(whole.text),
                about=dict(about),
            )
        offset += len(context) + len(_SEPARATOR)


def gold_answers(question: JsonRow, context: str) -> tuple[tuple[str, ...], int | None]:
    """Return a SQuAD question's answers and the first one's character offset; one blank answer if it is impossible.

    Raises:
        UsageError: there is no answer, or it is not at its `answer_start`; names file, place and field.
    """
    given = list(question.rows("answers"))
    if question.flag("is_impossible", default=False):
        return ("",), None
    if not given:
        raise question.wrong("answers", "an empty list; at least one answer is needed.")
    texts = tuple(answer.text("text") for answer in given)
    start = given[0].whole("answer_start")
    if context[start : start + len(texts[0])] != texts[0]:
        raise given[0].wrong("answer_start", f"the paragraph does not have {texts[0]!r} at {start}.")
    return texts, start


def sentence(text: str, start: int, end: int) -> str:
    """Return the sentences of `text` that cover characters `start` to `end`, verbatim."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    low = max(cut for cut in cuts if cut <= start)
    high = min(cut for cut in cuts if cut >= end)
    return text[low:high].strip()


@dataclass(frozen=True, slots=True)
class Gold:
    """CUAD's annotation of one category in one contract."""

    file: str
    category: str
    question: str
    """CUAD's wording; empty if the file gives none."""
    answer: str
    """Empty: the contract does not say."""
    spans: tuple[str, ...]
    """Annotated clauses, some not verbatim."""
    row: JsonRow


def read_gold(folder: Path) -> Iterator[Gold]:
    """Yield the rows of CUAD's ``gold.jsonl``, lazily.

    Raises:
        UsageError: it is missing or malformed: names file, line and field.
    """
    path = folder / "gold.jsonl"
    if not path.is_file():
        raise UsageError(f"{folder} has no gold.jsonl. Give the folder that holds gold.jsonl and contracts/.")
    names = ColumnNames()
    for row in read_rows(path):
        file, category = row.text("file"), row.text("category")
        if Path(file).name != file:
            raise row.wrong("file", f"{file!r} is no name of a file in contracts/.")
        names.add(row, "category", f"{file}/{category}")
        question = "" if row.get("question") is None else " ".join(row.text("question").split())
        spans = row.texts("spans", blank=True) if row.list("spans") else ()
        answer = row.text("answer", blank=True).strip()
        kept = tuple(span for span in spans if span.strip())
        yield Gold(file, category, question=question, answer=answer, spans=kept, row=row)


def read_contract(folder: Path, file: str) -> str:
    """Return the text of a CUAD contract.

    Raises:
        UsageError: it is missing or not UTF-8.
    """
    return read_text(folder / "contracts" / file)
