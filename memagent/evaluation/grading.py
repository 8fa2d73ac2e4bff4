"""Grading: scores of samples by their own metrics, means with intervals, and causes of wrong answers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.evaluation.contract_match import right
from memagent.evaluation.metrics import JUDGEMENTS, MATCHES, containment, exact_match, normalise
from memagent.evaluation.published import PUBLISHED
from memagent.evaluation.stats import Score, balanced_accuracy, mean
from memagent.evaluation.texts import Sample
from memagent.records import Turn


@dataclass(frozen=True, slots=True)
class Judged:
    """A graded answer."""

    sample: Sample
    answer: str | None
    """Empty: "not found". None: the reading failed."""
    score: float
    """By the sample's `match`, 0 to 1; a failure counts 0."""
    exact: float
    """Exact match after normalisation."""

    @property
    def wrong(self) -> bool:
        """Whether part of the gold is missing."""
        return self.score < 1.0


def judge(sample: Sample, answer: str | None) -> Judged:
    """Score one answer; where the text does not say, the empty answer is right and any other wrong."""
    if answer is None:
        return Judged(sample, None, 0.0, 0.0)
    if sample.match == "contract":
        value = float(right(str(sample.about["category"]), answer, sample.answers[0]))
    elif not any(sample.answers):
        value = float(not answer.strip())
    elif sample.match in PUBLISHED:
        value = PUBLISHED[sample.match](sample, answer)
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
    no training of the bundled reader has (`memagent.evaluation.controls`).
    """
    groups: dict[tuple[str, int], list[Judged]] = defaultdict(list)
    for result in judged:
        groups[result.sample.task, result.sample.length].append(result)
    scored = [_line(task, length, group) for (task, length), group in groups.items()]
    lengths = dict.fromkeys(result.sample.length for result in judged)
    if len({result.sample.task for result in judged}) > 1:
        scored += [
            _line("all", length, [result for result in judged if result.sample.length == length]) for length in lengths
        ]
    clauses = [result for result in judged if result.sample.about.get("kind") == "yes/no"]
    if clauses:
        verdicts = [(result.sample.answers[0].lower() == "yes", not result.wrong) for result in clauses]
        if balanced := balanced_accuracy(verdicts):
            scored.append(Line("yes/no", 0, balanced, _failed(clauses)))
    silent = [result for result in judged if not any(result.sample.answers)]
    if silent and len(silent) < len(judged):
        scored.append(_line("not in the text", 0, silent))
    untaught = [result for result in judged if result.sample.about.get("taught") is False]
    if untaught and len(untaught) < len(judged):
        scored.append(_line("wordings in no training", 0, untaught))
    return scored


def overall(judged: Sequence[Judged]) -> Score:
    """Return the mean over all samples."""
    return mean("score", [result.score for result in judged])


def not_found(judged: Iterable[Judged]) -> Score:
    """Return the share of "not found" answers, the right ones in a control."""
    return mean("not found", [float(result.answer == "") for result in judged])


def _line(task: str, length: int, group: Sequence[Judged]) -> Line:
    return Line(task, length, overall(group), _failed(group))


def _failed(group: Sequence[Judged]) -> int:
    return sum(result.answer is None for result in group)


Kind = Literal["never noted", "noted and overwritten", "noted and not used", "made up"]
"""No memory ever held the gold; one did, and the last one does not; the last one does, and the answer is wrong all
the same; the text does not say, and something was answered."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a wrong answer; for a lost note, where it was lost."""

    kind: Kind
    gold: tuple[str, ...] = ()
    """The gold texts concerned: alternatives of one answer."""
    lost: Turn | None = None
    """The turn at which an overwritten note was lost: at a segment, or in a merge."""


def failure(sample: Sample, answer: str, turns: Sequence[Turn]) -> Failure:
    """Say why `answer` (empty: not found) to `sample` is wrong; the caller has judged that it is.

    `turns` is the reading's log, whole or as it is kept to resume from. Where every gold text is asked for (``match``
    "all") it is about the one that was lost earliest, first among those that the answer lacks; otherwise the gold
    texts are alternatives. Gold that no fact says in its own words (a date in other form, "yes") is noted by a
    memory that holds such a fact word for word.

    Raises:
        UsageError: the log has no answer (a failed reading), or nothing was said where there was nothing to say.
    """
    spans = _spans(turns)
    wanted = [gold for gold in sample.answers if gold]
    if not wanted:
        if not answer:
            raise UsageError(f"sample {sample.sample_id}: 'not found' is the right answer, no failure.")
        return Failure("made up")
    groups = [(gold,) for gold in wanted] if sample.match == "all" else [tuple(wanted)]
    lacking = [group for group in groups if not containment(answer, group)]
    return min((_cause(group, sample, spans) for group in lacking or groups), key=lambda cause: KINDS.index(cause.kind))


def _cause(gold: tuple[str, ...], sample: Sample, spans: list[list[Turn]]) -> Failure:
    # "There is no appeal" has the word, not the verdict "no".
    words = [text for text in gold if normalise(text) not in JUDGEMENTS]
    said_so = any(containment(fact, words) for fact in sample.facts)
    holds = _holder(gold if said_so or not sample.facts else gold + sample.facts)
    noting = [span for span in spans if any(holds(turn) for turn in span)]
    if not noting:
        return Failure("never noted", gold)
    if holds(spans[-1][-1]):
        return Failure("noted and not used", gold)
    return Failure("noted and overwritten", gold, _lost(noting, spans, holds))


def _lost(noting: list[list[Turn]], spans: list[list[Turn]], holds: Callable[[Turn], bool]) -> Turn:
    """Return the turn at which the note that got furthest was lost: in a merge, or within its span."""
    to_the_end = [span for span in noting if holds(span[-1])]
    span = noting[-1] if noting[-1] is spans[-1] or not to_the_end else to_the_end[-1]
    after = max(i for i, turn in enumerate(span) if holds(turn)) + 1
    if after < len(span):
        return span[after]
    # The merge reads the spans' memories in order, a turn each (or several a turn: then it is the nearest).
    merges = [turn for turn in spans[-1] if turn.kind == "merge"] or spans[-1]
    return merges[min(spans.index(span), len(merges) - 1)]


def _holder(texts: tuple[str, ...]) -> Callable[[Turn], bool]:
    # Most turns leave the memory as it was, and normalising it is slow.
    holds = cache(lambda memory: containment(memory, texts) == 1.0)
    return lambda turn: holds(turn.memory)


def _spans(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Split a log by span; the last span has the answer, and before it the merges if several spans were read."""
    if not any(turn.kind == "answer" for turn in turns):
        raise UsageError("the log of this reading has no answer: it failed, and is counted as such.")
    by_span: dict[int, list[Turn]] = {}
    for turn in sorted(turns, key=lambda turn: (turn.span, turn.step)):
        by_span.setdefault(turn.span, []).append(turn)
    return list(by_span.values())
