"""MemAgent's evaluation files (arXiv 2507.02259): a JSON list with context, input, answers, index."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.tasks.files.rows import Names, Row
from memagent.tasks.files.texts import Whole
from memagent.tasks.samples import Sample

FIELDS = frozenset({"context", "input", "answers", "index"})


def read(path: Path, rows: Iterable[Row]) -> Iterator[Sample]:
    """Yield the samples of a file; the task is named after the file. Facts are not known."""
    names = Names()
    for row in rows:
        index = row.whole("index")
        yield Sample(
            sample_id=names.add(row, "index", f"{path.stem}/{index}"),
            task=path.stem,
            length=0,
            pieces=Whole(row.text("context")),
            question=row.text("input"),
            answers=row.texts("answers"),
            match="part",
        )
