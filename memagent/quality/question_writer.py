"""Questions written by a model from one segment of a document, kept only if answering them takes reading.

    question, answer = generate(write prompt(segment))
    keep it if the answer is not in the question,
               generate(answer prompt(segment, question)) is the answer,
               and none of two generate(closed prompt(question)) is

The last is MemAgent's filter (arXiv 2507.02259, section 4.1): a model learns nothing about reading from questions that
it can answer without. Pure: `generate` is injected, as for a reading.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from memagent.evaluation.metrics import containment, exact_match, normalise
from memagent.reading.conversations import Generate
from memagent.reading.engine import Sampling
from memagent.reading.prompts import Prompts, compile_slots, splice
from memagent.records import stable_hash

CLOSED_SAMPLES = 2
_WRITTEN = re.compile(
    r"^[^\w\n]*+question[^\w\n:]*+:++[ \t*]*+(\S[^\n]*)\n\W*+answer[^\w\n:]*+:++[ \t*]*+(\S[^\n]*)", re.I | re.M
)
_QUESTION_WORDS = (3, 60)
_ANSWER_WORDS = 30


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question that passed all filters."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class RefusedQuestion:
    """A question that was dropped, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wording:
    """The wording of the prompts, with slots."""

    write: str
    answer: str
    closed: str


class Questioner:
    """Renders the prompts for one model, and parses its responses."""

    def __init__(self, prompts: Prompts, max_tokens: int) -> None:
        """Use the tokenizer, stop and answer format of a reading's prompts, and responses of `max_tokens`."""
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._wording = load_wording()

    @property
    def overhead(self) -> int:
        """Most tokens needed besides the segment: the wording, a question and a response."""
        return max(len(self.prompt("write", [])), len(self.prompt("answer", [])) + self._max_tokens) + self._max_tokens

    def prompt(self, kind: Literal["write", "answer", "closed"], segment: list[int], question: str = "") -> list[int]:
        """Return the prompt to write a question, to answer it from its segment, or closed-book: from the question."""
        tokenizer = self._prompts.tokenizer
        slots = {"segment": segment, "question": tokenizer.encode(question)}
        return splice(self._prompts.framed(compile_slots(getattr(self._wording, kind), tokenizer, {})), slots)

    def sampling(self, temperature: float, seed: int) -> Sampling:
        """Return the sampling of one response."""
        return Sampling(
            max_tokens=self._max_tokens,
            temperature=temperature,
            seed=seed if temperature else None,
            stop_ids=self._prompts.stop_ids,
        )

    def read(self, response: list[int]) -> str:
        """Return the answer in a response; empty for "not found"."""
        return self._prompts.read_answer(response)[0]


async def write(
    segment: list[int], questioner: Questioner, generate: Generate, seed: int = 0
) -> WrittenQuestion | RefusedQuestion:
    """Write a question from the token ids of a segment, and filter it. Raises what `generate` raises."""
    completion = await generate(questioner.prompt("write", segment), questioner.sampling(1.0, seed), 0)
    written = parse(questioner.read(completion.ids)) if not completion.cut else None
    if written is None:
        return RefusedQuestion("not a question")
    if containment(written.question, [written.answer]):
        return RefusedQuestion("answer in the question")
    tried = await generate(questioner.prompt("answer", segment, written.question), questioner.sampling(0.0, 0), 0)
    if not exact_match(questioner.read(tried.ids), [written.answer]):
        return RefusedQuestion("not answerable from its segment")
    for sample in range(CLOSED_SAMPLES):
        drawn = questioner.sampling(1.0, int(stable_hash(seed, sample)[:8], 16))
        guess = questioner.read((await generate(questioner.prompt("closed", [], written.question), drawn, 0)).ids)
        if containment(guess, [written.answer]):
            return RefusedQuestion("answerable without a document")
    return written


def parse(text: str) -> WrittenQuestion | None:
    """Parse the question and answer from a response; None if it has none that can be used."""
    match = _WRITTEN.search(text)
    if match is None:
        return None
    question, answer = (part.strip().strip('*_"').strip() for part in match.groups())
    least, most = _QUESTION_WORDS
    asks = question.endswith(("?", "？")) and least <= len(question.split()) <= most
    says = bool(normalise(answer)) and len(answer.split()) <= _ANSWER_WORDS
    return WrittenQuestion(question, answer) if asks and says else None


@cache
def load_wording() -> Wording:
    """Load the wording."""
    return Wording(**tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))
