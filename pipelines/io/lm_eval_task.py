"""Samples and scores of a task of lm-evaluation-harness. `memagent evaluate --lm-eval FOLDER` copies this file there.

It needs nothing of memagent. Scores are those of ``memagent evaluate``: RULER's string_match_all and string_match_part
(arXiv 2404.06654), LongBench's F1 (arXiv 2308.14508) and exact match after SQuAD's normalisation (arXiv 1606.05250).
"""

import json
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NOT_FOUND = "not found"


def load(file: str, **_: object) -> dict[str, Any]:
    """Return the samples of a file beside this one, as the split ``test``."""
    import datasets

    rows = []
    with (Path(__file__).parent / file).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows.append(
                {
                    "sample_id": row["sample_id"],
                    "text": row["input"][: row["text_end"]],
                    "question": row["question"],
                    "answers": row["outputs"],
                    "match": row["match"],
                }
            )
    return {"test": datasets.Dataset.from_list(rows)}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return the score of an answer, 0 to 1; where the text does not say, only "not found" is right."""
    answer = "" if normalise(results[0]) == _NOT_FOUND else results[0]
    return {"score": score(answer, doc["answers"], doc["match"])}


def score(answer: str, gold: list[str], match: str) -> float:
    """Return the score of an answer against the gold texts, by the sample's way of matching."""
    if not any(gold):
        return float(not answer.strip())
    if match == "all":
        return sum(_within(answer, text) for text in gold) / len(gold)
    if match == "part":
        return float(any(_within(answer, text) for text in gold))
    if match == "exact":
        return float(any(normalise(answer) == normalise(text) for text in gold))
    if match == "f1":
        return max(_f1(answer, text) for text in gold)
    raise ValueError(f"no way of matching is called {match!r}")


def normalise(text: str) -> str:
    """Lower-case, drop punctuation and articles, fold white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _within(answer: str, gold: str) -> bool:
    return gold.lower() in answer.lower() if gold.strip() else not answer.strip()


def _f1(answer: str, gold: str) -> float:
    if not gold.strip():
        return float(not answer.strip())
    given, expected = normalise(answer).split(), normalise(gold).split()
    common = sum((Counter(given) & Counter(expected)).values())
    return 2 * common / (len(given) + len(expected)) if common else 0.0
