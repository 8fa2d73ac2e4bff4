"""From answers to scores: each sample judged by its own measure, then means with intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.scoring import MATCHES, Score, balanced_accuracy, exact_match, mean
from memagent.tasks.samples import Sample
from memagent.tasks.verdicts import right


@dataclass(frozen=True, slots=True)
class Judged:
    """What an answer to a sample was worth."""

    sample: Sample
    answer: str | None
    """Empty: "not found". None: the reading failed."""
    score: float
    """By the sample's `match`, 0 to 1; a failure counts 0."""
    exact: float
    """Exact match after normalisation."""

    @property
    def wrong(self) -> bool:
        """Whether something of the gold is missing."""
        return self.score < 1.0


def judge(sample: Sample, answer: str | None) -> Judged:
    """Score one answer; where the text does not say, the empty answer is right and any other wrong."""
    if answer is None:
        return Judged(sample, None, 0.0, 0.0)
    if sample.match == "contract":
        value = float(right(str(sample.about["category"]), answer, sample.answers[0]))
    elif not any(sample.answers):
        value = float(not answer.strip())
    else:
        value = MATCHES[sample.match](answer, sample.answers)
    return Judged(sample, answer, value, exact_match(answer, sample.answers))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a score table: what was scored, and how."""

    task: str
    length: int
    score: Score
    failed: int


def lines(judged: Sequence[Judged]) -> list[Line]:
    """Return a line for each task and length, and where there are several tasks, one for each length over all.

    Yes/no tasks of contracts are also scored together by balanced accuracy, and the answers that were "not found"
    where the text says so, or made up where it does not, have lines of their own; so have the questions whose wording
    no training of the bundled reader has (`memagent.tasks.rewording`).
    """
    found = [_line(task, length, group) for (task, length), group in _grouped(judged).items()]
    lengths = dict.fromkeys(one.sample.length for one in judged)
    if len({one.sample.task for one in judged}) > 1:
        found += [_line("all", length, [one for one in judged if one.sample.length == length]) for length in lengths]
    clauses = [one for one in judged if one.sample.about.get("kind") == "yes/no"]
    if clauses:
        balanced = balanced_accuracy((one.sample.answers[0].lower() == "yes", not one.wrong) for one in clauses)
        if balanced.value is not None:
            score = Score("balanced accuracy", balanced.value, len(clauses), balanced.low, balanced.high)
            found.append(Line("yes/no", 0, score, _failed(clauses)))
    silent = [one for one in judged if not any(one.sample.answers)]
    if silent and len(silent) < len(judged):
        found.append(_line("not in the text", 0, silent))
    untaught = [one for one in judged if one.sample.about.get("taught") is False]
    if untaught and len(untaught) < len(judged):
        found.append(_line("wordings in no training", 0, untaught))
    return found


def overall(judged: Sequence[Judged]) -> Score:
    """Return the mean over all samples."""
    return _mean(judged)


def not_found(judged: Iterable[Judged]) -> Score:
    """Return the share of answers that were "not found": what a control asks for."""
    return mean("not found", [float(one.answer == "") for one in judged])


def row(judged: Judged) -> dict[str, Any]:
    """Return a judged sample as plain data, without its text."""
    sample = judged.sample
    return {
        "sample_id": sample.sample_id,
        "task": sample.task,
        "length": sample.length,
        "depth": sample.depth,
        "question": sample.question,
        "gold": list(sample.answers),
        "answer": judged.answer,
        "score": judged.score,
        "exact": judged.exact,
    }


def _grouped(judged: Sequence[Judged]) -> dict[tuple[str, int], list[Judged]]:
    groups: dict[tuple[str, int], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.sample.task, one.sample.length), []).append(one)
    return groups


def _line(task: str, length: int, group: Sequence[Judged]) -> Line:
    return Line(task, length, _mean(group), _failed(group))


def _mean(group: Sequence[Judged]) -> Score:
    return mean("score", [one.score for one in group])


def _failed(group: Sequence[Judged]) -> int:
    return sum(one.answer is None for one in group)
