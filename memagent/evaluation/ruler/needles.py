"""Needles in a haystack: single, many keys, many values, many queries (niah_*)."""

import random
from collections.abc import Callable, Iterable
from functools import partial

from memagent.errors import UsageError
from memagent.evaluation import needles
from memagent.evaluation.ruler.haystack import Filler, Haystack, HaystackTexts, Lines, weave
from memagent.evaluation.ruler.kinds import Draft, DraftRequest, DrawnNames, Kind, MakeDraft, Meter, Numbers, Uuids
from memagent.reading.tokens import Tokenizer

_PLURAL = {"number": "numbers", "word": "words", "uuid": "uuids"}


class Planted:
    """Needles between the sentences of a filler or of real text."""

    def __init__(self, kind: Kind, length: int, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        """Prepare the haystack for texts of `length` tokens."""
        self._kind = kind
        self._length = length
        self._meter = Meter(tokenizer)
        self._texts = HaystackTexts(texts, tokenizer, length) if kind.haystack == "texts" else None
        self._filler = Filler(self._meter)

    def draft(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make a sample whose asked needle (one of them) stands at `depth`, the others anywhere."""
        planted = self._needles(rng)
        # Where texts and needles meet, a token more may come than was counted: the text must not get too long.
        budget = self._length - self._length // 1000 - sum(self._meter(" " + needle.sentence) for needle in planted)
        haystack: Haystack = self._texts.close(rng, budget) if self._texts else self._filler
        count = haystack.within(budget)
        if count < 1:
            raise UsageError(f"{self._kind.name} does not fit into {self._length} tokens: ask for a greater length.")
        asked = self._kind.queries * self._kind.values
        places = [haystack.within(share * budget) for share in (depth, *(rng.random() for _ in planted[1:]))]
        inserts = [(position, needle.sentence) for position, needle in zip(places, planted, strict=True)]
        order = sorted(range(asked), key=places.__getitem__)
        return Draft(
            pieces=partial(weave, haystack, count, inserts),
            question=self._question(planted[:asked]),
            answers=tuple(planted[i].value for i in range(asked)),
            match="all",
            facts=tuple(planted[i].sentence for i in order),
            depths=tuple(haystack.tokens(places[i]) / budget for i in order),
        )

    def _needles(self, rng: random.Random) -> list[needles.Needle]:
        """Return the needles, the asked ones first; no value stands in the haystack already."""
        kind = self._kind
        while True:
            drawn = needles.make_needles(rng, kind.value_kind, kind.keys)
            if kind.values > 1:
                # Only this wording says that there may be others of the same key.
                wording = needles.SENTENCES[kind.value_kind][0]
                values = needles.make_needles(rng, kind.value_kind, kind.values * kind.keys)
                drawn = [
                    needles.needle(
                        rng, kind.value_kind, drawn[i // kind.values].key, value=other.value, wording=wording
                    )
                    for i, other in enumerate(values)
                ]
            texts = self._texts
            if texts is None or not any(texts.holds(needle.value) for needle in drawn):
                return drawn

    def _question(self, asked: list[needles.Needle]) -> str:
        if len(asked) == 1:
            return asked[0].question
        keys = list(dict.fromkeys(needle.key for needle in asked))
        names = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
        return f"Which {_PLURAL[self._kind.value_kind]} belong to {names}? Give all of them."


class NeedleLines:
    """Every line is a needle of another key; one is asked for."""

    def __init__(self, kind: Kind, length: int, tokenizer: Tokenizer) -> None:
        """Prepare for texts of `length` tokens."""
        self._kind = kind
        self._length = length
        self._meter = Meter(tokenizer)

    def draft(self, index: int, rng: random.Random, depth: float) -> Draft:
        """Make a sample whose asked line stands at `depth`."""
        kind = self._kind.value_kind
        wording = rng.choice(needles.SENTENCES[kind])
        keys = Uuids(rng) if self._kind.key_kind == "uuid" else DrawnNames(rng)
        values = Uuids(rng) if kind == "uuid" else Numbers(rng)
        line = partial(_line, wording, keys, values)
        haystack = Lines(self._meter, line)
        count = haystack.within(self._length)
        if count < 1:
            raise UsageError(f"{self._kind.name} does not fit into {self._length} tokens: ask for a greater length.")
        asked = min(count - 1, haystack.within(depth * self._length))
        return Draft(
            pieces=partial(weave, haystack, count, ()),
            question=needles.ask(rng, kind, keys(asked)),
            answers=(values(asked),),
            match="all",
            facts=(line(asked),),
            depths=(asked / count,),
            about={"needles": count},
        )


def drafts(request: DraftRequest) -> MakeDraft:
    """Make needles among needles, or in a filler or texts, as the kind says."""
    if request.kind.haystack == "needles":
        return NeedleLines(request.kind, request.length, request.tokenizer).draft
    return Planted(request.kind, request.length, request.tokenizer, request.texts).draft


def _line(wording: str, keys: Callable[[int], str], values: Callable[[int], str], i: int) -> str:
    return wording.format(key=keys(i), value=values(i))
