"""Loaders for RULER (arXiv 2404.06654), LongBench (arXiv 2308.14508), MemAgent (arXiv 2507.02259) and SQuAD (arXiv
1606.05250) files; SQuAD 2.0 and XQuAD files have SQuAD's format.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from memagent.evaluation.texts import Match, Sample, Whole
from memagent.questions import FileRow, RowNames

_SEPARATOR = "\n\n"
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+")


def read_longbench(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of a LongBench file. The task is the data set; ``about`` keeps `length`, which counts words.

    Sets without a question (summaries: a blank `input`) are refused.
    """
    names = RowNames()
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


def read_memagent(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
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


def read_squad(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield each question over its whole article, with a blank line between paragraphs.

    The fact is the sentence (or sentences) with the first answer. An impossible question has a blank gold answer.
    """
    names = RowNames()
    for row in rows:
        for article in row.rows("data"):
            yield from _squad_article(path.stem, article, names)


def _squad_article(task: str, article: FileRow, names: RowNames) -> Iterator[Sample]:
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


def gold_answers(question: FileRow, context: str) -> tuple[tuple[str, ...], int | None]:
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


_TAIL = 4000
"""Characters at the end of an input among which its question is looked for."""
_QUESTION = re.compile(
    r"(?P<needle>What (?:is|are all) the special magic [^\n]+? mentioned in the provided text\?)"
    r"|(?:Answer the question based on the given documents\.[^\n]*\s+)?"
    r"\bQuestion:[ \t]*(?P<asked>[^\n]+?)(?=\s*Answer:|[ \t]*(?:\n|\Z))"
)
_DOCUMENTS = "Answer the question based on the given documents."
_SPLITS = frozenset({"validation", "test", "train", "dev"})


def read_ruler(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of a file; an id ends with the record's number in it, from 0.

    `index` is no id: ``niah.py`` writes the place of the answer there, which several samples can share.
    `input` holds instruction, text and question in one. The question is the last one near the end in RULER's wording
    ("What are all the special magic ... mentioned in the provided text?", "Question: ..."; what follows it, such as
    the start of an answer, is dropped); where there is none, the last line that is not blank is asked. The text is
    what stands before the question, the instruction at its start included.
    The task is named after the file, or after its folder where the file is called validation.jsonl as RULER does;
    The length asked for is the folder's in RULER's layout (``8192/data/vt/validation.jsonl``), else unknown: a record's
    `length` is what its input came to, other for each, and is kept in ``about["tokens"]``. Facts are not known.
    A file that `memagent.evaluation.ruler` wrote says all this itself ("text_end": where in its input the text ends).
    """
    task = path.parent.name if path.stem in _SPLITS and path.parent.name else path.stem
    asked = _asked(path)
    names = RowNames()
    for number, row in enumerate(rows):
        row.whole("index")
        if "text_end" in row.values:
            yield _written(row, names)
            continue
        text, question = split(row.text("input"))
        if not question:
            raise row.wrong("input", "a single line; text and question are needed.")
        documents = task.startswith("qa") or _DOCUMENTS in row.values["input"][-_TAIL:]
        yield Sample(
            sample_id=f"{task}/{asked}/{number}" if asked else f"{task}/{number}",
            task=task,
            length=asked,
            pieces=Whole(text),
            question=question,
            answers=row.texts("outputs"),
            match="part" if documents else "all",
            about={"tokens": row.whole("length")},
        )


def _asked(path: Path) -> int:
    folders = path.parent.parent
    return int(folders.parent.name) if folders.name == "data" and folders.parent.name.isdecimal() else 0


def _written(row: FileRow, names: RowNames) -> Sample:
    prompt, end, depth, about = row.text("input"), row.whole("text_end"), row.get("depth"), row.get("about")
    if end > len(prompt):
        raise row.wrong("text_end", f"{end}, but the input has {len(prompt)} characters.")
    match = next((known for known in get_args(Match) if known == row.text("match")), None)
    if match is None:
        raise row.wrong("match", f"one of {', '.join(get_args(Match))} is needed.")
    if not (depth is None or isinstance(depth, int | float)):
        raise row.wrong("depth", "a number or null is needed.")
    if not isinstance(about, dict):
        raise row.wrong("about", "an object is needed.")
    return Sample(
        sample_id=names.add(row, "sample_id", row.text("sample_id")),
        task=row.text("task"),
        length=row.whole("length"),
        pieces=Whole(prompt[:end]),
        question=row.text("question"),
        answers=row.texts("outputs", blank=True),
        match=match,
        facts=row.texts("facts") if row.list("facts") else (),
        depth=depth,
        about=about,
    )


def split(prompt: str) -> tuple[str, str]:
    """Return (text, question) of a prompt; the question is empty where the prompt is a single line."""
    start = max(0, len(prompt) - _TAIL)
    questions = list(_QUESTION.finditer(prompt, start))
    if questions:
        question = questions[-1]["needle"] or questions[-1]["asked"]
        text = prompt[: questions[-1].start()].rstrip()
    else:
        text, _, question = prompt.rstrip().rpartition("\n")
        text = text.rstrip()
    return (text, question.strip()) if text.strip() else ("", "")
