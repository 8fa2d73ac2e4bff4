"""The samples of an evaluation's report: question, gold, answer, and the memory as it changed.

Texts of documents and models are clipped, and memories get a share of the page's size: the report of the run, of which
the page names the command, has them in full.
"""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from infra.store import Corpus
from infra.tables.rows import ResultRow
from infra.tables.turns import resume_points
from memagent.records import Turn
from pipelines.formatting import plain
from pipelines.memory_diff import DiffPassage, difference

_READINGS_AT_ONCE = 20
_ROOM = 8 * 2**20
"""Characters of all memories of a page."""
_CHANGES_MOST = 24
"""Most changes of a memory that are shown of one sample."""
_TEXT_CHARS = 4_000


class SampleChange(TypedDict):
    """A turn that changed the memory."""

    where: str
    pieces: list[DiffPassage]


class ShownMemory(TypedDict):
    """How the memory of a reading changed."""

    changes: list[SampleChange]
    left_out: int
    """Changes that are not among them."""


class ShownSample(TypedDict):
    """A sample as the template shows it."""

    anchor: str
    sample_id: str
    wrong: bool
    cause: str
    """Why the answer is wrong; of a right one, "right"."""
    question: str
    gold: list[str]
    answer: str
    score: str
    facts: str
    memory: ShownMemory | None
    """None: the log has none, or the page has no room left for it."""


def shown_samples(corpus: Corpus, rows: Sequence[ResultRow], most: int) -> list[ShownSample]:
    """Return at most `most` samples, wrong ones first, each with its memory as long as there is room."""
    wrong_first = sorted(enumerate(rows, 1), key=lambda numbered: not numbered[1]["failure"])[:most]
    samples: list[ShownSample] = []
    room = _ROOM
    for start in range(0, len(wrong_first), _READINGS_AT_ONCE):
        batch = wrong_first[start : start + _READINGS_AT_ONCE]
        logs = resume_points(corpus, {row["reading_id"] for _, row in batch}) if room > 0 else {}
        for number, row in batch:
            memory = _memory(logs[row["reading_id"]], row["lost_step"]) if row["reading_id"] in logs else None
            room -= _size(memory)
            samples.append(_sample(number, row, memory if room > 0 else None))
    return samples


def memory_changes(turns: Sequence[Turn]) -> Iterator[SampleChange]:
    """Yield what each turn changed in the memory of its span; `turns` are those that changed it, in order."""
    memories: dict[int, str] = {}
    for turn in turns:
        memory = plain(turn.memory)
        yield {"where": _where(turn), "pieces": difference(memories.get(turn.span, ""), memory)}
        memories[turn.span] = memory


def _memory(turns: Sequence[Turn], lost_step: int | None) -> ShownMemory:
    """Return how a memory changed; of many changes those around the one that lost the answer, else the last ones."""
    changing = [turn for turn in turns if turn.changed and turn.kind != "answer"]
    changes = list(memory_changes(changing))
    lost = next((i for i, turn in enumerate(changing) if turn.step == lost_step), len(changing))
    start = max(0, min(lost - _CHANGES_MOST // 2, len(changing) - _CHANGES_MOST))
    shown = changes[start : start + _CHANGES_MOST]
    return {"changes": shown, "left_out": len(changes) - len(shown)}


def _size(memory: ShownMemory | None) -> int:
    changes = memory["changes"] if memory else []
    return sum(len(piece.text) for change in changes for piece in change["pieces"])


def _where(turn: Turn) -> str:
    if turn.kind == "merge":
        return "The memories of the spans are put together"
    span = f", span {turn.span + 1}" if turn.span else ""
    return f"Segment {turn.segment_index + 1:,}{span}" + (", carried over" if turn.kind == "carried" else "")


def _sample(number: int, row: ResultRow, memory: ShownMemory | None) -> ShownSample:
    answer = "(failed)" if row["answer"] is None else row["answer"] or "not found"
    lost = f", at segment {row['lost_segment'] + 1:,}" if row["lost_segment"] is not None else ""
    return {
        "anchor": f"sample-{number}",
        "sample_id": plain(row["sample_id"]),
        "wrong": bool(row["failure"]),
        "cause": f"{row['failure']}{lost}" if row["failure"] else "right",
        "question": plain(row["question"])[:_TEXT_CHARS],
        "gold": [plain(gold)[:_TEXT_CHARS] or "not in the text" for gold in row["gold"]],
        "answer": plain(answer)[:_TEXT_CHARS],
        "score": f"{row['score']:.2f}",
        "facts": " · ".join(_facts(row)),
        "memory": memory,
    }


def _facts(row: ResultRow) -> Iterator[str]:
    yield row["task"]
    if row["length"]:
        yield f"{row['length']:,} tokens of text"
    if row["depth"] is not None:
        yield f"the fact at {row['depth']:.0%}"
    if row["segments"]:
        yield f"{row['segments']:,} segments"
    if row["tokens"]:
        yield f"{row['tokens']:,} tokens read and written"
    yield f"reading {row['reading_id']}"
