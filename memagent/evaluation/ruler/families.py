"""Families of made texts: needles in a haystack (niah_*), variable tracking (vt), and counted words (cwe, fwe)."""

import random
import string
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import repeat

from memagent.evaluation.needles import SENTENCES, Needle, ask, make_needles
from memagent.evaluation.needles import needle as make_needle
from memagent.evaluation.ruler.haystack import FILLER, Filler, Haystack, HaystackTexts, Lines, weave
from memagent.evaluation.ruler.kinds import (
    Draft,
    DraftRequest,
    DrawnNames,
    Kind,
    MakeDraft,
    Meter,
    Numbers,
    Uuids,
    name_meter,
)


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


_LETTERS = 6
_NOISE = "......"
"""The first rank of coded words, which is not asked for."""
_AT_ONCE = 256
_NUMBERS = {3: "three", 10: "ten"}


def common_words(request: DraftRequest) -> MakeDraft:
    """Make lists, a word a line: the asked words stand in it `often` times, all others `seldom` times."""
    kind, cost = request.kind, name_meter(Meter(request.tokenizer, "amber"))

    def draft(index: int, rng: random.Random, depth: float) -> Draft:
        names = DrawnNames(rng)
        left = request.length - kind.often * sum(cost(names.words(i)) for i in range(kind.asked))
        words = kind.asked
        while (more := kind.seldom * cost(names.words(words))) <= left:
            left -= more
            words += 1
        if words == kind.asked:
            raise request.too_short()
        common = tuple(names(i) for i in range(kind.asked))
        counts = partial(_common, kind, words)
        return _list_draft(kind, "list most often", common, words, partial(_listed, names, counts, rng.getrandbits(64)))

    return draft


def frequent_words(request: DraftRequest) -> MakeDraft:
    """Make coded texts of words whose counts fall with their rank as the zeta distribution does; the first is dots."""
    kind, meter = request.kind, Meter(request.tokenizer, "amber")

    def draft(index: int, rng: random.Random, depth: float) -> Draft:
        coded = _Coded(rng)
        cost = cache(lambda rank: meter("\n" + coded(rank)))
        low, high = 0, request.length
        while low < high:  # the most times of the first rank whose text fits
            middle = (low + high + 1) // 2
            if sum(cost(i) * count for i, count in enumerate(_zeta(middle, kind.alpha))) <= request.length:
                low = middle
            else:
                high = middle - 1
        counts = _zeta(low, kind.alpha)
        leading = list(counts[: kind.asked + 2])
        if len(leading) < kind.asked + 2 or len(set(leading)) < len(leading):
            raise request.too_short()
        answers = tuple(coded(rank) for rank in range(1, kind.asked + 1))
        pieces = partial(_listed, coded, partial(_zeta, low, kind.alpha), rng.getrandbits(64))
        return _list_draft(kind, "coded text most often, apart from the dots", answers, len(counts), pieces)

    return draft


def _list_draft(
    kind: Kind, where: str, answers: tuple[str, ...], words: int, pieces: Callable[[], Iterator[str]]
) -> Draft:
    """Return the draft of a list of `words` different words; they have no depth."""
    question = f"Which {_NUMBERS.get(kind.asked, str(kind.asked))} words stand in the {where}?"
    return Draft(pieces, question, answers, match="all", facts=answers, about={"words": words})


class _Coded:
    """Coded words by rank; rank 0 is the noise. Generated on demand, in the order of ranks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = random.Random(rng.getrandbits(64))
        self._words = [_NOISE]
        self._seen = {_NOISE}

    def __call__(self, rank: int) -> str:
        while len(self._words) <= rank:
            word = "".join(self._rng.choices(string.ascii_lowercase, k=_LETTERS))
            if word not in self._seen:
                self._seen.add(word)
                self._words.append(word)
        return self._words[rank]


def _common(kind: Kind, words: int) -> Sequence[int]:
    return [kind.often] * kind.asked + [kind.seldom] * (words - kind.asked)


def _zeta(first: int, alpha: float) -> Sequence[int]:
    """Return the counts of ranks 1, 2, ... where the first stands `first` times, down to those of at least one."""
    counts = []
    rank = 1
    while (count := int(first * rank**-alpha)) >= 1:
        counts.append(count)
        rank += 1
    return counts


def _listed(word: Callable[[int], str], counts: Callable[[], Sequence[int]], seed: int) -> Iterator[str]:
    """Yield the words, each as often as counted, shuffled, a line each."""
    order = array("I")
    for i, count in enumerate(counts()):
        order.extend(repeat(i, count))
    random.Random(seed).shuffle(order)
    before = ""
    for start in range(0, len(order), _AT_ONCE):
        yield before + "\n".join(map(word, order[start : start + _AT_ONCE]))
        before = "\n"


_NAME_LETTERS = 5


def tracking(request: DraftRequest) -> MakeDraft:
    """Make chains of assignments in order, spread over a filler; one assignment of the asked chain is at the depth."""
    kind, meter = request.kind, Meter(request.tokenizer)
    filler = Filler(meter)

    def draft(index: int, rng: random.Random, depth: float) -> Draft:
        size = kind.hops + 1
        names = _names(rng, size * kind.chains)
        values = [str(value) for value in rng.sample(range(10_000, 100_000), kind.chains)]
        chains = [_chain(names[size * i : size * i + size], value) for i, value in enumerate(values)]
        budget = request.length - sum(meter(" " + sentence) for chain in chains for sentence in chain)
        count = filler.within(budget)
        if count < 1:
            raise request.too_short()
        shares = [[rng.random() for _ in chain] for chain in chains]
        shares[0][0] = depth
        places = [sorted(filler.within(share * budget) for share in chain) for chain in shares]
        inserts = [
            (position, sentence)
            for stands, chain in zip(places, chains, strict=True)
            for position, sentence in zip(stands, chain, strict=True)
        ]
        return Draft(
            pieces=partial(weave, filler, count, inserts),
            question=f"Which variables have the value {values[0]}? Give all of them.",
            answers=tuple(names[:size]),
            match="all",
            facts=tuple(chains[0]),
            depths=tuple(filler.tokens(position) / budget for position in places[0]),
            about={"hops": kind.hops},
        )

    return draft


def _chain(names: list[str], value: str) -> list[str]:
    first = f"The variable {names[0]} is set to {value}."
    return [first, *(f"The variable {name} is set to the value of {names[i]}." for i, name in enumerate(names[1:]))]


def _names(rng: random.Random, count: int) -> list[str]:
    """Return different names that occur nowhere else: scores match them in any case and inside words."""
    taken = " ".join([*FILLER, *_chain(["", ""], "")]).upper()
    names: list[str] = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=_NAME_LETTERS))
        if name not in taken and name not in names:
            names.append(name)
    return names
