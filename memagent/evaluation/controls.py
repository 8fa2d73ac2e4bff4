"""Controls: samples whose text lacks the answer, so that right answers show guessing or memorisation; and samples with
reworded questions.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.evaluation import contracts, needles
from memagent.evaluation.metrics import JUDGEMENTS
from memagent.evaluation.texts import Sample
from memagent.records import stable_hash

Control = Literal["no-document", "wrong-document", "answer-removed"]
CONTROLS: tuple[Control, ...] = get_args(Control)

NEUTRAL = "This page holds no text. It stands in the place of one that was not handed in. Nothing follows."
"""The text that replaces the document."""

_AT_ONCE = 65_536


def control(samples: Iterable[Sample], name: Control, seed: int) -> Iterator[Sample]:
    """Make a control of each sample; in all of them the honest answer is "not found".

    Gold stays as it is, so that accuracy must fall to near zero. Samples whose gold is already that the text does not
    say (empty, or No to the question whether a contract has a clause) are left out: they have nothing to lose.

    - ``no-document``: a short neutral text.
    - ``wrong-document``: the text of another sample of the same task, of the same length where there is one, in which
      no gold stands; where all others hold it, one without the facts, and `about` has ``gold_in_text``.
    - ``answer-removed``: the facts are cut out, and the gold wherever else it stands as a word of its own (yes and no
      stay: they are words like others). Samples that give nothing to cut are left out: their facts are not known.

    Raises:
        UsageError: no such control; for ``wrong-document``, a sample without another to take the text of.
    """
    if name not in CONTROLS:
        raise UsageError(f"no control {name!r}. There are: {', '.join(CONTROLS)}.")
    if name == "no-document":
        return (replace(_made(sample, name, partial(iter, (NEUTRAL,))), length=0) for sample in _telling(samples))
    if name == "answer-removed":
        known = (sample for sample in _telling(samples) if sample.facts or _holds(sample.text(), _words(sample)))
        return (_made(sample, name, partial(_cut_pieces, sample)) for sample in known)
    return _wrong_documents(list(samples), seed)


def cut(text: str, facts: Sequence[str], words: Sequence[str] = ()) -> str:
    """Return `text` without any of `facts`, nor `words` where they stand as words, in any case."""
    facts = sorted({fact for fact in facts if fact.strip()}, key=len, reverse=True)
    before = None
    while before != text:  # a cut can join text that must be cut too
        before = text
        for fact in facts:
            text = text.replace(fact, " ")
        pattern = _pattern(text, words)
        if pattern is not None:
            text = pattern.sub(" ", text)
    return text


def _telling(samples: Iterable[Sample]) -> Iterator[Sample]:
    for sample in samples:
        without = sample.match == "contract" and all(answer.lower() == "no" for answer in sample.answers)
        if any(sample.answers) and not without:
            yield sample


def _made(sample: Sample, name: Control, pieces: Callable[[], Iterator[str]], origins: tuple[str, ...] = ()) -> Sample:
    made = replace(sample, sample_id=f"{sample.sample_id}~{name}", pieces=pieces, facts=(), depth=None)
    return replace(made, about=sample.about | {"control": name}, origins=(*sample.origins, *origins))


def _cut_pieces(sample: Sample) -> Iterator[str]:
    text = cut(sample.text(), sample.facts, _words(sample))
    for start in range(0, len(text), _AT_ONCE):
        yield text[start : start + _AT_ONCE]


def _wrong_documents(samples: Sequence[Sample], seed: int) -> Iterator[Sample]:
    tasks: dict[str, list[Sample]] = {}
    for sample in samples:
        tasks.setdefault(sample.task, []).append(sample)
    for sample in _telling(samples):
        others = [other for other in tasks[sample.task] if other is not sample]
        random.Random(stable_hash("wrong document", seed, sample.sample_id)).shuffle(others)
        others.sort(key=lambda other: other.length != sample.length)
        yield _with_text_of(sample, others)


def _with_text_of(sample: Sample, others: Sequence[Sample]) -> Sample:
    words = _words(sample)
    second = None
    for other in others:
        text = other.text()
        if any(fact in text for fact in sample.facts):
            continue
        if not _holds(text, words):
            return _made(sample, "wrong-document", other.pieces, other.origins)
        second = second or other
    if second is None:
        raise UsageError(f"no other sample of {sample.task} has a text without the answer of {sample.sample_id}.")
    changed = _made(sample, "wrong-document", second.pieces, second.origins)
    changed.about["gold_in_text"] = True
    return changed


def _words(sample: Sample) -> list[str]:
    return [answer for answer in sample.answers if answer.lower() not in JUDGEMENTS]


def _holds(text: str, words: Sequence[str]) -> bool:
    pattern = _pattern(text, words)
    return pattern is not None and pattern.search(text) is not None


def _pattern(text: str, words: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches the words in `text`, in any case; None if none occurs in it."""
    lowered = text.lower()  # looking for a plain text first is a hundred times faster
    present = sorted({word for word in words if word.strip() and word.lower() in lowered}, key=len, reverse=True)
    either = "|".join(map(re.escape, present))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE) if present else None


_PATTERNS = [
    (kind, re.compile(re.escape(wording).replace(r"\{key\}", "(?P<key>.+)").replace(r"\{value\}", ".+")))
    for kind, wordings in needles.SENTENCES.items()
    for wording in wordings
]


def reword(samples: Iterable[Sample], seed: int) -> Iterator[Sample]:
    """Yield the samples whose questions can be worded otherwise: one needle's, and the contracts' that have wordings.

    The wording depends on the seed and the sample alone; ``about["taught"]`` says whether any training has it: the last
    of each list stays out of all.
    """
    for sample in samples:
        wordings = _wordings(sample)
        if wordings:
            question = random.Random(f"{seed} {sample.sample_id}").choice(wordings)
            about = sample.about | {"taught": question != wordings[-1]}
            yield replace(sample, sample_id=f"{sample.sample_id}~reworded", question=question, about=about)


def _wordings(sample: Sample) -> list[str]:
    if category := sample.about.get("category"):
        return [wording for name, known in contracts.REWORDED.items() if name == category for wording in known]
    if len(sample.facts) != 1:
        return []
    for kind, pattern in _PATTERNS:
        if (match := pattern.fullmatch(sample.facts[0])) and match["key"] in sample.question:
            return [wording.format(key=match["key"]) for wording in needles.REWORDED[kind]]
    return []
