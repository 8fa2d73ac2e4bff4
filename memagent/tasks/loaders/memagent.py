"""MemAgent's evaluation files (arXiv 2507.02259): a JSON list with context, input, answers, index."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.tasks.loaders.jsonl import Row
from memagent.tasks.sample import Sample
from memagent.tasks.texts import Whole

FIELDS = frozenset({"context", "input", "answers", "index"})


def read(path: Path, rows: Iterable[Row]) -> Iterator[Sample]:
    """Yield the samples of a file; the task is named after the file. Facts are not known.

    An id ends with the record's number in the file, from 0; `index` says where a record came from, and may repeat.
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
