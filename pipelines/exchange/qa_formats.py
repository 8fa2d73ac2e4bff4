"""The columns in which training rows go out: of verl and MemAgent, OpenRLHF, MemAgent's evaluation, and plain ones.

`memagent.tasks.records` reads them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memagent.curation import Qa, split_of

_JOIN = "\n\n"
_EXTRA = pa.struct(
    [
        ("index", pa.int64()),
        ("question", pa.string()),
        ("split", pa.string()),
        ("source", pa.string()),
        ("qa_id", pa.string()),
        ("documents", pa.list_(pa.string())),
        ("reading_id", pa.string()),
        ("policy_id", pa.string()),
        ("share", pa.float64()),
        ("pass_rate", pa.float64()),
    ]
)
_KEPT = ("source", "qa_id", "reading_id", "policy_id", "share", "pass_rate")
_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class ExportedRow:
    """A training row with its place in the file and its texts."""

    corpus: str
    index: int
    qa: Qa
    texts: Sequence[str]

    @property
    def context(self) -> str:
        """The texts as one."""
        return _JOIN.join(self.texts)


@dataclass(frozen=True, slots=True)
class QaFormat:
    """Columns, and how a row fills them."""

    schema: pa.Schema
    record: Callable[[ExportedRow], dict[str, Any]]


def _verl(row: ExportedRow) -> dict[str, Any]:
    extra = {name: getattr(row.qa, name) for name in _KEPT}
    extra |= {"index": row.index, "question": row.qa.question, "split": split_of(row.qa.documents)}
    return {
        "data_source": f"memagent/{row.corpus}",
        "prompt": [{"role": "user", "content": row.qa.question}],
        "context": row.context,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(row.qa.answers)},
        "extra_info": extra | {"documents": list(row.qa.documents)},
    }


def _openrlhf(row: ExportedRow) -> dict[str, Any]:
    return {
        "prompt": f"{row.context}{_JOIN}Question: {row.qa.question}",
        "label": row.qa.answers[0],
        "question": row.qa.question,
        "context": row.context,
        "answers": list(row.qa.answers),
    }


def _memagent(row: ExportedRow) -> dict[str, Any]:
    return {
        "index": row.index,
        "input": row.qa.question,
        "context": row.context,
        "answers": list(row.qa.answers),
        "num_docs": len(row.texts),
    }


def _own(row: ExportedRow) -> dict[str, Any]:
    return {
        "question": row.qa.question,
        "documents": list(row.texts),
        "answers": [answer for answer in row.qa.answers if answer],
        "split": split_of(row.qa.documents),
        "source": row.qa.source,
    }


FORMATS: dict[str, QaFormat] = {
    "verl": QaFormat(
        pa.schema(
            [
                ("data_source", pa.string()),
                ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
                ("context", pa.large_string()),
                ("ability", pa.string()),
                ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", _TEXTS)])),
                ("extra_info", _EXTRA),
            ]
        ),
        _verl,
    ),
    "openrlhf": QaFormat(
        pa.schema(
            [
                ("prompt", pa.large_string()),
                ("label", pa.string()),
                ("question", pa.string()),
                ("context", pa.large_string()),
                ("answers", _TEXTS),
            ]
        ),
        _openrlhf,
    ),
    "memagent": QaFormat(
        pa.schema(
            [
                ("index", pa.int64()),
                ("input", pa.string()),
                ("context", pa.large_string()),
                ("answers", _TEXTS),
                ("num_docs", pa.int64()),
            ]
        ),
        _memagent,
    ),
    "own": QaFormat(
        pa.schema(
            [
                ("question", pa.string()),
                ("documents", pa.list_(pa.large_string())),
                ("answers", _TEXTS),
                ("split", pa.string()),
                ("source", pa.string()),
            ]
        ),
        _own,
    ),
}
"""By the names of `memagent.tasks.records.FORMATS`."""
