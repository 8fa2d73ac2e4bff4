"""Needles in a haystack: single, many keys, many values, many queries (niah_*)."""

import random
from collections.abc import Callable
from functools import partial

from memagent.evaluation.needles import SENTENCES, Needle, ask, make_needles
from memagent.evaluation.needles import needle as make_needle
from memagent.evaluation.ruler.haystack import Filler, Haystack, HaystackTexts, Lines, weave
from memagent.evaluation.ruler.kinds import Draft, DraftRequest, DrawnNames, Kind, MakeDraft, Meter, Numbers, Uuids


def needles(request: DraftRequest) -> MakeDraft:
    """Make needles among needles, or in a filler or texts, as the kind says."""
    return _lines(request) if request.kind.haystack == "needles" else _planted(request)


def _planted(request: DraftRequest) -> MakeDraft:
    """Plant needles between sentences: the asked one (one of them) at the depth, the others anywhere."""
    kind, length, meter = request.kind, request.length, Meter(request.tokenizer)
    texts = HaystackTexts(request.texts, request.tokenizer, length) if kind.haystack == "texts" else None
    filler = Filler(meter)

    def draft(index: int, rng: random.Random, depth: float) -> Draft:
        planted = _drawn(rng, kind, texts)
        # Where texts and needles meet, a token more may come than was counted: the text must not get too long.
        budget = length - length // 1000 - sum(meter(" " + needle.sentence) for needle in planted)
        haystack: Haystack = texts.close(rng, budget) if texts else filler
        count = haystack.within(budget)
        if count < 1:
            raise request.too_short()
        asked = kind.queries * kind.values
        places = [haystack.within(share * budget) for share in (depth, *(rng.random() for _ in planted[1:]))]
        inserts = [(position, needle.sentence) for position, needle in zip(places, planted, strict=True)]
        order = sorted(range(asked), key=places.__getitem__)
        return Draft(
            pieces=partial(weave, haystack, count, inserts),
            question=_question(planted[:asked]),
            answers=tuple(planted[i].value for i in range(asked)),
            match="all",
            facts=tuple(planted[i].sentence for i in order),
            depths=tuple(haystack.tokens(places[i]) / budget for i in order),
        )

    return draft


def _drawn(rng: random.Random, kind: Kind, texts: HaystackTexts | None) -> list[Needle]:
    """Return the needles, the asked ones first; no value stands in the haystack already."""
    while True:
        drawn = make_needles(rng, kind.value_kind, kind.keys)
        if kind.values > 1:
            # Only this wording says that there may be others of the same key.
            wording = SENTENCES[kind.value_kind][0]
            values = make_needles(rng, kind.value_kind, kind.values * kind.keys)
            drawn = [
                make_needle(rng, kind.value_kind, drawn[i // kind.values].key, value=other.value, wording=wording)
                for i, other in enumerate(values)
            ]
        if texts is None or not any(texts.holds(needle.value) for needle in drawn):
            return drawn


def _question(asked: list[Needle]) -> str:
    if len(asked) == 1:
        return asked[0].question
    keys = list(dict.fromkeys(needle.key for needle in asked))
    names = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    return f"Which {asked[0].kind}s belong to {names}? Give all of them."


def _lines(request: DraftRequest) -> MakeDraft:
    """Make every line a needle of another key, and ask for the one at the depth."""
    kind, length, meter = request.kind.value_kind, request.length, Meter(request.tokenizer)

    def draft(index: int, rng: random.Random, depth: float) -> Draft:
        wording = rng.choice(SENTENCES[kind])
        keys = Uuids(rng) if request.kind.key_kind == "uuid" else DrawnNames(rng)
        values = Uuids(rng) if kind == "uuid" else Numbers(rng)
        line = partial(_line, wording, keys, values)
        haystack = Lines(meter, line)
        count = haystack.within(length)
        if count < 1:
            raise request.too_short()
        asked = min(count - 1, haystack.within(depth * length))
        return Draft(
            pieces=partial(weave, haystack, count, ()),
            question=ask(rng, kind, keys(asked)),
            answers=(values(asked),),
            match="all",
            facts=(line(asked),),
            depths=(asked / count,),
            about={"needles": count},
        )

    return draft


def _line(wording: str, keys: Callable[[int], str], values: Callable[[int], str], i: int) -> str:
    return wording.format(key=keys(i), value=values(i))
