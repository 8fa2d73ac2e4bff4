"""Shingles: runs of words by which a text is recognised within another one (Broder 1997)."""

from collections.abc import Iterable, Iterator

_WORDS = 8
_PLACES = 3


class Shingles:
    """Texts that are looked for in other texts, whole."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take three shingles of each text: of its beginning, its middle and its end.

        Args:
            texts: those of fewer than eight words are left out: they are not told from others.
        """
        self._texts: list[frozenset[int]] = []
        self._of: dict[int, list[int]] = {}
        for text in texts:
            words = text.split()
            last = len(words) - _WORDS
            if last < 0:
                continue
            chosen = frozenset(_hash(words, last * place // (_PLACES - 1)) for place in range(_PLACES))
            for shingle in chosen:
                self._of.setdefault(shingle, []).append(len(self._texts))
            self._texts.append(chosen)

    def are_in(self, text: str) -> bool:
        """Whether any of the texts is in another one, whatever stands before and behind it: its words count."""
        seen: dict[int, set[int]] = {}
        for shingle in _all(text):
            for number in self._of.get(shingle, ()):
                seen.setdefault(number, set()).add(shingle)
                if len(seen[number]) == len(self._texts[number]):
                    return True
        return False


def _all(text: str) -> Iterator[int]:
    words = text.split()
    return (_hash(words, first) for first in range(len(words) - _WORDS + 1))


def _hash(words: list[str], first: int) -> int:
    return hash(tuple(words[first : first + _WORDS]))
