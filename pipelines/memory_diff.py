"""A memory beside the one before it: what came, what went, what stayed."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_KEPT_CHARS = 60
"""That are shown of a passage that stayed, at each of its ends."""


@dataclass(frozen=True, slots=True)
class DiffPassage:
    """A stretch of a memory."""

    kind: Literal["same", "added", "removed"]
    text: str


def difference(before: str, after: str) -> list[DiffPassage]:
    """Return `after` with what was added to `before` and removed from it; what stays the same is shortened."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    parts: list[DiffPassage] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(DiffPassage("same", "".join(new[c:d])))
            continue
        if b > a:
            parts.append(DiffPassage("removed", "".join(old[a:b])))
        if d > c:
            parts.append(DiffPassage("added", "".join(new[c:d])))
    joined = [DiffPassage(kind, "".join(part.text for part in group)) for kind, group in groupby(parts, _kind)]
    return [_shortened(part) for part in joined]


def _kind(part: DiffPassage) -> Literal["same", "added", "removed"]:
    return part.kind


def _shortened(part: DiffPassage) -> DiffPassage:
    if part.kind != "same" or len(part.text) <= 3 * _KEPT_CHARS:
        return part
    return DiffPassage("same", f"{part.text[:_KEPT_CHARS]} … {part.text[-_KEPT_CHARS:]}")
