"""The scripted reader: an engine that reads by rule, for tests, dry runs and measuring the pipeline.

It implements the engine protocol over token ids like any other: it parses a prompt by its template, keeps the sentence
that shares most words with the question, and answers with the value in it. Deterministic, and so fast that a run's time
is the pipeline's own.
"""

import asyncio
import re

from memagent.errors import RequestError
from memagent.reading.engine import Completion, Sampling
from memagent.reading.prompts import Prompts

RULES_VERSION = "1"
_WORD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?]?")
_VALUE = re.compile(r"(?:\bis\b:?|:)\s*+([\w-]++)\W*+$")
_COMMON = frozenset(
    "a an and are as at be by do does for from has have how in is it its of on or our that the their there this to was "
    "were what when where which who why will with you your".split()
)
_ENOUGH = 0.8
"""Share of the question's words that a sentence must hold: a distractor lacks the key."""


class ScriptedEngine:
    """A deterministic reader behind the engine protocol."""

    def __init__(self, prompts: Prompts, *, delay: float = 0.0) -> None:
        """Read prompts made by `prompts`; every conversation takes `delay` seconds."""
        self._prompts = prompts
        self._delay = delay

    async def start(self) -> None:
        """Do nothing: there is nothing to load."""

    async def stop(self) -> None:
        """Do nothing."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue a prompt by rule.

        Raises:
            RequestError: the prompt was not made from the template.
        """
        await asyncio.sleep(self._delay)
        slots = self._prompts.parse(ids)
        if slots is None:
            raise RequestError("the scripted reader was given a prompt that is not of its template")
        return complete(self._respond(slots), self._prompts, ids, sampling)

    def _respond(self, slots: dict[str, list[int]]) -> list[int]:
        prompts = self._prompts
        decode = prompts.tokenizer.decode
        question = decode(slots["question"])
        memory = prompts.memory_text(slots["memory"])
        if "segment" not in slots:
            return prompts.tokenizer.encode(answer(memory) or prompts.template.not_found)
        note = update(question, memory, decode(slots["segment"]))
        if note == memory:
            return prompts.unchanged(slots["memory"])
        return prompts.tokenizer.encode(note)


def complete(response: list[int], prompts: Prompts, prompt: list[int], sampling: Sampling) -> Completion:
    """Return a response by rule as an engine gives it: with its end, or cut off; each token is certain."""
    whole = [*response, *prompts.stop_ids[:1]]
    ids = whole[: sampling.max_tokens]
    logprobs = [0.0] * len(ids) if sampling.logprobs else None
    return Completion(ids, "stop" if ids == whole else "length", prompt_tokens=len(prompt), logprobs=logprobs)


def update(question: str, memory: str, segment: str) -> str:
    """Return the memory after `segment`: the sentence nearest to the question, of all read so far."""
    asked = _words(question)
    best, best_share = memory, max(_share(asked, memory), _ENOUGH - 1e-9)
    for match in _SENTENCE.finditer(segment):
        sentence = " ".join(match.group().split())
        share = _share(asked, sentence)
        if share > best_share:
            best, best_share = sentence, share
    return best


def answer(memory: str) -> str:
    """Return the value at the end of the memory's sentence, or else the sentence."""
    value = _VALUE.search(memory)
    return value.group(1) if value else memory


def _words(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {re.sub(r"(?:ing|ed|s)$", "", one) if len(one) > 4 and "-" not in one else one for one in words} - _COMMON


def _share(asked: set[str], text: str) -> float:
    return len(asked & _words(text)) / len(asked) if asked and text else 0.0
