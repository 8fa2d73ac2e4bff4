"""Counting tokens piece by piece, so that the counts of pieces add up to the count of the text."""

from memagent.tokens import Tokenizer


class Meter:
    """Counts what a piece adds to a text that goes on before it.

    Pieces begin with their separator: the space or line end before a word or sentence belongs to it. That is where
    tokenizers cut, whether they join a space to the next word or a line end to the full stop before.
    """

    def __init__(self, tokenizer: Tokenizer, before: str = "It is so.") -> None:
        """Count pieces that follow a text which ends as `before` does."""
        self.tokenizer = tokenizer
        self._before = before
        self._base = len(tokenizer.encode(before))

    def __call__(self, piece: str) -> int:
        """Return the tokens that `piece` adds."""
        return len(self.tokenizer.encode(self._before + piece)) - self._base
