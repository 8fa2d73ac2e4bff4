"""The engine protocol: token ids in, token ids out.

A reading never decodes text and encodes it again: what the engine sampled is what the memory holds,
what the turn log keeps and what training sees.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from memagent.registry import Registry

if TYPE_CHECKING:
    from memagent.config import EngineConfig
    from memagent.reading.conversations import ReadingSpec
    from memagent.reading.tokens import Tokenizer

LOST = ("repetition", "empty")
"""How responses finish that leave the memory as it was; ``empty``: with reasoning alone, a fragment, or nothing."""
CUT = ("length", *LOST)
"""How responses finish that the model did not end itself, or that hold nothing."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one response."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    """A response ends with (and includes) the first of these ids."""
    repetitions: int = 0
    """A response may be ended after so many repetitions of the same pattern in a row; below 2: never."""
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """One response."""

    ids: list[int]
    finish_reason: str
    """``stop``, ``length``, ``repetition``, or a server's word for a response that it withheld."""
    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that came from the engine's prefix cache."""
    logprobs: list[float] | None = field(default=None)
    """Log-probability of each of `ids`, when asked for."""
    weight_version: str = ""

    @property
    def cut(self) -> bool:
        """Whether the response was ended from outside, before the model ended it."""
        return self.finish_reason in CUT

    @property
    def why_empty(self) -> str:
        """Why it holds no text, if it holds none, and what to do."""
        if self.finish_reason == "stop":
            return "the response is empty (finish_reason stop)"
        if self.finish_reason == "repetition":
            return "the response was ended since it repeats itself (finish_reason repetition), and holds nothing else"
        if self.finish_reason in CUT:
            return (
                f"the response is empty: the reasoning used up the room (finish_reason {self.finish_reason}). Raise "
                "reading.memory_tokens and reading.answer_tokens, or switch the model's reasoning off"
            )
        return f"the server withheld the response (finish_reason {self.finish_reason})"


class Engine(Protocol):
    """Anything that continues token ids."""

    async def start(self) -> None:
        """Get ready. Idempotent."""

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`. A lower `priority` number is served first.

        Raises:
            RequestError: this request cannot be served.
            RetryableError: sending it again may work.
            EngineDied: the engine must be started again.
        """
        ...

    async def stop(self) -> None:
        """Free what the engine holds. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is made from."""

    model: str
    """Folder of the model on this machine, or its name on the Hugging Face hub."""
    config: "EngineConfig"
    """An engine that another package brings takes what changes its answers from ``options``, which name its policy."""
    tokenizer: Callable[[], "Tokenizer"]
    """Loads the policy's tokenizer, once."""
    spec: "Callable[[], ReadingSpec]"
    """Prompts and reading configuration, for an engine that parses its prompts."""


EngineFactory = Callable[[EngineRequest], Engine]
"""Makes an engine, not yet started. Called once in each worker."""

# As text: engines live in `infra`, which this package may not import, and names must be checked without loading them.
ENGINES: Registry[EngineFactory] = Registry(
    "memagent.engines",
    "engine",
    {
        "vllm": "infra.engines.vllm:make_engine",
        "openai": "infra.engines.openai:make_engine",
        "scripted": "infra.engines.scripted:make_engine",
    },
)


def mean_probability(logprobs: Sequence[float] | None) -> float | None:
    """Return the geometric mean of tokens' probabilities, from 0 to 1; of no token 1; None: they are not known.

    That is exp of the mean of the natural logarithms: of a sequence's probability, without its length (Malinin & Gales,
    arXiv 2002.07650, section 3.1).
    """
    if logprobs is None:
        return None
    return math.exp(min(0.0, math.fsum(logprobs) / len(logprobs))) if logprobs else 1.0


def lowest(confidences: Iterable[float | None]) -> float | None:
    """Return the lowest of some confidences; None: one of them is not known."""
    known: list[float] = []
    for confidence in confidences:
        if confidence is None:
            return None
        known.append(confidence)
    return min(known, default=1.0)


LONGEST = 64
"""Tokens of a repeated pattern at most."""


def repeats(ids: Sequence[int], times: int) -> bool:
    """Tell whether `ids` end with one pattern of up to `LONGEST` tokens, `times` times in a row.

    A pattern of one token counts as well. With `times` below 2 nothing is a repetition.
    """
    if times < 2:
        return False
    for size in range(1, min(LONGEST, len(ids) // times) + 1):
        tail = ids[len(ids) - size * times :]
        if all(tail[i] == tail[i + size] for i in range(len(tail) - size)):
            return True
    return False
