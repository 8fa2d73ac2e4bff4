"""Documents of so many segments with needles planted in them: the tasks that the bundled reader learns from."""

import random
from collections.abc import Sequence

from memagent.segmenting import segments
from memagent.tasks.needles import Kind, make_needles, plant
from memagent.tasks.sample import Sample
from memagent.tokens import Tokenizer

_CHARS_A_TOKEN = 4.5
"""Of filler, at most: enough of it is taken, and then cut to the length that is asked for."""
_NOTHING = 1 / 6
"""Share of the documents that do not hold what is asked for."""


def planted_sample(
    rng: random.Random,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    kind: Kind,
    length: int,
    size: int,
    wordings: Sequence[str] = (),
) -> Sample:
    """Make a document of `length` segments of `size` tokens, with needles of which one is asked for.

    Args:
        rng: source of all choices.
        texts: what it is filled with.
        tokenizer: what cuts it.
        kind: of the needles.
        length: in segments.
        size: of a segment, in tokens.
        wordings: of the question, with ``{key}``; else one of the usual ones.

    Returns:
        The sample; one in six has nothing to find (its answer is empty).
    """
    text = ""
    while len(text) < length * size * _CHARS_A_TOKEN:
        text += rng.choice(texts)[:20_000] + "\n\n"
    needles = make_needles(rng, kind, 2 + length // 2 + rng.randint(0, 2))
    found = rng.random() >= _NOTHING
    planted = needles if found else needles[1:]
    cut = list(segments("", text, tokenizer, size))
    room = cut[min(length, len(cut)) - 1].char_end - sum(len(needle.sentence) + 1 for needle in planted)
    text, _ = plant(text[: max(0, room)], [needle.sentence for needle in planted], rng)
    answer = needles[0].value if found else ""
    group = f"{kind} {length}" + ("" if found else " none")
    question = rng.choice(wordings).format(key=needles[0].key) if wordings else needles[0].question
    return Sample("", group, 0, lambda: iter((text,)), question, (answer,), "all", (answer,) if answer else ())
