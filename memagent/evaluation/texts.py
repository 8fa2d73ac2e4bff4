"""Texts of samples, which are read piece by piece, and texts that needles are hidden in."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memagent.errors import UsageError
from memagent.questions import json_rows
from memagent.records import Json

Match = Literal[
    "all", "part", "contains", "f1", "exact", "contract", "longbench", "choice", "mrcr", "oolong", "babilong"
]  # fmt: skip
"""How an answer is scored: share of the gold texts that it holds (RULER's string_match_all), whether it holds any
(string_match_part, or as whole words: contains), best token F1, exact match after normalisation, by the contract
category in `about`, or as a benchmark publishes it (`memagent.evaluation.published`)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One question over one text.

    `pieces` gives the text piece by piece, the same at every call: a text of millions of tokens is never a list.
    """

    sample_id: str
    """Differs within a suite; the same samples have the same ids in every run, so that runs can be paired."""
    task: str
    """Name of the task, for example ``niah_multikey_1`` or ``Governing Law``."""
    length: int
    """Tokens of the text that were asked for; 0 where the text is as long as it is."""
    pieces: Callable[[], Iterator[str]]
    question: str
    answers: tuple[str, ...]
    """Gold. A single empty text: the text does not say."""
    match: Match
    facts: tuple[str, ...] = ()
    """Sentences of the text, verbatim, that hold what is asked; without them it cannot be answered."""
    depth: float | None = None
    """Where the (first) fact stands, 0 (start) to 1 (end); None where that has no meaning."""
    about: Json = field(default_factory=dict)
    """Further attributes that reports group by: category, documents, variant."""
    origins: tuple[str, ...] = ()
    """Content hashes of the texts that a file's sample was made of, kept where a control changes its text."""

    def text(self) -> str:
        """Return the whole text."""
        return "".join(self.pieces())


Paragraph = tuple[str, str]
"""Title and text."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A text in one piece."""

    text: str

    def __call__(self) -> Iterator[str]:
        """Yield the text."""
        yield self.text


@dataclass(frozen=True, slots=True)
class Documents:
    """Numbered paragraphs, put together while they are read."""

    paragraphs: Sequence[Paragraph]

    def __call__(self) -> Iterator[str]:
        """Yield ``Document {i}:``, title and text of each, from 1, a blank line between two (RULER, MemAgent)."""
        yield from numbered(self.paragraphs)

    def start(self, index: int) -> float:
        """Return where a paragraph (from 0) starts, as a share of the text's characters."""
        lengths = list(map(len, self()))
        return (sum(lengths[:index]) + (len(_BETWEEN) if index else 0)) / sum(lengths)


def numbered(paragraphs: Iterable[Paragraph]) -> Iterator[str]:
    """Yield paragraphs with their numbers, from 1, and a blank line between two."""
    for i, (title, text) in enumerate(paragraphs, 1):
        yield f"{'' if i == 1 else _BETWEEN}Document {i}:\n{title}\n{text}"


_BETWEEN = "\n\n"
_SUFFIXES = {".txt", ".md", ".rst"}
_NAMES = re.compile(r"(?i)^(readme|licen[cs]e|notice|authors|copying|changelog|metadata)")
_MOST = 60_000
"""Characters taken of one file: a few huge ones must not outweigh the rest."""
_LEAST = 200


def load_texts(paths: Iterable[Path], limit: int = 40_000_000) -> list[str]:
    """Read texts, at most `limit` characters in all.

    A folder gives its text files, readmes and licences; a ``.jsonl`` file each row's ``text``; a
    ``.json`` file (SQuAD format) each ``context``; any other file is one text.

    Raises:
        UsageError: a path does not exist, or nothing was found.
    """
    texts: list[str] = []
    total = 0
    for path in paths:
        if not path.exists():
            raise UsageError(f"no text at {path}: give files or folders with text.")
        for text in _read(path):
            if len(text) >= _LEAST and total < limit and "\x00" not in text:
                texts.append(text)
                total += len(text)
    if not texts:
        raise UsageError("found no texts of 200 characters or more. Give folders with .txt, .md or .rst files.")
    return texts


def _read(path: Path) -> Iterator[str]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and (file.suffix in _SUFFIXES or _NAMES.match(file.name)) and file.suffix != ".py":
                yield file.read_text(encoding="utf-8", errors="ignore")[:_MOST]
    elif path.suffix == ".jsonl":
        yield from _joined(str(row.values.get("text", "")) for row in json_rows(path))
    elif path.suffix == ".json":
        yield from _joined(context for row in json_rows(path) for context in _contexts(row.values))
    else:
        yield path.read_text(encoding="utf-8", errors="ignore")


def _joined(parts: Iterable[str], size: int = 4000) -> Iterator[str]:
    """Join short passages to texts that are long enough to be cut at different places."""
    joined: list[str] = []
    for part in parts:
        joined.append(part)
        if sum(map(len, joined)) >= size:
            yield "\n\n".join(joined)
            joined = []
    if joined:
        yield "\n\n".join(joined)


def _contexts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "context" and isinstance(inner, str):
                yield inner
            else:
                yield from _contexts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _contexts(inner)
