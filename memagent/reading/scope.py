"""What a reader was trained to answer, as its folder declares it (``scope.json``), and what that says of an answer.

A reader without a declaration, as a model of your own, is asked anything and has no levels of confidence.
"""

from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import regex
from pydantic import Field, ValidationError

from memagent.errors import ConfigError
from memagent.reading.folding import locate
from memagent.records import Evidence, Level
from memagent.settings import Section

SCOPE_FILE = "scope.json"
BUCKETS = 4096
"""Into which n-grams of questions are hashed (feature hashing, arXiv 0902.2206)."""
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}#]+(?:'\p{L}+)?")
_ID = regex.compile(
    r"""(?x)(?<![\p{L}\p{N}\-_])(?:
    (?= [\p{L}\p{N}] [\p{L}\p{N}\-_/.]{0,200} (?: \p{L}[-_]?\p{N} | \p{N}[-_]?\p{L} | \p{L}[-_]\p{L} ) )
        [\p{L}\p{N}]+ (?: [-_/.]+ [\p{L}\p{N}]+ )*
    | \p{L}{4,}\ \p{N}+ (?: [.\-/]\p{N}+ )* (?![\p{L}\p{N}\-_]) )"""
)
"""Joined letters and digits, or words (gate-1, INV2024, amber-otter), or a word with its number (section 12)."""
_PART = regex.compile(r"\p{L}+|\p{N}+")
_STEM = 5
"""Letters of a part that are compared: the rest is often an ending."""
_GRAMS = (3, 4, 5)
_SAID_CHARS = 120
"""Of an earlier memory that a warning shows."""


class Rate(Section):
    """A measured share, from 0 to 1, with its 95% interval."""

    share: float
    n: int
    low: float
    high: float


class QuestionKind(Section):
    """A kind of questions that a reader was trained to answer."""

    name: str
    examples: tuple[str, ...]
    form: str = ""
    """Regular expression of what every right answer holds, such as a digit; empty: nothing in common."""
    right: Rate | None = None
    """Of held-out answers; None: not measured."""
    low_below: float = 0.0
    """Confidences below it are low."""
    high_from: float = 2.0
    """Confidences from it on are high; above 1: none is."""


class ReaderScope(Section):
    """The declaration, with a linear classifier of questions: a class for each kind, and one for all else."""

    __hash__ = object.__hash__
    reader: str
    """As messages call it."""
    kinds: tuple[QuestionKind, ...]
    false_alarms: Rate
    """Wordings of questions of its kinds that the classifier, where it has not seen them, takes to be outside."""
    misses: Rate
    """Other questions, of subjects that it has not seen, that it takes to be of a kind."""
    confused: Rate | None = None
    """Of held-out right answers, those whose quote names another id than the question (`confused`): such an answer is
    taken to be "not found". None: not measured, so there is only a warning."""
    levels: dict[Level, Rate] = Field(default_factory=dict)
    """Right answers of each level of confidence, by bands that were chosen on other documents."""
    scale: float
    """Of one unit of the weights."""
    weights: str
    """`BUCKETS` + 1 rows, the last one is the bias, of a signed byte for each class, in Base64."""

    def kind(self, question: str) -> QuestionKind | None:
        """Return the kind of a question; None: it is outside of what the reader was trained for."""
        best = _classified(self, question)
        return self.kinds[best] if best < len(self.kinds) else None

    def outside(self, questions: Iterable[str]) -> list[str]:
        """Return those questions that the reader was not trained for."""
        return [question for question in dict.fromkeys(questions) if self.kind(question) is None]

    @property
    def mark(self) -> str:
        """What an answer to a question of no kind is marked with."""
        return f"outside what {self.reader} was trained for"

    def level(self, question: str, confidence: float) -> Level | None:
        """Return how far to trust an answer, by held-out answers to questions of its kind; of no kind: low.

        None: the kind was not measured.
        """
        kind = self.kind(question)
        if kind is None or confidence < kind.low_below:
            return "low"
        return None if kind.right is None else "high" if confidence >= kind.high_from else "medium"

    def unmeasured(self) -> "ReaderScope":
        """Return it for other weights that were trained on the same questions."""
        kinds = tuple(QuestionKind(name=kind.name, examples=kind.examples, form=kind.form) for kind in self.kinds)
        return self.model_copy(update={"kinds": kinds, "confused": None, "levels": {}})


