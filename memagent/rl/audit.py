"""The audit of tasks: what none may violate, checked before a training starts.

The gold is in the text, unless nothing is to be found; no segment of another text answers the same question otherwise;
the reward pays the gold, and none of twenty kinds of wrong answers.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args, runtime_checkable

from memagent.errors import UsageError
from memagent.evaluation.metrics import JUDGEMENTS, containment, normalise
from memagent.quality.curation import Qa
from memagent.reading.evidence import says
from memagent.rl.config import AuditKind
from memagent.rl.dataset import Dataset, Mixed, Task
from memagent.rl.reward import Answered, reward
from memagent.rl.reward import strictly as exact

NONSENSE = "zyxq vlkw"
"""What no reward can have a reason to pay."""
_PLAIN = {
    "does not know": "I do not know",
    "not stated": "The text does not say.",
    "not applicable": "N/A",
    "unknown": "unknown",
    "nobody": "none",
    "yes": "yes",
    "no": "no",
    "yes and no": "yes and no",
    "another number": "7",
    "another date": "May 8, 1931",
    "another name": "Ann Otherwise",
    "another list": "one, two, three, four and five",
    "a letter": "x",
    "an instruction": "See the text above.",
    "a promise": "The answer is",
}
_NUMBER = re.compile(r"\d+")
_MOST_CHARS = 2000


def wrong_answers(task: Task, others: Sequence[str] = ()) -> dict[str, str]:
    """Return wrong answers to a task by kind, at least twenty; an empty text is "not found".

    Some are answers to other tasks (`others`).
    """
    gold = [answer for answer in task.gold if answer.strip()]
    other = next((answer for answer in others if answer.strip() and not exact(answer, gold)), "Ann Otherwise")
    kinds = dict(_PLAIN) | {"the question": task.question} | dict(_wrong_of_text(task, gold))
    kinds |= dict(_of_gold(gold, other, task.sample.match)) if gold else dict(_of_nothing(task, other))
    return {kind: answer for kind, answer in kinds.items() if not _is_right(task, gold, answer)}


def _wrong_of_text(task: Task, gold: Sequence[str]) -> Iterator[tuple[str, str]]:
    segment = next((s.text for s in task.segments if containment(s.text, gold)), "") if gold else ""
    segment = segment or (task.segments[0].text if task.segments else "")
    yield "a segment", segment[:_MOST_CHARS]
    yield "the text", task.text[: 5 * _MOST_CHARS]
    yield "a line of the text", max(segment.splitlines(), key=len, default="")


def _of_nothing(task: Task, other: str) -> Iterator[tuple[str, str]]:
    words = "".join(s.text for s in task.segments[:1]).split()
    yield "another answer", other
    yield "a word of the text", words[0] if words else "word"
    yield "words of the text", " ".join(words[:5]) or "some words"
    yield "a sentence", f"It is {other}."


def _of_gold(gold: Sequence[str], other: str, match: str) -> Iterator[tuple[str, str]]:
    right = " and ".join(gold) if match == "all" else gold[0]
    if match == "contract":  # one of several is right
        right = right.split(";")[0].strip() or right
    # Half of a list is partly right, and so is Ontario where gold says that it is in Canada.
    first = gold[0] if match == "all" else right.split(",")[0] if match == "contract" else right
    yield "not found", ""
    yield "another answer", other
    yield "negated", f"not {right}"
    yield "denied", f"It is certainly not {right}."
    yield "twice", f"{right} {right}"
    yield "one of two", f"{right} or {other}"
    yield "a longer list", f"{other}, {right}, Otherwise and others"
    yield "taken back", f"{right}? No, {other}."
    yield "doubted", f"maybe {right}, but I do not know"
    yield "a word that contains it", f"un{right}ish"
    if match != "contract":  # 1/1/99
        yield "backwards", right[::-1]
    yield "its beginning", first[: len(first) // 2].strip()
    yield "its end", first[(len(first) + 1) // 2 :].strip()
    yield "one character changed", _changed(right)
    if match != "all" and normalise(right) in ("yes", "no"):
        yield "the opposite", "no" if normalise(right) == "yes" else "yes"
        yield "undecided", "yes or no"
    if number := _NUMBER.search(right):
        before, digits, after = right[: number.start()], number[0], right[number.end() :]
        yield "another number that contains it", f"{before}1{digits}{after}"
        yield "another number that begins with it", f"{before}{digits}0{after}"
        yield "the next number", f"{before}{int(digits) + 1}{after}"
        if right.strip() == number[0]:
            yield "a number among others", f"Chapter {number[0]} of {number[0]}0"
            yield "the number negated", f"-{number[0]}"
            yield "the point moved", f"{number[0][:-1] or '0'}.{number[0][-1]}"


def _changed(text: str) -> str:
    middle = len(text) // 2
    changed = next((i for i in (*range(middle, len(text)), *range(middle)) if text[i].isalnum()), None)
    if changed is None:
        return text + "q"
    return text[:changed] + ("q" if text[changed].lower() != "q" else "w") + text[changed + 1 :]


def _is_right(task: Task, gold: Sequence[str], answer: str) -> bool:
    """Whether a made-up wrong answer happens to be the gold, or a part of what is asked for."""
    if not gold:
        return not answer.strip()
    words = normalise(answer)
    if task.sample.match == "all" and len(gold) > 1:
        return words in {normalise(text) for text in gold}
    return bool(exact(answer, gold))


KINDS: tuple[AuditKind, ...] = get_args(AuditKind)
STRICT = frozenset({"exact", "task", "format", "abstention"})
"""Rewards that must pay the gold alone. Others may mean to pay for a part of it: what they pay is a warning."""
_LEAST = 1e-9


@runtime_checkable
class HasRows(Protocol):
    """A dataset of rows, which may ask the same of several texts."""

    def left_out(self, count: int) -> tuple[int, int]:
        """Return how many of its first rows cannot be used, and of how many rows, at most `count`."""
        ...

    def rivals(self, task: Task) -> list[Qa]:
        """Return the rows that ask the same of a document in a task, and have other answers."""
        ...


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with a task."""

    kind: AuditKind
    task: str
    """Name of the task."""
    detail: str
    wrong: str = ""
    """Kind of the wrong answer that is paid (`memagent.rl.audit`)."""


