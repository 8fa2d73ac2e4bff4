"""Samples as files in RULER's format: JSON lines with index, input, outputs and length, and the rest of a sample.

`memagent.tasks.loaders` reads them.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.tasks.sample import Sample

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
