"""Loaders for public benchmarks, as their authors write the files; questions on one text give the same text.

RULER (arXiv 2404.06654), LongBench (arXiv 2308.14508), MemAgent (arXiv 2507.02259) and SQuAD (arXiv 1606.05250), whose
format SQuAD 2.0 and XQuAD have; LongBench v2 (arXiv 2412.15204), OpenAI MRCR, OOLONG (arXiv 2511.02817: synthetic),
BrowseComp-Plus (arXiv 2508.06600, decrypted) and BABILong (arXiv 2406.10149).
"""

import ast
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from memagent.evaluation.published import BABILONG, LONGBENCH
from memagent.evaluation.texts import Documents, Match, Sample, Whole
from memagent.questions import FileRow, RowNames

_SEPARATOR = "\n\n"
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+")


def read_longbench(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of a LongBench file. The task is the data set; ``about`` keeps `length`, which counts words.

    Sets of which nothing is asked but what their prompt says (summaries, counts) are asked that.
    """
    names = RowNames()
    for row in rows:
        dataset = row.text("dataset")
        known = LONGBENCH.get(dataset.removesuffix("_e"))
        if known is None:
            raise row.wrong("dataset", f"{dataset!r} is none of LongBench: {', '.join(LONGBENCH)}.")
        asked = "{input}" in known.ask
        classes = {"classes": row.texts("all_classes")} if known.score is None else {}
        yield Sample(
            sample_id=names.add(row, "_id", row.name("_id")),
            task=dataset,
            length=0,
            pieces=Whole(row.text("context")),
            question=known.ask.replace("{input}", row.text("input", blank=not asked)).strip(),
            answers=row.texts("answers"),
            match="longbench",
            about={"words": row.whole("length"), **classes},
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


_CHOICES = "ABCD"
_V2 = """What is the correct answer to this question: {}
Choices:
{}

Format your response as follows: "The correct answer is (insert answer here)"."""


def read_longbench_v2(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the questions of LongBench v2, asked as published. The task is the domain.

    ``about`` keeps what the published table groups by: difficulty (easy, hard) and length (short, medium, long).
    """
    names = RowNames()
    for row in rows:
        gold = row.text("answer").strip()
        if gold not in _CHOICES:
            raise row.wrong("answer", f"{gold!r}; one of A, B, C, D is needed.")
        choices = "\n".join(f"({letter}) {row.text(f'choice_{letter}').strip()}" for letter in _CHOICES)
        question = _V2.format(row.text("question").strip(), choices)
        about = {name: row.text(name) for name in ("sub_domain", "difficulty", "length")}
        name, text = names.add(row, "_id", row.name("_id")), Whole(row.text("context"))
        yield Sample(name, row.text("domain"), 0, text, question, (gold,), match="choice", about=about)


def read_mrcr(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of OpenAI MRCR: the last message is the question, the messages before it are the text.

    The task has the number of needles in its name, where the file has it.
    """
    for number, row in enumerate(rows):
        *before, last = _messages(row)
        text = Whole("\n\n".join(f"{one.text('role').capitalize()}: {one.text('content')}" for one in before))
        task = f"mrcr_{row.whole('n_needles')}needle" if "n_needles" in row.values else "mrcr"
        name, gold, about = f"{path.stem}/{number}", row.text("answer"), {"start": row.text("random_string_to_prepend")}
        yield Sample(name, task, 0, text, last.text("content"), (gold,), match="mrcr", about=about)


def _messages(row: FileRow) -> list[FileRow]:
    try:
        given = json.loads(row.text("prompt"))
    except (ValueError, RecursionError) as error:
        raise row.wrong("prompt", f"not JSON ({error}); a list of messages as JSON is needed.") from error
    messages = list(FileRow(row.where, {"prompt": given}).rows("prompt"))
    if len(messages) < 2:
        raise row.wrong("prompt", f"{len(messages)} messages; two or more are needed.")
    return messages


_DATE = re.compile(r"\[?datetime\.date\((\d+), (\d+), (\d+)\)\]?")


def read_oolong(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the questions of OOLONG's synthetic part; a date as gold is in ISO form.

    The task is that of the file, else the kind of answer. Documents are named by `context_window_id`.
    """
    for number, row in enumerate(rows):
        kind, text = row.text("answer_type"), Whole(row.text("context_window_text"))
        task = row.text("task") if "task" in row.values else kind
        length = row.whole("context_len") if "context_len" in row.values else 0
        about = {"answer_type": kind, "document": f"{path.stem} {row.name('context_window_id')}"}
        name, gold = f"{path.stem}/{number}", _oolong_gold(row)
        yield Sample(name, task, length, text, row.text("question"), (gold,), match="oolong", about=about)


def _oolong_gold(row: FileRow) -> str:
    """Return the first of the answers, which are written as a list of Python's."""
    text = row.text("answer").strip()
    if dated := _DATE.fullmatch(text):
        return "-".join(part.zfill(2) for part in dated.groups())
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # no list: the answer itself
        return text
    return str(value[0]) if isinstance(value, list) and value else text


def read_browsecomp(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the questions of BrowseComp-Plus over their documents: gold, evidence and negatives, shuffled by the query.

    An answer is right if it has the gold as whole words; the authors ask a language model.
    """
    names = RowNames()
    for row in rows:
        name = names.add(row, "query_id", row.name("query_id"))
        kinds = [kind for kind in ("gold_docs", "evidence_docs", "negative_docs") if kind in row.values]
        given = (each for kind in kinds for each in row.rows(kind))
        documents = sorted({each.name("docid"): each.text("text") for each in given}.items())
        if not documents:
            raise row.wrong("gold_docs", "no documents. Give the decrypted file, with the texts of its documents.")
        random.Random(name).shuffle(documents)
        text, about = Documents(tuple(documents)), {"documents": len(documents)}
        yield Sample(name, path.stem, 0, text, row.text("query"), (row.text("answer"),), match="contains", about=about)


_TASK = re.compile(r"(?<![a-z\d])qa\d+(?!\d)")
_LENGTH = re.compile(r"(?<![a-zA-Z\d])(\d+)([kKmM])(?![a-zA-Z\d])")


def read_babilong(path: Path, rows: Iterable[FileRow]) -> Iterator[Sample]:
    """Yield the samples of BABILong. Folder and file name task and length: ``4k/qa1.json`` or ``qa1/4k.json``."""
    place = f"{path.parent.name}/{path.stem}"
    found, size = _TASK.search(place), _LENGTH.search(place)
    length = int(size[1]) * {"k": 1000, "m": 1_000_000}[size[2].lower()] if size else 0
    for number, row in enumerate(rows):
        if found is None or found[0] not in BABILONG:
            raise row.wrong("target", "its task is not known. Name the file as BABILong does: 4k/qa1.json.")
        question, gold = row.text("question").strip(), row.text("target").strip()
        name, text = f"{found[0]}/{length}/{number}", Whole(row.text("input"))
        yield Sample(name, found[0], length, text, question, (gold,), match="babilong")


LONG_TEXTS = (
    ("longbench-v2", "_id domain difficulty length question answer context choice_A choice_D", read_longbench_v2),
    ("mrcr", "prompt answer random_string_to_prepend", read_mrcr),
    ("oolong", "context_window_text question answer answer_type context_window_id", read_oolong),
    ("browsecomp-plus", "query_id query answer gold_docs negative_docs", read_browsecomp),
    ("babilong", "input question target", read_babilong),
)
"""Benchmarks of long texts: name of the format, fields of a record, and what reads them."""
