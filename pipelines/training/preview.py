"""A look at a training before it begins: two of its tasks, read as its first step would."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memagent.reading.conversations import ReadingSpec
from memagent.records import Json
from memagent.rl.dataset import Task
from memagent.rl.methods import METHODS
from memagent.rl.rollout import RewardConfig, roll_out
from memagent.rl.teacher import teach
from memagent.rl.trajectory import Trajectory
from pipelines.training.data import audited
from pipelines.training.settings import TrainingRun

_SHOWN = 400
"""Characters of a response."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A task, and a reading of it; None: the teacher cannot read it."""

    task: Task
    read: Trajectory | None

    def as_dict(self, spec: ReadingSpec) -> Json:
        """Return it as plain data."""
        read, decode = self.read, spec.prompts.tokenizer.decode
        turns = [
            {"kind": said.kind, "response": decode(said.response_ids, special=True), "cut": said.cut}
            for said in (read.conversations if read else ())
        ]
        shown = {"task": self.task.sample_id, "question": self.task.question, "gold": list(self.task.gold)}
        return {**shown, "answer": read and read.answer, "reward": read and read.reward.total, "turns": turns}

    def lines(self, spec: ReadingSpec) -> Iterator[str]:
        """Yield what to show of it."""
        gold = ", ".join(self.task.gold) if any(self.task.gold) else spec.prompts.template.not_found
        yield f"{self.task.sample_id}: {self.task.question}"
        yield f"  right is: {gold}"
        if self.read is None:
            yield "  the teacher cannot read it: its evidence is not known, or does not fit the memory"
            return
        for number, said in enumerate(self.read.conversations, 1):
            text = " ".join(spec.prompts.tokenizer.decode(said.response_ids, special=True).split())
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
            yield f"  {number} {said.kind}, {len(said.prompt_ids)} tokens: {shown}" + (" [cut off]" if said.cut else "")
        parts = ", ".join(f"{name} {value:g}" for name, value in self.read.reward.parts.items())
        yield f"  reward {self.read.reward.total:g} ({parts})"


def preview(run: TrainingRun, count: int = 2) -> list[Preview]:
    """Audit a run's tasks, and read the first ones on an engine of this machine, or as the teacher does.

    Raises:
        UsageError: as `pipelines.training.data.audited`.
        EngineError: the engine fails.
    """
    tasks = [audited(run).train.task(number) for number in range(count)]
    return asyncio.run(_read(run, tasks))


async def _read(run: TrainingRun, tasks: list[Task]) -> list[Preview]:
    recipe, spec = run.recipe, run.reader.scheme
    method = METHODS.find(recipe.method.name)
    if method.taught:
        return [Preview(task, await teach(task, spec)) for task in tasks]
    sampling = {"temperature": recipe.rollout.temperature, "top_p": recipe.rollout.top_p}
    spec = replace(spec, config=spec.config.model_copy(update=sampling))
    pay = RewardConfig(recipe.reward.weights, recipe.reward.overlong_tokens)
    engine = run.reader.make_local_engine()
    await engine.start()
    try:
        return [Preview(task, await roll_out(task, 0, spec, engine.generate, pay)) for task in tasks]
    finally:
        await engine.stop()
