"""What the workers of a memory pass are given, and what they return."""

from dataclasses import dataclass
from typing import TypedDict

from infra.logs import LogLine
from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.data_files import DataFile


class FailedItem(TypedDict):
    """A reading that failed."""

    item: str
    """Document and question."""
    reason: str
    detail: str


class BlockResult(TypedDict):
    """The result of a block of work; its answers are in the store."""

    answered: int
    failures: list[FailedItem]
    files: list[DataFile]
    """Files that hold its answers, possibly among others."""
    worker: str
    log: list[LogLine]
    """What it has logged since its last report."""
    counts: dict[str, int]
    """This worker's totals, which arrive with the answers even if the board has died."""


@dataclass(frozen=True, slots=True)
class PassSpec:
    """What all workers of a memory pass share."""

    corpus: Corpus
    run_id: str
    reader: ReaderSpec
    inflight: int
    flush_seconds: float
    log_level: str = "warning"
