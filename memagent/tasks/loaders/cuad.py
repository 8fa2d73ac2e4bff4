"""A folder of CUAD (arXiv 2103.06268): gold.jsonl beside contracts/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memagent.errors import UsageError
from memagent.tasks.loaders.jsonl import Names, Row, read_rows, read_text


@dataclass(frozen=True, slots=True)
class Gold:
    """What the annotators say to one category of one contract."""

    file: str
    category: str
    question: str
    """CUAD's wording; empty where the file gives none."""
    answer: str
    """Empty: the contract does not say."""
    spans: tuple[str, ...]
    """Clauses, some not verbatim."""
    row: Row


def read_gold(folder: Path) -> Iterator[Gold]:
    """Yield the rows of ``gold.jsonl``, lazily.

    Raises:
        UsageError: it is missing or malformed: names file, line and field.
    """
    path = folder / "gold.jsonl"
    if not path.is_file():
        raise UsageError(f"{folder} has no gold.jsonl. Give the folder that holds gold.jsonl and contracts/.")
    names = Names()
    for row in read_rows(path):
        file, category = row.text("file"), row.text("category")
        if Path(file).name != file:
            raise row.wrong("file", f"{file!r} is no name of a file in contracts/.")
        names.add(row, "category", f"{file}/{category}")
        yield Gold(file, category, _question(row), row.text("answer", blank=True).strip(), _spans(row), row)


def read_contract(folder: Path, file: str) -> str:
    """Return the text of a contract.

    Raises:
        UsageError: it is missing or no UTF-8.
    """
    return read_text(folder / "contracts" / file)


def _question(row: Row) -> str:
    return "" if row.get("question") is None else " ".join(row.text("question").split())


def _spans(row: Row) -> tuple[str, ...]:
    return tuple(span for span in row.texts("spans", blank=True) if span.strip()) if row.list("spans") else ()
