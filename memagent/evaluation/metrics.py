"""Scores of answers against gold, as published.

Sources: SQuAD (arXiv 1606.05250: normalisation, exact match, F1), RULER (arXiv 2404.06654: string_match_all,
string_match_part), LongBench (arXiv 2308.14508: qa_f1). Values are in 0..1, where papers give percent. A failed reading
counts as a wrong prediction in every average.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from memagent.evaluation.stats import Score, mean

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case, drop punctuation and articles, fold white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals a gold answer after normalisation."""
    return float(any(normalise(prediction) == normalise(answer) for answer in gold))


def containment(prediction: str, gold: Sequence[str]) -> float:
    """Return 1.0 if a gold answer is in the prediction as whole words (never the other way round)."""
    words = f" {normalise(prediction)} "
    return float(any(_holds(words, normalise(answer)) for answer in gold))


def f1(prediction: str, gold: Sequence[str]) -> float:
    """Return the best token F1 over the gold answers."""
    return max((_f1(normalise(prediction).split(), normalise(answer).split()) for answer in gold), default=0.0)


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


def qa_f1(prediction: str, gold: Sequence[str]) -> float:
    """Return LongBench's F1: tokens after normalisation, best of the answers.

    It differs from `f1` where nothing is left after normalisation ("the" for "the"): no common token, so 0.
    LongBench has no blank gold; here it is matched by a blank prediction alone.
    """
    return max((_token_f1(prediction, answer) for answer in gold), default=0.0)


JUDGEMENTS = frozenset({"yes", "no"})
"""Answers that are no words of the text."""
Metric = Callable[[str, Sequence[str]], float]

METRICS: dict[str, Metric] = {
    "exact match": exact_match,
    "containment": containment,
    "f1": f1,
}
MATCHES: dict[str, Metric] = {"all": string_match_all, "part": string_match_part, "f1": qa_f1, "exact": exact_match}
"""The metric of each `match` of a sample, except "contract" (see `memagent.evaluation.contract_match`)."""


def score(
    pairs: Iterable[tuple[str | None, Sequence[str]]], metrics: Mapping[str, Metric] | None = None
) -> list[Score]:
    """Score (prediction, gold) pairs by every metric of `metrics` (usually `METRICS`).

    A prediction of None is a failure and counts 0. Gold of one empty text means that the answer is not in the
    documents: only the empty prediction ("not found") is right.
    """
    known = list(pairs)
    result = []
    for name, metric in (METRICS if metrics is None else metrics).items():
        values = [0.0 if prediction is None else metric(prediction, gold) for prediction, gold in known]
        result.append(mean(name, values))
    return result


def _within(prediction: str, answer: str) -> bool:
    return answer.lower() in prediction.lower() if answer.strip() else not prediction.strip()


def _token_f1(prediction: str, answer: str) -> float:
    if not answer.strip():
        return float(not prediction.strip())
    predicted, expected = normalise(prediction).split(), normalise(answer).split()
    return _f1(predicted, expected) if predicted and expected else 0.0


def _holds(words: str, answer: str) -> bool:
    return f" {answer} " in words if answer else not words.strip()


def _f1(prediction: list[str], gold: list[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    common = sum((Counter(prediction) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(gold)
    return 2 * precision * recall / (precision + recall)
