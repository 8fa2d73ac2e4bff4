"""How the memory of a reading came about, from the turn log."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from infra.store import Corpus, Store
from infra.tables.turns import turn_table
from memagent.engine import CUT
from memagent.evidence import locate
from memagent.lanes import spans
from pipelines.report.data import Row, Run

_COLUMNS = [
    "reading_id",
    "lane",
    "step",
    "kind",
    "content_hash",
    "segment_index",
    "memory",
    "changed",
    "prompt_tokens",
    "cached_tokens",
    "finish_reason",
    "seconds",
]
_NOTED_MOST = 3
_NOTED_CHARS = 8
"""A shorter piece of a memory stands in a segment by chance."""


def timelines(store: Store, run: Run, rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return, per reading_id, the strip of its segments and the changes of its memory.

    ``strip`` has one letter per segment of the stream: ``u`` read and unchanged, ``c`` changed, ``k`` and
    ``C`` the same but carried over from an earlier version of the document, ``n`` not read.
    ``changes`` are the turns that changed the memory, in order; ``memory`` in them is packed, see `pack`.
    """
    by_reading = {row.reading_id: row for row in rows}
    turns: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn in turn_table(Corpus(store, run.corpus), by_reading, _COLUMNS).to_pylist():
        turns[turn["reading_id"]].append(turn)
    return {reading_id: _timeline(by_reading[reading_id], logged) for reading_id, logged in turns.items()}


def pack(before: str, after: str) -> list[Any]:
    """Write a memory as what it keeps of the one before: [head, tail, the text between].

    `head` and `tail` count UTF-16 units, as the browser does.
    """
    head = _shared(before, after)
    room = min(len(before), len(after)) - head
    tail = _shared(before[::-1][:room], after[::-1][:room])
    return [_units(after[:head]), _units(after[len(after) - tail :]), after[head : len(after) - tail]]


def noted(before: str, after: str, text: str) -> list[tuple[int, int]]:
    """Return the places of a segment's text that a memory took up word by word, longest first."""
    old = set(_lines(before))
    places = []
    for line in sorted((line for line in _lines(after) if line not in old), key=len, reverse=True):
        if len(line) >= _NOTED_CHARS and (place := locate(line, text)):
            places.append(place)
        if len(places) == _NOTED_MOST:
            break
    return places


def _lines(memory: str) -> list[str]:
    parts = re.split(r"\n|(?<=[.;])\s+", memory)
    return [line for part in parts if (line := part.strip(" \t\r-*•.;"))]


def _shared(a: str, b: str) -> int:
    """Return the length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _timeline(row: Row, turns: list[dict[str, Any]]) -> dict[str, Any]:
    reads = [turn for turn in turns if turn["kind"] in ("update", "carried")]
    merges = [turn for turn in turns if turn["kind"] == "merge"]
    lanes = merges[0]["lane"] if merges else 1 + max((turn["lane"] for turn in reads), default=0)
    length = max([row.plan["segments"] or 0, *(turn["step"] + 1 for turn in reads if lanes == 1)])
    starts = [span.start for span in spans(length, lanes)]
    strip = ["n"] * length
    carried = (row.answer or row.plan)["carried_segments"] or 0
    strip[:carried] = "k" * min(length, carried)
    memories: dict[int, str] = defaultdict(str)
    changes = []
    for turn in [*reads, *merges]:
        position = starts[turn["lane"]] + turn["step"] if turn["kind"] != "merge" and turn["lane"] < len(starts) else -1
        if 0 <= position < length:
            strip[position] = _mark(turn)
        if turn["changed"]:
            changes.append(_change(turn, position, memories[turn["lane"]]))
            memories[turn["lane"]] = turn["memory"]
    ends = [turn["finish_reason"] for turn in turns if turn["kind"] == "answer"]
    return {"strip": "".join(strip), "changes": changes, "cut": ends[-1] if ends and ends[-1] in CUT else ""}


def _mark(turn: dict[str, Any]) -> str:
    if turn["kind"] == "carried":
        return "C" if turn["changed"] else "k"
    return "c" if turn["changed"] else "r" if turn["finish_reason"] == "repetition" else "u"


def _change(turn: dict[str, Any], position: int, before: str) -> dict[str, Any]:
    return {
        "kind": turn["kind"],
        "position": position,
        "lane": turn["lane"],
        "document": turn["content_hash"],
        "segment": turn["segment_index"],
        "memory": pack(before, turn["memory"]),
        "cut": turn["finish_reason"] in CUT,
        "prompt": turn["prompt_tokens"],
        "cached": turn["cached_tokens"],
        "seconds": round(turn["seconds"], 3),
    }


def unpack(changes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the memories before and after each change."""
    memories: dict[int, str] = defaultdict(str)
    result = []
    for change in changes:
        before = memories[change["lane"]]
        units = before.encode("utf-16-le", "surrogatepass")
        head, tail, between = change["memory"]
        kept = units[: 2 * head].decode("utf-16-le"), units[len(units) - 2 * tail :].decode("utf-16-le")
        after = kept[0] + between + kept[1]
        memories[change["lane"]] = after
        result.append((before, after))
    return result
