"""What people's verdicts on answers come to: whose count, where they disagree, and which answer is right."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import regex

from memagent.evaluation.metrics import normalise
from memagent.reading.folding import FoldedText
from memagent.records import TextSpan

VerdictKind = Literal["accepted", "rejected", "corrected", "withdrawn", "comment"]
Status = Literal["accepted", "corrected", "rejected", "disputed"]
COUNTING = ("accepted", "rejected", "corrected")
"""Verdicts that say something of the answer; a comment does not, and a withdrawn one no longer does."""
ABSENT = "not in the document"
_NUMBER = regex.compile(r"(?:(?<!\w)\p{Dash})?(?:(?<![\w.])\.)?\p{Nd}+(?:[\p{P}\p{S}]\p{Nd}+|[⁺⁻]?\p{No}+)*")
_WRITTEN_SO = regex.compile(r"(?<=\d)(?:[,'’](?=\d{3}(?!\d))|\.00(?![.,]?\d))")
"""Marks of thousands, and hundredths of which there are none: how a number is written, and not which it is."""
_MARKS = regex.compile(
    r"""(?x) (?!\^)[\p{S}%‰#@/&*] | (?<!\w)\p{Dash} | \p{Dash}(?!\w) | (?<=\d[eE])\p{Dash} | (?<=\S\s)A(?!\w)
    | ^\p{Sc}?\(.*\)$ | (?<=(?:\p{Sc}|\b\p{Lu}{3})\s?)\(\p{Nd}[\p{Nd}.,]*\)
    | (?<!\p{L}\s)\(\p{Nd}[\p{Nd}.,]*\)(?=\s?(?:[%‰]|(?:thousand|million|billion|mn?|bn|k)\b))"""
)
"""What makes another answer: AA+ and AA, 5% and 5, <5 and >5, -$5 and $5, $(5) and $5, Class A and Class; thirty (30)
days are thirty 30 days."""
_NONE = {normalise(words) for words in ("not found", ABSENT)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one person said of one answer."""

    reading_id: str
    kind: VerdictKind
    given: str
    """What the reader said; empty: not found."""
    answer: str
    """What is right, where it was corrected; empty: the documents do not say. Of a rejection the correction that was
    shown, and rejected, in place of the reader's answer; empty: that was shown."""
    given_at: datetime
    reviewer: str = ""
    """Empty: a file of verdicts, which names nobody."""
    comment: str = ""
    decides: bool = False
    """Settles a disagreement: what others said before no longer counts."""
    spans: tuple[TextSpan, ...] = ()
    """Where the documents say the answer."""

    @property
    def right(self) -> str | None:
        """The answer that this verdict calls right; None: it calls none right."""
        return {"accepted": self.given, "corrected": self.answer}.get(self.kind)

    @property
    def wrong(self) -> str | None:
        """The answer that this verdict rejects; None: it rejects none."""
        return (right_answer(self.answer) if self.answer else self.given) if self.kind == "rejected" else None


@dataclass(frozen=True, slots=True)
class Review:
    """What the verdicts on one text and question come to, for one answer."""

    status: Status
    answer: str
    """What to show: the right answer where it is known, else the one that was given."""
    reviewers: tuple[str, ...]
    at: datetime
    """Of the last verdict that counts."""
    spans: tuple[TextSpan, ...] = ()
    """Where the documents say the right answer, as people marked it."""

    def found(self, given: bool) -> bool:
        """Return whether the documents say an answer; `given` is what the reader says."""
        return bool(self.answer) if self.status == "corrected" else given


def as_meant(answer: str) -> str:
    """Return what people's answers are compared by: normalised, and the numbers and marks that say another thing."""
    answer = _WRITTEN_SO.sub("", answer.strip())
    parts = (FoldedText(part).folded for pattern in (_NUMBER, _MARKS) for part in pattern.findall(answer))
    return " ".join([normalise(answer), *parts])


def right_answer(written: str) -> str:
    """Return what a person has written for the right answer; empty, where it is our words for that there is none."""
    return "" if normalise(written) in _NONE else written


def current(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that count, oldest first, of all those on one text and question.

    Of each person the last one on each reading counts, and of those that call an answer right the last one alone. A
    verdict that decides makes those before it void.
    """
    left = sorted(_last(verdicts), key=lambda each: each.given_at)
    begin = max((index for index, each in enumerate(left) if each.decides), default=0)
    by_person: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in left[begin:]:
        by_person[verdict.reviewer].append(verdict)
    kept = [verdict for person in by_person.values() for verdict in _of_one_mind(person)]
    return sorted(kept, key=lambda verdict: verdict.given_at)


def judges(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the people whose last word on some reading is a verdict that says something."""
    return {verdict.reviewer for verdict in _last(verdicts)}


def disputed(verdicts: Sequence[Verdict]) -> bool:
    """Whether current verdicts contradict each other: two right answers, or one that another calls wrong."""
    rights = {as_meant(each.right) for each in verdicts if each.right is not None}
    wrongs = {as_meant(each.wrong) for each in verdicts if each.wrong is not None}
    return len(rights) > 1 or bool(rights & wrongs)


def review(verdicts: Iterable[Verdict], answer: str) -> Review | None:
    """Return what all verdicts on a text and question come to for an answer; None: nothing was said that concerns it.

    The answer may be newer than the verdicts: what is right about a text stays right when it is read again.
    """
    left = current(verdicts)
    if not left:
        return None
    people, at = tuple(sorted({each.reviewer for each in left})), left[-1].given_at
    if disputed(left):
        return Review("disputed", answer, people, at)
    last = next((each for each in reversed(left) if each.right is not None), None)
    if last is not None and last.right is not None:
        same = as_meant(last.right) == as_meant(answer)
        status: Status = "accepted" if same else "corrected"
        marked = next((each.spans for each in reversed(left) if each.right is not None and each.spans), ())
        return Review(status, answer if same else last.right, reviewers=people, at=at, spans=marked)
    if any(as_meant(each.wrong or "") == as_meant(answer) for each in left):  # nobody calls any answer right
        return Review("rejected", answer, people, at)
    return None


def _last(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return what each person said last of each reading, where it says something."""
    last: dict[tuple[str, str], Verdict] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.given_at):
        if verdict.kind != "comment":
            last[verdict.reviewer, verdict.reading_id] = verdict
    return [verdict for verdict in last.values() if verdict.kind in COUNTING]


def _of_one_mind(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return one person's verdicts, oldest first, without those that a later one of theirs contradicts."""
    kept: list[Verdict] = []
    right: str | None = None
    wrong: set[str] = set()
    for verdict in reversed(verdicts):
        said = None if verdict.right is None else as_meant(verdict.right)
        if said is None and (rejected := as_meant(verdict.wrong or "")) != right:
            wrong.add(rejected)
        elif said is not None and right is None and said not in wrong:
            right = said
        else:
            continue
        kept.append(verdict)
    return kept[::-1]
