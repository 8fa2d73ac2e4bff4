"""RULER's task files (arXiv 2404.06654): JSON lines with index, input, outputs, length.

As its scripts write them (NVIDIA/RULER, scripts/data/synthetic) a record also has length_w_model_temp, answer_prefix
(the start of the answer, which older versions leave at the end of `input`) and token_position_answer.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from memagent.tasks.loaders.jsonl import ColumnNames, JsonRow
from memagent.tasks.sample import Match, Sample
from memagent.tasks.texts import Whole

FIELDS = frozenset({"index", "input", "outputs", "length"})

_TAIL = 4000
"""Characters at the end of an input among which its question is looked for."""
_QUESTION = re.compile(
    r"(?P<needle>What (?:is|are all) the special magic [^\n]+? mentioned in the provided text\?)"
    r"|(?:Answer the question based on the given documents\.[^\n]*\s+)?"
    r"\bQuestion:[ \t]*(?P<asked>[^\n]+?)(?=\s*Answer:|[ \t]*(?:\n|\Z))"
)
_DOCUMENTS = "Answer the question based on the given documents."
_SPLITS = frozenset({"validation", "test", "train", "dev"})


def read(path: Path, rows: Iterable[JsonRow]) -> Iterator[Sample]:
    """Yield the samples of a file; an id ends with the record's number in it, from 0.

    `index` is no id: ``niah.py`` writes the place of the answer there, which several samples can share.
    `input` holds instruction, text and question in one. The question is the last one near the end in RULER's wording
    ("What are all the special magic ... mentioned in the provided text?", "Question: ..."; what follows it, such as
    the start of an answer, is dropped); where there is none, the last line that is not blank is asked. The text is
    what stands before the question, the instruction at its start included.
    The task is named after the file, or after its folder where the file is called validation.jsonl as RULER does;
    The length asked for is the folder's in RULER's layout (``8192/data/vt/validation.jsonl``), else unknown: a record's
    `length` is what its input came to, other for each, and is kept in ``about["tokens"]``. Facts are not known.
    A file that `memagent.tasks.ruler` wrote says all this itself ("text_end": where in its input the text ends).
    """
    task = path.parent.name if path.stem in _SPLITS and path.parent.name else path.stem
    asked = _asked(path)
    names = ColumnNames()
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


def _written(row: JsonRow, names: ColumnNames) -> Sample:
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
