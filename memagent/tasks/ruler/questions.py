"""What RULER's question kinds ask: SQuAD's format for qa_1, HotpotQA's for qa_2."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.errors import UsageError
from memagent.tasks.files import hotpot, recognise, squad
from memagent.tasks.files.rows import Row, read_rows
from memagent.tasks.ruler.documents import Asked, Paragraph

QUESTION_KINDS = {"squad": "qa_1", "hotpot": "qa_2"}
"""The kind that a file of a format is asked by."""


def question_kind(path: Path) -> str:
    """Return the kind whose questions a file holds.

    Raises:
        UsageError: none's, or the file cannot be read.
    """
    return _kind(path, next(read_rows(path)))


def load_questions(path: Path) -> tuple[list[Asked], list[Paragraph]]:
    """Read a file's questions that have an answer, and all its paragraphs: each question hides among the others'.

    Raises:
        UsageError: the file is of another format, or malformed: names file, line (or index) and field.
    """
    rows = list(read_rows(path))
    read = _squad if _kind(path, rows[0]) == "qa_1" else _hotpot
    asked: list[Asked] = []
    pool: list[Paragraph] = []
    for paragraphs, questions in read(rows):
        pool += paragraphs
        asked += questions
    return asked, pool


def _kind(path: Path, first: Row) -> str:
    name = recognise(first)
    if name not in QUESTION_KINDS:
        raise UsageError(f"{path} is of format {name}: give qa_1 a file of SQuAD's format, qa_2 one of HotpotQA's.")
    return QUESTION_KINDS[name]


def _squad(rows: Iterable[Row]) -> Iterator[tuple[list[Paragraph], list[Asked]]]:
    for row in rows:
        for number, article in enumerate(row.rows("data")):
            title = article.text("title") if "title" in article.values else f"Article {number + 1}"
            for paragraph in article.rows("paragraphs"):
                own = (title, paragraph.text("context"))
                yield [own], [one for asked in paragraph.rows("qas") if (one := _asked(asked, own))]


def _asked(asked: Row, own: Paragraph) -> Asked | None:
    answers, at = squad.gold_answers(asked, own[1])
    if at is None:
        return None
    fact = squad.sentence(own[1], at, at + len(answers[0]))
    return Asked(asked.text("question"), answers, (own,), (fact,))


def _hotpot(rows: Iterable[Row]) -> Iterator[tuple[list[Paragraph], list[Asked]]]:
    for row in rows:
        found = hotpot.own_paragraphs(row)
        facts = [fact for facts in hotpot.supporting_sentences(row, found).values() for fact in facts]
        own = tuple((title, "".join(sentences)) for title, sentences in found.items())
        yield [*own], [Asked(row.text("question"), (row.text("answer"),), own, tuple(dict.fromkeys(facts)))]
