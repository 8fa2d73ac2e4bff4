"""The thirteen tasks of RULER (NVIDIA/RULER, arXiv 2404.06654), at any length, in the product's own wording.

Samples of its kinds are made here, and written as files in RULER's format.
"""

import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.ruler.kinds import FAMILIES, KINDS, Asked, DraftRequest, Kind, MakeDraft, find_kind
from memagent.evaluation.texts import Paragraph, Sample
from memagent.records import stable_hash

__all__ = ["KINDS", "Asked", "DraftRequest", "Kind", "Paragraph", "find_kind", "make_samples", "write_jsonl"]
_GOLDEN = (5**0.5 - 1) / 2


def make_samples(request: DraftRequest, n: int, *, seed: int) -> Iterator[Sample]:
    """Make `n` samples of a kind.

    Sample i is decided by seed, kind, length (or documents), its number, and the texts given, never by `n`. Depths of
    the asked needle fill 0 to 1 evenly, however many samples are made. Texts are made while they are read.

    Raises:
        UsageError: the kind cannot be made of what was given.
    """
    name, length, documents = request.kind.name, request.length, request.documents
    if documents is not None and request.kind.family != "documents":
        raise UsageError(f"{name} has a length, no number of documents: only qa_1 and qa_2 have.")
    if (length > 0) == (documents is not None):
        raise UsageError(f"give {name} either a length above 0 or, with length 0, a number of documents.")
    make = FAMILIES.find(request.kind.family)(request)
    return (_sample(request, seed, index, make) for index in range(n))


def _sample(request: DraftRequest, seed: int, index: int, make: MakeDraft) -> Sample:
    kind, identity = request.kind.name, (seed, request.kind.name, request.length, request.documents)
    # Steps of the golden ratio: any number of samples is spread evenly over 0 to 1, and no two depths are the same.
    start = random.Random(stable_hash("ruler depths", *identity)).random()
    rng = random.Random(stable_hash("ruler", *identity, index))
    draft = make(index, rng, (start + index * _GOLDEN) % 1.0)
    size = f"{request.documents}d" if request.documents is not None else str(request.length)
    return Sample(
        sample_id=f"{kind}-{size}-s{seed}-{index:04d}",
        task=kind,
        length=request.length,
        pieces=draft.pieces,
        question=draft.question,
        answers=draft.answers,
        match=draft.match,
        facts=draft.facts,
        depth=draft.depths[0] if draft.depths else None,
        about=draft.about | ({"depths": list(draft.depths)} if len(draft.depths) > 1 else {}),
    )


_BETWEEN = "\n\n"
_AS_THEY_ARE = ("length", "sample_id", "task", "question", "match", "facts", "depth", "about")


def write_jsonl(samples: Iterable[Sample], path: Path) -> int:
    """Write samples, a line each, and return how many; `path` appears whole or not at all.

    ``input`` is the text and the question below it; ``text_end`` says where in it the text ends, in characters.
    Texts are written piece by piece.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with aside.open("w", encoding="ascii", newline="\n") as file:
            for count, sample in enumerate(samples, 1):
                file.writelines(_line(count - 1, sample))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return count


def _line(index: int, sample: Sample) -> Iterator[str]:
    head = {"index": index, "outputs": sample.answers, **{name: getattr(sample, name) for name in _AS_THEY_ARE}}
    yield json.dumps(head)[:-1] + ', "input": "'
    end = 0
    for piece in sample.pieces():
        end += len(piece)
        yield json.dumps(piece)[1:-1]
    yield json.dumps(_BETWEEN + sample.question)[1:] + f', "text_end": {end}}}\n'
