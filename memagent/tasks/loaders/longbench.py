"""LongBench's question answering (arXiv 2308.14508): JSON lines with input, context, answers, length, dataset, _id."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.tasks.loaders.jsonl import Names, Row
from memagent.tasks.sample import Sample
from memagent.tasks.texts import Whole

FIELDS = frozenset({"input", "context", "answers", "length", "dataset", "_id"})


def read(path: Path, rows: Iterable[Row]) -> Iterator[Sample]:
    """Yield the samples of a file; the task is the data set. `length` counts words and is kept in ``about``.

    Sets without a question (summaries: a blank `input`) are refused.
    """
    names = Names()
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
