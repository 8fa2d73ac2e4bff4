"""Samples as files in RULER's format: JSON lines with index, input, outputs and length, and the rest of a sample."""

import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from memagent.errors import UsageError
from memagent.tasks.samples import Sample

_BETWEEN = "\n\n"


def write_jsonl(samples: Iterable[Sample], path: Path) -> int:
    """Write samples, a line each, and return how many; `path` appears whole or not at all.

    ``input`` is the text and the question below it; ``text_end`` says where in it the text ends, in characters.
    Texts are written piece by piece.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with aside.open("w", encoding="ascii", newline="\n") as file:
            for count, sample in enumerate(samples, 1):
                file.writelines(_line(count - 1, sample))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return count


def read_jsonl(path: Path) -> Iterator[Sample]:
    """Read what `write_jsonl` wrote, a line at a time; texts are read again from the file when they are asked for.

    Raises:
        UsageError: a line was not written by `write_jsonl`.
    """
    with path.open("rb") as file:
        at = 0
        for number, line in enumerate(file, 1):
            try:
                sample = _sample(path, at, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{path}, line {number}: not a sample as memagent writes them ({type(error).__name__}: {error})."
                ) from error
            yield sample
            at += len(line)


def _line(index: int, sample: Sample) -> Iterator[str]:
    head = {
        "index": index,
        "outputs": sample.answers,
        "length": sample.length,
        "sample_id": sample.sample_id,
        "task": sample.task,
        "question": sample.question,
        "match": sample.match,
        "facts": sample.facts,
        "depth": sample.depth,
        "about": sample.about,
    }
    yield json.dumps(head)[:-1] + ', "input": "'
    end = 0
    for piece in sample.pieces():
        end += len(piece)
        yield json.dumps(piece)[1:-1]
    yield json.dumps(_BETWEEN + sample.question)[1:] + f', "text_end": {end}}}\n'


def _sample(path: Path, at: int, row: dict[str, Any]) -> Sample:
    if not isinstance(row["input"], str) or not isinstance(row["text_end"], int):
        raise TypeError("input must be a text and text_end a number")
    return Sample(
        sample_id=row["sample_id"],
        task=row["task"],
        length=row["length"],
        pieces=partial(_pieces, path, at),
        question=row["question"],
        answers=tuple(row["outputs"]),
        match=row["match"],
        facts=tuple(row["facts"]),
        depth=row["depth"],
        about=row["about"],
    )


def _pieces(path: Path, at: int) -> Iterator[str]:
    with path.open("rb") as file:
        file.seek(at)
        row = json.loads(file.readline())
    yield row["input"][: row["text_end"]]
