"""The teacher: a reader of tasks whose evidence is known, for supervised training.

It stands where an engine stands, so that what it plays are rollouts as any other: the reading's own prompts, memory and
limits. Where a task has the memories of another model's reading, it writes those. Else it notes the sentences that hold
the task's evidence, and leaves the memory as it is at every other segment. It says the gold answer if the memory holds
anything.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace

from memagent.errors import RequestError
from memagent.reading.boundaries import sentence_ends
from memagent.reading.conversations import ReadingSpec
from memagent.reading.engine import Completion, Sampling
from memagent.reading.folding import places_of
from memagent.reading.prompts import Prompts
from memagent.reading.scripted import complete
from memagent.rl.config import RewardRecipe
from memagent.rl.dataset import Task
from memagent.rl.rollout import roll_out
from memagent.rl.trajectory import Trajectory

_LONGEST = 400
"""Characters of a sentence that is noted whole; of a longer one the evidence itself is noted."""


class Teacher:
    """Reads one task."""

    def __init__(self, task: Task, prompts: Prompts) -> None:
        """Look for the evidence: the sample's facts, or else its answers, in each segment."""
        self._prompts = prompts
        gold = [answer for answer in task.gold if answer.strip()]
        self._answer = ", ".join(gold if task.sample.match == "all" else gold[:1])
        self._notes: dict[tuple[int, ...], list[str]] = {}
        self._memories = dict(_updates(task, prompts)) if task.memories else None
        """Segment and memory before it, to the memory after it."""
        evidence = [fact for fact in task.sample.facts if fact.strip()] or gold
        for segment, holds in zip(task.segments, task.evidence() or (), strict=False):
            if holds:
                self._notes[tuple(segment.token_ids)] = notes(segment.text, evidence)

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue a prompt as a perfect reader would.

        Raises:
            RequestError: the prompt was not made from the template, or is that of a merge; or its memory is none of the
                reading that the teacher follows.
        """
        slots = self._prompts.parse(ids)
        if slots is None:
            raise RequestError("the teacher was given a prompt that is not of its template")
        return complete(self._say(slots), self._prompts, ids, sampling)

    def _say(self, slots: dict[str, list[int]]) -> list[int]:
        prompts = self._prompts
        memory = prompts.memory_text(slots["memory"])
        if "segment" not in slots:
            return prompts.tokenizer.encode((memory and self._answer) or prompts.template.not_found)
        if self._memories is not None:
            after = self._memories.get((tuple(slots["segment"]), memory))
            if after is None:
                raise RequestError("the reading that the teacher follows has no such memory")
            return prompts.unchanged(slots["memory"]) if after == memory else prompts.tokenizer.encode(after)
        new = [note for note in self._notes.get(tuple(slots["segment"]), ()) if note not in memory]
        if not new:
            return prompts.unchanged(slots["memory"])
        return prompts.tokenizer.encode("\n".join([memory, *new] if memory else new))


def _updates(task: Task, prompts: Prompts) -> Iterator[tuple[tuple[tuple[int, ...], str], str]]:
    before = ""
    for segment, memory in zip(task.segments, task.memories, strict=True):
        after = prompts.memory_text(prompts.tokenizer.encode(memory)) if memory else ""  # as the next prompt has it
        yield (tuple(segment.token_ids), before), after
        before = after


def notes(text: str, evidence: list[str]) -> list[str]:
    """Return what is to be noted of a segment: each sentence with evidence, in the text's order.

    Evidence that a segment's end cuts off is noted as far as the segment has it.
    """
    ends = [0, *sentence_ends(text), len(text)]
    places = sorted({place for said in evidence for place in _places(text, said)})
    found: list[str] = []
    for start, end in places:
        low, high = ends[bisect_right(ends, start) - 1], ends[bisect_left(ends, end)]
        note = " ".join(text[low:high].split())
        note = note if len(note) <= _LONGEST else " ".join(text[start:end].split())
        if note and not any(note in other for other in found):
            found.append(note)
    return found


_LEAST = 12
"""Characters of evidence that are enough of it where a segment's end cuts it."""


def _places(text: str, said: str) -> list[tuple[int, int]]:
    if whole := places_of(said, text):
        return whole
    # The text begins with its end, or ends with its beginning.
    for size in range(len(said) - 1, _LEAST - 1, -1):
        if text.startswith(said[-size:]):
            return [(0, size)]
        if text.endswith(said[:size]):
            return [(len(text) - size, len(text))]
    return []


_REWARD = RewardRecipe(weights={"exact": 1.0, "task": 0.0})


async def teach(task: Task, spec: ReadingSpec) -> Trajectory | None:
    """Return the teacher's reading of a task, with the advantage 1; None if it cannot show how.

    That is where the evidence is not known, where it does not fit the memory, and where the reward does not call the
    teacher's own answer right.
    """
    if not task.memories and task.evidence() is None:
        return None
    try:
        made = await roll_out(task, 0, spec, Teacher(task, spec.prompts).generate, _REWARD)
    except RequestError:
        return None
    if not made.reward.right or any(conversation.cut for conversation in made.conversations):
        return None
    return replace(made, advantage=1.0)
