"""Scores of answers against gold.

Sources: SQuAD (arXiv 1606.05250: normalisation, exact match, F1), MLQA (arXiv 1910.07475: the same in other languages),
RULER (arXiv 2404.06654: string_match_all, string_match_part). Values are in 0..1, where papers give percent. Benchmarks
with metrics of their own are in `memagent.evaluation.published`. This file imports nothing of memagent: tasks of
lm-evaluation-harness have a copy of it.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from unicodedata import category, normalize

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WIDE = (
    "[\u3001\u3002\u3008-\u3011\u3014-\u301b\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff5b-\uff5d\uff61-\uff64]"
)
_PAUSES = re.compile(rf"(?<!\d){_WIDE}|{_WIDE}(?!\d)")
"""Punctuation as wide as a Chinese character, after which no space is written."""
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Burmese, Khmer
    *((0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF)),  # Japanese
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),  # Chinese characters
)
"""First and last code points of scripts that are written without spaces."""


class _Table(dict[int, int | str | None]):
    """A table of `str.translate` that finds an entry when its character is first met."""

    def __init__(self, entry: Callable[[int], int | str | None]) -> None:
        self._entry = entry

    def __missing__(self, point: int) -> int | str | None:
        return self.setdefault(point, self._entry(point))


# SQuAD's punctuation has symbols; further ones are letters and a symbol written for an apostrophe or a minus sign.
_ALSO = frozenset(map(ord, string.punctuation + "\u02b9\u02bb\u02bc\u2212"))
_DROP = _Table(lambda point: None if point in _ALSO or category(chr(point)).startswith(("P", "Cf")) else point)
_SPACE = _Table(lambda point: f" {chr(point)} " if any(low <= point <= high for low, high in _UNSPACED) else point)


def normalise(text: str) -> str:
    """Fold case and forms of characters (NFKC), drop punctuation and articles, fold white space.

    English is normalised as SQuAD publishes it: "-5" and "5" are one text, and so are "1.5" and "15". Articles stay
    where there is nothing else ("A" as an answer). Characters of scripts without spaces (Chinese, Japanese, Thai, Lao,
    Khmer, Burmese) are a word each, as in MLQA.
    """
    if not text.isascii():
        # An accent is written for an apostrophe, and NFKC makes a space and an accent of it.
        text = normalize("NFKC", _PAUSES.sub(" ", text).replace("\u00b4", "'"))
        text = normalize("NFKC", text.casefold())
    plain = text.lower().translate(_DROP)
    if not plain.isascii():  # where a mark of punctuation is gone, an accent stands behind a letter
        plain = normalize("NFKC", plain)
    words = spaced(_ARTICLES.sub(" ", plain)).split() or plain.split()
    return " ".join(words)


def spaced(text: str) -> str:
    """Put a space around each character of scripts that are written without spaces."""
    return text if text.isascii() else text.translate(_SPACE)


def _words(text: str) -> str:
    """Return a text normalised; one of punctuation alone as it is, which is no answer that says nothing."""
    return normalise(text) or text.strip()


def exact_match(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals a gold answer after normalisation."""
    return float(any(_words(prediction) == _words(answer) for answer in gold))


def containment(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if a gold answer is in the prediction as whole words (never the other way round)."""
    words = f" {_words(prediction)} "
    return float(any(f" {answer} " in words if answer else not words.strip() for answer in map(_words, gold)))


def f1(prediction: str, gold: Sequence[str]) -> float:
    """Return the best token F1 over the gold answers."""
    return max((token_f1(_words(prediction).split(), _words(answer).split()) for answer in gold), default=0.0)


def string_match_all(prediction: str, gold: Sequence[str]) -> float:
    """Return the share of references that are lower-case substrings of the prediction (RULER).

    RULER has no blank reference, which would be a substring of anything; here only a blank prediction matches one.
    """
    return sum(_within(prediction, answer) for answer in gold) / len(gold) if gold else 0.0


def string_match_part(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if any reference is a lower-case substring of the prediction (RULER's qa tasks).

    As published, "no" is found in "I do not know": compare with `containment`, which needs whole words.
    """
    return float(any(_within(prediction, answer) for answer in gold))


JUDGEMENTS = frozenset({"yes", "no"})
"""Answers that are no words of the text."""
Metric = Callable[[str, Sequence[str]], float]

METRICS: dict[str, Metric] = {"exact match": exact_match, "containment": containment, "f1": f1}
MATCHES: dict[str, Metric] = {
    **{"all": string_match_all, "part": string_match_part},
    **{"contains": containment, "f1": f1, "exact": exact_match},
}
"""The metric of each `match` of a sample that needs nothing but the gold."""


def _within(prediction: str, answer: str) -> bool:
    return answer.lower() in prediction.lower() if answer.strip() else not prediction.strip()


def token_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    """Return the F1 of two lists of words; two empty ones are the same."""
    if not prediction or not gold:
        return float(not prediction and not gold)
    common = sum((Counter(prediction) & Counter(gold)).values())
    return 2 * common / (len(prediction) + len(gold))
