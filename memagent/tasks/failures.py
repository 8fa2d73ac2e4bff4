"""Why an answer is wrong: where on the way from the text to the answer the gold was lost.

Pure functions over the turns of a reading. A memory is taken to hold gold by `memagent.scoring.containment`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.records import Turn
from memagent.scoring import containment, normalise
from memagent.tasks.samples import Sample

Kind = Literal["never noted", "noted and overwritten", "noted and not used", "made up"]
"""No memory ever held the gold; one did, and the last one does not; the last one does, and the answer is wrong all
the same; the text does not say, and something was answered."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in one reading, with the place for what was noted and overwritten."""

    kind: Kind
    gold: tuple[str, ...] = ()
    """The gold that this says it of: the answers that count for one another."""
    lane: int = -1
    step: int = -1
    content_hash: str = ""
    """Document of the segment at which the gold was lost; empty where it was lost in a merge."""
    segment_index: int = -1


def failure(sample: Sample, answer: str, turns: Sequence[Turn]) -> Failure:
    """Say why `answer` (empty: not found) to `sample` is wrong; the caller has judged that it is.

    `turns` is the reading's log, whole or as it is kept to resume from. Where every gold text is asked for (``match``
    "all") it speaks of the one that was lost earliest, first of those that the answer lacks; otherwise the gold
    texts count for one another. Gold that no fact says in its own words (a date in other form, "yes") is noted by a
    memory that holds such a fact word for word.

    Raises:
        UsageError: the log has no answer (a failed reading), or nothing was said where there was nothing to say.
    """
    lanes = _lanes(turns)
    wanted = [gold for gold in sample.answers if gold]
    if not wanted:
        if not answer:
            raise UsageError(f"sample {sample.sample_id}: 'not found' is the right answer, no failure.")
        return Failure("made up")
    groups = [(gold,) for gold in wanted] if sample.match == "all" else [tuple(wanted)]
    lacking = [group for group in groups if not containment(answer, group)]
    return min((_one(group, sample, lanes) for group in lacking or groups), key=lambda one: KINDS.index(one.kind))


def _one(gold: tuple[str, ...], sample: Sample, lanes: list[list[Turn]]) -> Failure:
    # "There is no appeal" has the word, not the verdict "no".
    words = [text for text in gold if normalise(text) not in ("yes", "no")]
    said_so = any(containment(fact, words) for fact in sample.facts)
    holds = _holder(gold if said_so or not sample.facts else gold + sample.facts)
    held = [lane for lane in lanes if any(holds(turn) for turn in lane)]
    if not held:
        return Failure("never noted", gold)
    if holds(lanes[-1][-1]):
        return Failure("noted and not used", gold)
    lost = _lost(held, lanes, holds)
    return Failure("noted and overwritten", gold, lost.lane, lost.step, lost.content_hash, lost.segment_index)


def _lost(held: list[list[Turn]], lanes: list[list[Turn]], holds: Callable[[Turn], bool]) -> Turn:
    """Return the turn that lost what got furthest: through a merge, to the end of its lane, or into it."""
    to_the_end = [lane for lane in held if holds(lane[-1])]
    lane = held[-1] if held[-1] is lanes[-1] or not to_the_end else to_the_end[-1]
    after = max(i for i, turn in enumerate(lane) if holds(turn)) + 1
    if after < len(lane):
        return lane[after]
    # The merge reads the lanes' memories in order, a turn each (or several a turn: then it is the nearest).
    merges = [turn for turn in lanes[-1] if turn.kind == "merge"] or lanes[-1]
    return merges[min(lanes.index(lane), len(merges) - 1)]


def _holder(texts: tuple[str, ...]) -> Callable[[Turn], bool]:
    known: dict[str, bool] = {}

    def holds(turn: Turn) -> bool:
        # Most turns leave the memory as it was, and to normalise it is what takes the time.
        if turn.memory not in known:
            known[turn.memory] = containment(turn.memory, texts) == 1.0
        return known[turn.memory]

    return holds


def _lanes(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Part a log by lane; the last has the answer, and the merges before it where several lanes were read."""
    if not any(turn.kind == "answer" for turn in turns):
        raise UsageError("the log of this reading has no answer: it failed, and is counted as such.")
    by_lane: dict[int, list[Turn]] = {}
    for turn in sorted(turns, key=lambda turn: (turn.lane, turn.step)):
        by_lane.setdefault(turn.lane, []).append(turn)
    return list(by_lane.values())
