"""What parsers speak in."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from infra.formats.allowance import Allowance
from memagent.config import IngestConfig


@dataclass(frozen=True, slots=True)
class Parsed:
    """One text of a source: the whole file, or a row of a table."""

    text: str
    title: str
    """Empty where the source has none."""
    media_type: str
    encoding: str = "utf-8"
    row: str | None = None
    """The row's id within its table; None for a whole file."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be a document; the source's other rows go on."""

    row: str
    """Number of the row or line, from 1."""
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be parsed, as a parser sees it."""

    name: str
    """File name without folder and compression suffix, fit to be shown."""
    options: IngestConfig
    allowance: Allowance = field(default_factory=Allowance)
    """How much text may come out. A parser that can make much of little asks it while it works."""


class Parser(Protocol):
    """Turns a source's bytes into texts; raises `memagent.errors.SourceError`."""

    def __call__(self, stream: BinaryIO, request: Request) -> Iterator[Parsed | Refused]:
        """Yield the texts of `stream`, which is read once, from its start."""
        ...