@dataclass(slots=True)
class AuditReport:
    """What an audit found."""

    tasks: int = 0
    wrong_answers: int = 0
    """Wrong answers that were tried."""
    least_kinds: int = 0
    """Kinds of wrong answers that were tried on each task, at least."""
    violating: Counter[str] = field(default_factory=Counter)
    """Tasks with a violation, by kind."""
    paid: Counter[str] = field(default_factory=Counter)
    """Tasks in which a kind of wrong answer is paid."""
    examples: dict[str, str] = field(default_factory=dict)
    """The first violation of each kind, and of each wrong answer."""
    left_out: list[str] = field(default_factory=list)
    """What is said of rows that cannot be used, a line for each dataset that has any."""

    def add(self, violations: Sequence[Violation], tried: int) -> None:
        """Count a task."""
        self.least_kinds = min(self.least_kinds, tried) if self.tasks else tried
        self.tasks += 1
        self.wrong_answers += tried
        self.violating.update({violation.kind for violation in violations})
        for violation in violations:
            example = f"task {violation.task}: {violation.detail}"
            self.examples.setdefault(violation.kind, example)
            if violation.wrong:
                self.paid[violation.wrong] += 1
                self.examples.setdefault(violation.wrong, example)

    def refuse(self, allowed: Mapping[AuditKind, float], weights: Mapping[str, float]) -> list[str]:
        """Return warnings of a reward, of these weights, that pays for more than the gold.

        Raises:
            UsageError: more tasks violate than are `allowed` (a share by kind); the message counts them by kind, with
                an example each.
        """
        meant = set() if STRICT.issuperset(weights) else {"gold-unpaid", "wrong-paid"}
        share = {kind: self.violating[kind] / max(1, self.tasks) for kind in KINDS}
        broken = [kind for kind in KINDS if kind not in meant and share[kind] > allowed.get(kind, 0.0)]
        if broken:
            counted = "; ".join(f"{self._counted(kind)} ({self.examples[kind]})" for kind in broken)
            keys = " ".join(f"--set audit.allowed.{kind}={share[kind]:.2g}" for kind in broken)
            raise UsageError(f"{counted}. Nothing was trained. Mend the data or the reward, or allow it: {keys}")
        return [self._warning(kind) for kind in KINDS if kind in meant and self.violating[kind]]

    def _counted(self, kind: str) -> str:
        return f"{_MESSAGES[kind]} in {self.violating[kind]} of {self.tasks} tasks"

    def _warning(self, kind: str) -> str:
        if kind != "wrong-paid":
            return f"{self._counted(kind)} ({self.examples[kind]})"
        kinds = ", ".join(f"{wrong} ({count})" for wrong, count in self.paid.most_common())
        return f"{self._counted(kind)}; by kind: {kinds}. If that is not meant, a policy will learn it."


