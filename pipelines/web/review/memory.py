"""How the memory of a reading changed, as differences that a page can show."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from infra.store import Corpus
from infra.tables.turns import turn_table
from memagent.engine import CUT
from memagent.records import TurnKind
from pipelines.exchange.answers import rounded
from pipelines.formatting import plain
from pipelines.memory_diff import DiffPassage, difference

MOST = 60
"""Changes on a page."""
_COLUMNS = [
    *("reading_id", "span", "step", "kind", "content_hash", "segment_index", "memory", "changed", "finish_reason"),
    "confidence",
]


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """A conversation after which the memory was another one."""

    segment: int
    """Of the document, from 1; 0: where spans were merged."""
    span: int
    content_hash: str
    carried: bool
    """Carried over from an earlier version of the document."""
    cut: bool
    """Whether the limit of tokens ended it."""
    parts: list[DiffPassage]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The conversation in which a reader was least sure."""

    kind: Literal["update", "merge", "answer"]
    segment: int
    """As of a `Change`."""
    confidence: float


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a memory, the first ones if there are very many."""

    changes: list[MemoryStep]
    segments: int
    """That were read."""
    left_out: int
    doubt: Doubt | None
    """None: it is not known, or there was none."""


class _Turn(TypedDict):
    span: int
    step: int
    kind: TurnKind
    content_hash: str
    segment_index: int
    memory: str
    changed: bool
    finish_reason: str
    confidence: float | None


def history(corpus: Corpus, reading_id: str, run_id: str) -> History:
    """Return how the memory of a reading changed, from the turn log: of its own run, or of all where it was resumed."""
    turns: list[_Turn] = turn_table(corpus, [reading_id], _COLUMNS, runs=[run_id]).to_pylist()
    if not any(turn["step"] == 0 for turn in turns):
        turns = turn_table(corpus, [reading_id], _COLUMNS).to_pylist()
    order = sorted(turns, key=lambda turn: (turn["kind"] == "merge", turn["span"], turn["step"]))
    memories: dict[int, str] = defaultdict(str)
    changes: list[MemoryStep] = []
    for turn in order:
        if not turn["changed"] or turn["kind"] == "answer":
            continue
        after = plain(turn["memory"])
        parts = difference(memories[turn["span"]], after)
        memories[turn["span"]] = after
        changes.append(
            MemoryStep(
                segment=_segment(turn),
                span=turn["span"],
                content_hash=turn["content_hash"],
                carried=turn["kind"] == "carried",
                cut=turn["finish_reason"] in CUT,
                parts=parts,
            )
        )
    read = sum(turn["kind"] in ("update", "carried") for turn in turns)
    return History(changes[:MOST], read, max(0, len(changes) - MOST), _doubt(order))


def _segment(turn: _Turn) -> int:
    return turn["segment_index"] + 1 if turn["kind"] in ("update", "carried") else 0


def _doubt(turns: Sequence[_Turn]) -> Doubt | None:
    """Return the doubt of a reading's turns, in order: the first that has the lowest of the lowest so far."""
    known = [(sure, turn) for turn in turns if (sure := rounded(turn["confidence"])) is not None]
    if len(known) < len(turns) or not known:
        return None
    confidence, turn = min(known, key=lambda one: (one[0], one[1]["kind"] == "answer"))
    kind = "update" if turn["kind"] == "carried" else turn["kind"]
    return Doubt(kind, _segment(turn), confidence) if confidence < 1 else None
