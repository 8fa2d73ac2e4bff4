"""Samples and scores of a task of lm-evaluation-harness. `examples.lm_eval_harness` copies this file there.

The copy has the metrics of ``memagent evaluate`` in place of their import, so that it needs nothing of memagent.
"""

import json
from pathlib import Path
from typing import Any

from memagent.evaluation.metrics import MATCHES, normalise

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
    """Return the score of an answer against the gold texts, by the sample's way of matching.

    Raises ValueError: it needs more than the gold texts.
    """
    if not any(gold):
        return float(not answer.strip())
    if match not in MATCHES:
        raise ValueError(f"no way of matching is called {match!r}")
    return MATCHES[match](answer, gold)
