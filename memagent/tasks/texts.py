"""The text of a sample, as callables that give it piece by piece and can be sent to other processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        for i, (title, text) in enumerate(self.paragraphs, 1):
            yield f"{'' if i == 1 else _BETWEEN}Document {i}:\n{title}\n{text}"

    def start(self, index: int) -> float:
        """Return where a paragraph (from 0) starts, as a share of the text's characters."""
        lengths = [
            len(f"Document {i}:\n") + len(title) + 1 + len(text) + len(_BETWEEN)
            for i, (title, text) in enumerate(self.paragraphs, 1)
        ]
        return sum(lengths[:index]) / (sum(lengths) - len(_BETWEEN))


_BETWEEN = "\n\n"
