"""What the store remembers of a corpus: its sources and its standing questions, for nightly digests."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from infra.store import Store
from memagent.errors import UsageError
from memagent.records import Question

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(corpus: str) -> str:
    """Return the name; it becomes part of paths, so it must be a plain word.

    Raises:
        UsageError: it is not.
    """
    if not _NAME.fullmatch(corpus):
        raise UsageError(f"corpus name {corpus!r}: use letters, digits, '.', '_' and '-' (at most 64), as in contracts")
    return corpus


def remember(
    store: Store, corpus: str, *, sources: Sequence[str] = (), questions: Sequence[Question] | None = None
) -> None:
    """Add sources of a corpus, or set its standing questions."""
    known = _load(store, corpus)
    known["sources"] = list(dict.fromkeys([*known.get("sources", []), *sources]))
    if questions is not None:
        known["questions"] = [asdict(question) for question in questions]
    store.write_bytes(json.dumps(known, indent=1).encode(), "corpora", f"{corpus}.json")


def sources_of(store: Store, corpus: str) -> list[str]:
    """Return the sources that the corpus was ingested from."""
    return list(_load(store, corpus).get("sources", []))


def standing_questions(store: Store, corpus: str) -> list[Question]:
    """Return the corpus's standing questions."""
    rows = _load(store, corpus).get("questions", [])
    return [
        Question(
            row["question_id"],
            row["text"],
            tuple(row["documents"]),
            tuple(row["answers"]) if row["answers"] is not None else None,
        )
        for row in rows
    ]


def corpora(store: Store) -> list[str]:
    """Return the names of all corpora."""
    return [path.rsplit("/", 1)[-1].removesuffix(".json") for path in store.list("corpora", suffix=".json")]


def _load(store: Store, corpus: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(store.read_bytes("corpora", f"{check_name(corpus)}.json"))
    except FileNotFoundError:
        return {}
    return data
