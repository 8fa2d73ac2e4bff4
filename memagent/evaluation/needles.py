"""Needles: sentences with a key and a value, planted in a text, and the questions that ask for them.

After RULER's needle tasks (NVIDIA/RULER, arXiv 2404.06654). Training, evaluation and the demo share this generator."""

import random
import re
import tomllib
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["number", "word", "uuid"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _wordings(name: str) -> dict[Kind, tuple[str, ...]]:
    return {kind: tuple(_DATA[name][kind]) for kind in KINDS}


SENTENCES = _wordings("sentences")
"""Wordings of needles; the note is what stands from the key to the end of the value."""
QUESTIONS = _wordings("questions")
"""Wordings of questions; any of them may ask for any needle of the kind."""
REWORDED = _wordings("reworded")
"""Wordings unseen in supervised training, like those of users. The last of each is in no training at all."""
ADJECTIVES: tuple[str, ...] = tuple(_DATA["words"]["adjectives"].split())
"""Adjectives of needle keys."""
NOUNS: tuple[str, ...] = tuple(_DATA["words"]["nouns"].split())
"""Nouns of needle keys, and the values of word needles."""
_ENDS = re.compile(r"\n[ \t\r]*\n\s*|[.!?][\"')\]\u201d\u2019]*\s+")


@dataclass(frozen=True, slots=True)
class Needle:
    """One planted fact."""

    kind: Kind
    key: str
    value: str
    sentence: str
    question: str
    note: str
    """The ideal note: the sentence from the key to the value, verbatim."""


def make_needles(
    rng: random.Random, kind: Kind, n: int, *, words: Sequence[str] = (), share: float = 0.3
) -> list[Needle]:
    """Make `n` needles of one kind with different keys and values, in the same wording.

    The same state of `rng` gives the same. Ask for the first, the others are distractors. `words` are further ones for
    keys and word values, beside the product's own; `share` says how often a key shares a word with the one before it.

    Raises:
        ValueError: more needles than different keys.
    """
    wording = rng.choice(SENTENCES[kind])
    needles: list[Needle] = []
    seen: set[str] = set()
    tries = 0
    while len(needles) < n:
        tries += 1
        if tries > 100 * n + 100:
            raise ValueError(f"{n} needles need more different keys than there are words")
        key = _key(rng, words, needles[-1].key if needles and rng.random() < share else "")
        value = _value(rng, kind, words)
        if key in seen or value in seen or value in key.split("-"):
            continue
        seen.update((key, value))
        needles.append(needle(rng, kind, key, value=value, wording=wording))
    return needles


def needle(rng: random.Random, kind: Kind, key: str, value: str, wording: str = "") -> Needle:
    """Word one needle; its question is worded at random."""
    wording = wording or rng.choice(SENTENCES[kind])
    sentence = wording.format(key=key, value=value)
    note = wording[wording.index("{key}") : wording.index("{value}") + len("{value}")]
    return Needle(
        kind, key, value, sentence=sentence, question=ask(rng, kind, key), note=note.format(key=key, value=value)
    )


def ask(rng: random.Random, kind: Kind, key: str) -> str:
    """Word a question for a key."""
    return rng.choice(QUESTIONS[kind]).format(key=key)


def plant(text: str, sentences: Sequence[str], rng: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """Put sentences into a text, each after the end of a sentence or paragraph; else at the text's start or end.

    Return the new text, and each sentence's (start, end) in it, in the order of `sentences`.
    """
    ends = [0, *(match.end() for match in _ENDS.finditer(text)), len(text)]
    places = sorted((_nearest(ends, rng.random() * len(text)), i) for i in range(len(sentences)))
    spans = [(0, 0)] * len(sentences)
    pieces: list[str] = []
    end = length = 0
    for cut, i in places:
        before = text[end:cut]
        if before:
            pieces.append(before)
            length += len(before)
        if pieces and not pieces[-1][-1:].isspace():
            pieces.append(" ")
            length += 1
        spans[i] = (length, length + len(sentences[i]))
        paragraph = text[:cut].rstrip(" \t").endswith("\n\n") and rng.random() < 0.3
        pieces.append(sentences[i] + ("\n\n" if paragraph else " "))
        length += len(pieces[-1])
        end = cut
    pieces.append(text[end:])
    return "".join(pieces), spans


def _nearest(ends: list[int], position: float) -> int:
    i = bisect_left(ends, position)
    near = ends[max(0, i - 1) : i + 1]
    return min(near, key=lambda end: abs(end - position))


def _key(rng: random.Random, words: Sequence[str], like: str) -> str:
    own = not words or rng.random() < 0.5
    first = rng.choice(ADJECTIVES) if own else rng.choice(words)
    second = rng.choice(NOUNS) if own else rng.choice(words)
    if like and "-" in like:
        left, _, right = like.partition("-")
        return f"{left}-{second}" if rng.random() < 0.5 else f"{first}-{right}"
    return f"{first}-{second}"


def _value(rng: random.Random, kind: Kind, words: Sequence[str]) -> str:
    if kind == "number":
        return str(rng.randrange(1_000_000, 10_000_000))
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return rng.choice(words) if words and rng.random() < 0.5 else rng.choice(NOUNS)