@lru_cache(8)
def load_scope(folder: Path) -> ReaderScope | None:
    """Return the declaration of a model folder; None: it has none.

    Raises:
        ConfigError: it cannot be used.
    """
    path = folder / SCOPE_FILE
    if not path.is_file():
        return None
    try:
        scope = ReaderScope.model_validate_json(path.read_bytes())
        if len(b64decode(scope.weights)) != (BUCKETS + 1) * (len(scope.kinds) + 1):
            raise ValueError("weights have another number of classes than kinds + 1")
    except ValidationError as error:
        raise ConfigError(f"{path}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return scope


@lru_cache(4096)
def _classified(scope: ReaderScope, question: str) -> int:
    """Return the index of a question's kind, or the number of kinds."""
    classes = len(scope.kinds) + 1
    weights = memoryview(b64decode(scope.weights)).cast("b")
    scores = [float(value) for value in weights[BUCKETS * classes :]]
    for bucket, share in features(question).items():
        for i in range(classes):
            scores[i] += share * weights[bucket * classes + i]
    return max(range(classes), key=scores.__getitem__)


def features(question: str) -> dict[int, float]:
    """Return the hashed n-grams of a question, of Euclidean length 1: words, pairs of words, runs of 3 to 5 characters.

    Ids (gate-1, amber-otter) are all the same word, so that what counts is what is asked of them.
    """
    counts = Counter(crc32(gram.encode("utf-8", "surrogatepass")) % BUCKETS for gram in _grams(question))
    length = sum(count * count for count in counts.values()) ** 0.5
    return {bucket: count / length for bucket, count in counts.items()}


def _grams(question: str) -> Iterator[str]:
    words = ["^", *_WORD.findall(_ID.sub(" # ", question).casefold()), "$"]
    yield from words
    yield from (" ".join(pair) for pair in pairwise(words))
    for word in words:
        spaced = f"_{word}_"
        yield from (spaced[i : i + size] for size in _GRAMS for i in range(len(spaced) - size + 1))


def confused(question: str, quote: str) -> Iterator[tuple[str, str]]:
    """Yield ids that a question asks about and its answer's quote does not name, each with one that the quote names in
    its place: the same but for a number (gate-1, gate-2), or for a word where there is no number.

    A quote that has no such id says nothing: a right sentence often says "it", or stands under a heading.
    """
    rivals = [match[0] for match in _ID.finditer(quote)]
    for name in dict.fromkeys(match[0] for match in _ID.finditer(question)):
        if not locate(name, quote) and (near := next((rival for rival in rivals if _near(name, rival)), "")):
            yield name, near


def _near(name: str, other: str) -> bool:
    parts, others = _parts(name), _parts(other)
    if len(parts) != len(others):
        return False
    differing = [(a, b) for a, b in zip(parts, others, strict=True) if a != b]
    numbered = any(part.isnumeric() for part in parts)
    return len(differing) == 1 and all(part.isnumeric() == numbered for part in differing[0])


def _parts(name: str) -> list[str]:
    return [part if part.isnumeric() else part[:_STEM].casefold() for part in _PART.findall(name)]


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """What an answer comes to."""

    taken: bool
    """Whether it counts; else the reading ends with "not found"."""
    level: Level | None
    warnings: tuple[str, ...]


def check_answer(
    scope: ReaderScope | None,
    question: str,
    answer: str,
    evidence: Sequence[Evidence],
    confidence: float | None,
    earlier: str = "",
) -> CheckedAnswer:
    """Return how far to trust an answer, and what speaks against it.

    Its question is outside of what the reader was trained for; it does not hold what all answers to such questions
    hold, as a date a digit, or no quote says it word for word, or there is no quote; its quotes name something else
    that is called almost the same; or an earlier memory said otherwise (`earlier`, of
    `memagent.reading.evidence.contradicted`).
    """
    kind = scope.kind(question) if scope else None
    warnings = [scope.mark] if scope and kind is None else []
    misshapen = bool(answer and kind and kind.form and not regex.search(kind.form, answer))
    if misshapen and kind:
        warnings.append(f"it does not look like an answer to this kind of question: {kind.name}")
    miscopied = bool(kind and kind.form and evidence) and not any(one.verbatim for one in evidence)
    if miscopied:
        warnings.append("no quote has this number or date as it stands here")
    if answer and not any(one.quote for one in evidence):
        warnings.append("no sentence of the text says this, or supports it")
    others = [f"{near}, not {name}" for name, near in confused(question, "\n".join(one.quote for one in evidence))]
    taken = not others or scope is None or scope.confused is None
    if others:
        said = "the quote" if taken else f"{answer!r} was not taken as the answer: its quote"
        warnings.append(f"{said} names {'; '.join(others)}")
    if earlier:
        warnings.append(f"an earlier memory said otherwise: {earlier[:_SAID_CHARS]}")
    level = scope.level(question, confidence) if scope and confidence is not None else None
    return CheckedAnswer(taken, "low" if level and warnings else level, tuple(warnings))