_MESSAGES = {
    "gold-missing": "the answer is not in the text",
    "rival-answer": "another text answers the same question otherwise",
    "gold-unpaid": "the right answer is not paid more than nonsense, or not in full",
    "wrong-paid": "a wrong answer is paid",
}


def audit(datasets: Sequence[Dataset], weights: Mapping[str, float], tasks: int) -> AuditReport:
    """Check `tasks` tasks of each dataset; parts of a mixture are datasets of their own.

    Raises:
        UsageError: a dataset has no usable task.
    """
    report = AuditReport()
    for dataset in _parts(datasets):
        sampled = [dataset.task(number) for number in range(tasks)]
        unusable, seen = dataset.left_out(tasks) if isinstance(dataset, HasRows) else (0, 0)
        if unusable:
            report.left_out.append(
                f"{unusable} of the first {seen} rows are left out: their texts are longer than a task may be, and it "
                "is not known where they have the answer"
            )
        answers = [answer for task in sampled for answer in task.gold if answer.strip()]
        for i, task in enumerate(sampled):
            tried = wrong_answers(task, answers[i + 1 :] + answers[: i + 1])
            rivals = dataset.rivals(task) if isinstance(dataset, HasRows) else []
            report.add([*_of_text(task, rivals), *_of_reward(task, weights, tried)], len(tried))
    return report


def _parts(datasets: Sequence[Dataset]) -> Iterator[Dataset]:
    for dataset in datasets:
        yield from _parts(dataset.datasets) if isinstance(dataset, Mixed) else (dataset,)


def _of_text(task: Task, rivals: Sequence[Qa]) -> Iterator[Violation]:
    text = task.text
    gold = [answer for answer in task.gold if answer.strip()]
    if gold and not _answered(task, text, gold):
        yield Violation("gold-missing", task.sample_id, f"{task.question!r}, {gold[0]!r}")
    for segment in task.segments:
        for row in rivals:
            if segment.content_hash in row.stream and says(segment.text, row.answers):
                detail = f"{task.question!r}, {row.answers[0]!r} beside {task.gold[0]!r}"
                yield Violation("rival-answer", task.sample_id, detail)
                return


def _answered(task: Task, text: str, gold: Sequence[str]) -> bool:
    """Whether a text holds the gold (all of it, if all is asked for) or a fact that says it.

    "yes" and "no" are verdicts, whose words a text need not have.
    """
    if any(fact in text for fact in task.sample.facts) or JUDGEMENTS.issuperset(map(normalise, gold)):
        return True
    wanted = gold if task.sample.match == "all" else ()
    return all(says(text, [answer]) for answer in wanted) if wanted else says(text, gold)


def _of_reward(task: Task, weights: Mapping[str, float], tried: Mapping[str, str]) -> Iterator[Violation]:
    right = (" and ".join(task.gold) if task.sample.match == "all" else task.gold[0]).strip()
    floor = _pay(task, NONSENSE, weights)
    full = _pay(task, right, weights)
    if full <= floor + _LEAST or (STRICT.issuperset(weights) and task.judge(right) < 1.0):
        detail = f"{task.question!r}, {right!r} is paid {full:g}, nonsense {floor:g}"
        yield Violation("gold-unpaid", task.sample_id, detail)
    for kind, answer in tried.items():
        paid = _pay(task, answer, weights)
        if paid > floor + _LEAST:
            detail = f"{task.question!r}, {answer[:80]!r} ({kind}) is paid {paid:g} where the gold is {right!r}"
            yield Violation("wrong-paid", task.sample_id, detail, kind)


def _pay(task: Task, answer: str, weights: Mapping[str, float]) -> float:
    every = task.sample.match == "all"
    answered = Answered(answer, bool(answer.strip()), task.gold, judged=task.judge(answer), every=every)
    return reward(answered, weights).total
